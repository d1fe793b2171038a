// Who works in a namespace: what each takes, and how busy it is.

import { PATHS, ask } from "./api.js";
import { pager } from "./dags.js";
import { ago, badge, bar, h, number, table } from "./dom.js";

const PAGE = 100;

export async function workers(page) {
  const { gone, cursor } = page.query;
  const found = await ask(PATHS.workers, { ns: page.ns }, { gone: gone ? "true" : null, limit: PAGE, cursor });
  const busy = (running, slots) => (slots ? [`${number(running || 0)} of ${number(slots)}`, bar({ released: running || 0, blocked: slots - (running || 0) }, ["released", "blocked"])] : null);
  page.show(h("h1", {}, "Workers"),
    h("div", { class: "choice", role: "group" }, h("a", { href: page.link(["workers"]), "aria-current": gone ? null : "true" }, "there"), h("a", { href: page.link(["workers"], { gone: "1" }), "aria-current": gone ? "true" : null }, "gone lately")),
    table([
      ["is", (each) => badge(each.state === "alive" ? "healthy" : "skipped", each.state === "alive" ? "there" : "gone")],
      ["worker", (each) => each.name, { wide: true }],
      ["busy", (each) => busy(each.running, each.slots)],
      ["topics", (each) => each.topics.flatMap((topic, at) => [at ? ", " : "", h("a", { href: page.link(["topics", topic.topic]) }, topic.topic), topic.slots ? ` ${topic.running || 0}/${topic.slots}` : ""]), { wide: true }],
      ["host", (each) => each.host],
      ["version", (each) => each.version],
      ["since", (each) => ago(each.since)],
      ["last seen", (each) => ago(each.last_seen)],
    ], found.items, gone ? "No worker went lately." : h("span", {}, "No worker is there. Start one: ", h("code", {}, "headgate worker module:app"))),
    pager(page, ["workers"], page.query, found.next_cursor));
}
