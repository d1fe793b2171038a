// What operators did, of both services, newest first.

import { PATHS, ask, several } from "./api.js";
import { ago, h, number, table } from "./dom.js";

const PAGE = 100;

export async function audit(page) {
  const namespace = page.query.all ? null : page.ns;
  const { found, lost } = await several([PATHS.queueAudit, PATHS.dagAudit].map((path) => ask(path, {}, { namespace, limit: PAGE })));
  const entries = found.flatMap((each) => each?.items || []).sort((one, other) => (one.at < other.at ? 1 : -1)).slice(0, PAGE);
  page.show(h("h1", {}, "Audit"),
    lost.map((line) => h("p", { class: "lost", role: "alert" }, line)),
    h("div", { class: "choice", role: "group" }, h("a", { href: page.link(["audit"]), "aria-current": namespace ? "true" : null }, page.ns), h("a", { href: page.link(["audit"], { all: "1" }), "aria-current": namespace ? null : "true" }, "all namespaces")),
    table([
      ["when", (each) => ago(each.at)],
      ["who", (each) => h("code", {}, each.who)],
      ["did", (each) => each.verb],
      ["to", (each) => each.target, { wide: true }],
      ["how many", (each) => (each.changed === null ? null : number(each.changed)), { right: true }],
      ...(namespace ? [] : [["namespace", (each) => each.namespace]]),
      ["from", (each) => each.origin],
      ["with", (each) => h("code", {}, each.detail === "{}" ? "" : each.detail), { wide: true }],
    ], entries, "Nobody has changed anything here."));
}
