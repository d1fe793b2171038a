// Schedules: what starts when, and its next slot.

import { PATHS, all, send } from "./api.js";
import { plainly, verb } from "./act.js";
import { ago, h, moment, number, span, table } from "./dom.js";

export async function schedules(page) {
  const { ns } = page;
  const found = await all(PATHS.schedules, { ns });
  page.show(h("h1", {}, "Schedules"), table([
    ["schedule", (each) => [each.id, each.paused ? [h("span", { class: "flag" }, "paused"), each.reason ? h("span", { class: "quiet" }, ` ${each.reason}`) : null] : null], { wide: true }],
    ["when", (each) => when(each.spec), { wide: true }],
    ["next", (each) => (each.paused ? h("span", { class: "quiet" }, "none while it is paused") : each.next_at ? [moment(each.next_at), h("span", { class: "quiet" }, ` in ${span((new Date(each.next_at) - Date.now()) / 1000)}`)] : null)],
    ["starts", (each) => starts(page, each.action), { wide: true }],
    ["overlap", (each) => each.overlap],
    ["changed", (each) => ago(each.updated_at)],
    ["", (each) => h("span", { class: "verbs" },
      verb(page, { label: "Run now", scope: "enqueue", title: `Run ${each.id} now`, say: async () => plainly("One run is started now, beside its slots; its overlap policy decides where one is unfinished."),
        run: async (_, id) => { const tick = await send(PATHS.triggerSchedule, { ns, schedule: each.id }, { request_id: id }); return tick.run ? h("p", {}, "Started: ", h("a", { href: page.link(["dags", tick.run]) }, tick.run)) : h("p", {}, `${tick.decision} ${tick.reason || ""}`); } }),
      each.paused
        ? verb(page, { label: "Resume", scope: "enqueue", title: `Resume ${each.id}`, say: async () => plainly("It goes on with the next slot; those that passed stay skipped."), run: async () => { await send(PATHS.resumeSchedule, { ns, schedule: each.id }); } })
        : verb(page, { label: "Pause", scope: "enqueue", title: `Pause ${each.id}`, ask: [["reason", "Reason", ""]], say: async () => plainly("Its slots pass until it is resumed, each on record as skipped. Runs that were started go on."),
          run: async ({ reason }) => { await send(PATHS.pauseSchedule, { ns, schedule: each.id }, reason ? { reason } : {}); } }))],
  ], found, h("span", {}, "No schedules. Make one: ", h("code", {}, "headgate schedule --help"))));
}

function starts(page, { item, dag }) {
  if (item) return ["an item of ", h("a", { class: "inline", href: page.link(["topics", item.topic]) }, item.topic)];
  if (dag) return [`a DAG${dag.name ? `, ${dag.name}` : ""}`, dag.nodes ? `, ${number(dag.nodes.length)} ${dag.nodes.length === 1 ? "node" : "nodes"}` : ""];
  return null;
}

const when = (spec) => Object.entries(spec).filter(([, value]) => value !== null && value !== undefined && !(Array.isArray(value) && !value.length)).map(([name, value]) => `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
