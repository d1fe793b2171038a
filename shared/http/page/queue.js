// The queue: topics and their items, the dead, operations, namespaces and shards.

import { PATHS, ask } from "./api.js";
import { pager } from "./dags.js";
import { ago, badge, bar, bytes, command, h, json, number, quoted, said, short, span, table } from "./dom.js";

const PLACES = ["ready", "leased", "delayed", "disabled", "dead"];
const PAGE = 50;

export async function topics(page) {
  const found = await all(PATHS.topics, { ns: page.ns });
  const sum = (state) => found.reduce((total, topic) => total + topic[state], 0);
  page.show(
    h("div", { class: "tiles" }, PLACES.map((state) => h("div", { class: `tile s-${state}` }, h("b", {}, number(sum(state))), h("span", {}, state)))),
    table([
      ["topic", (topic) => [h("a", { href: page.link(["topics", topic.topic]) }, topic.topic), topic.paused ? h("span", { class: "flag" }, "paused") : null], { wide: true }],
      ["", (topic) => bar(topic, PLACES), { wide: true }],
      ...PLACES.map((state) => [state, (topic) => topic[state] || null, { right: true }]),
      ["oldest ready", (topic) => (topic.oldest_ready_age_s === null ? null : span(topic.oldest_ready_age_s)), { right: true }],
    ], found, h("span", {}, "No active topics in this namespace. Put something in one: ", h("code", {}, "headgate enqueue mail '{\"to\": \"ada\"}'")), (topic) => page.go(["topics", topic.topic])));
}

export async function items(page, topic) {
  const { state, cursor } = page.query;
  const found = await ask(PATHS.items, { ns: page.ns }, { topic, state, cursor, limit: PAGE });
  const path = ["topics", topic];
  page.show(
    h("section", { class: "head" }, h("h1", {}, topic), h("p", { class: "quiet" }, "Its items, but for those that have ended.")),
    h("div", { class: "choice", role: "group" }, [null, ...PLACES].map((each) => h("a", {
      href: page.link(path, { state: each }), "aria-current": (state || null) === each ? "true" : null }, each || "all"))),
    table([
      ["state", (item) => badge(item.state)],
      ["id", (item) => h("code", {}, item.id)],
      ["priority", (item) => item.priority, { right: true }],
      ["attempt", (item) => item.attempt || null, { right: true }],
      ["enqueued", (item) => ago(item.enqueued_at)],
      ["payload", (item) => h("code", {}, json(item.payload, 90)), { wide: true }],
      ["error", (item) => item.error?.trim().split("\n").at(-1), { wide: true }],
      ["DAG", (item) => (item.dag ? [item.dag.node, " of ", short(item.dag.id)] : null)],
    ], found.items, "No such items."),
    pager(page, path, page.query, found.next_cursor));
}

export async function dead(page) {
  const found = await all(PATHS.dead, { ns: page.ns });
  const groups = new Map();
  for (const group of found) {
    const key = JSON.stringify([group.topic, group.error]), known = groups.get(key);
    groups.set(key, known ? { ...known, count: known.count + group.count, managed: known.managed + group.managed, dag: known.dag || group.dag, newest: known.newest > group.newest ? known.newest : group.newest } : group);
  }
  const rows = [...groups.values()].sort((one, other) => other.count - one.count);
  page.show(
    table([
      ["count", (group) => group.count, { right: true }],
      ["of DAGs", (group) => group.managed || null, { right: true }],
      ["topic", (group) => h("a", { href: page.link(["topics", group.topic], { state: "dead" }) }, group.topic)],
      ["error", (group) => group.error, { wide: true }],
      ["oldest", (group) => ago(group.oldest)],
      ["newest", (group) => ago(group.newest)],
      ["an id", (group) => short(group.sample_id)],
    ], rows, "Nothing is dead."),
    rows.length ? [h("p", { class: "quiet" }, "When the cause is mended, put them back; what a DAG is made of runs again in its DAG:"),
      rows.slice(0, 5).flatMap((group) => [
        group.count > group.managed ? command(`headgate redrive --topic ${quoted(group.topic)} --error ${quoted(group.error)}`) : null,
        group.dag ? command(`headgate dag retry ${group.dag.id}`) : null])] : null);
}

export async function operations(page) {
  const found = await ask(PATHS.operations, { ns: page.ns }, { limit: PAGE, cursor: page.query.cursor });
  page.show(
    table([
      ["state", (each) => badge(each.state)],
      ["kind", (each) => each.kind],
      ["of", (each) => h("code", {}, Object.entries(each.filter).filter(([, value]) => value !== null).map(([name, value]) => `${name}=${json(value, 60)}`).join(", ") || "everything"), { wide: true }],
      ["done", (each) => bar({ succeeded: each.state === "done" ? 1 : each.scanned, blocked: each.state === "done" ? 0 : Math.max(0, each.total - each.scanned) }, ["succeeded", "blocked"]), { wide: true }],
      ["changed", (each) => each.changed, { right: true }],
      ["left alone", (each) => each.skipped || null, { right: true }],
      ["begun", (each) => ago(each.requested_at)],
      ["id", (each) => short(each.id)],
    ], found.items, "No purge, redrive or cancel of many items within the last week."),
    pager(page, ["operations"], page.query, found.next_cursor));
}

export async function namespaces(page) {
  const found = await all(PATHS.namespaces);
  const use = (used, limit, form = number) => (limit === null ? said(used === null ? null : form(used)) : [`${form(used || 0)} of ${form(limit)}`, bar({ [used > limit * 0.9 ? "failed" : "released"]: used || 0, blocked: Math.max(0, limit - (used || 0)) }, ["failed", "released", "blocked"])]);
  page.show(table([
    ["namespace", (each) => h("a", { href: `#/${encodeURIComponent(each.namespace)}/topics` }, each.namespace), { wide: true }],
    ["enqueued in the last minute", (each) => use(each.enqueued_last_minute, each.enqueues_per_minute), { right: true }],
    ["in flight", (each) => use(each.in_flight, each.in_flight_max), { right: true }],
    ["items", (each) => use(each.items, each.items_max), { right: true }],
    ["stored", (each) => use(each.stored_bytes, each.stored_bytes_max, bytes), { right: true }],
  ], found, "No namespaces yet."));
}

export async function shards(page) {
  const found = await all(PATHS.shards);
  page.show(table([
    ["shard", (shard) => shard.shard, { right: true }],
    ["state", (shard) => badge(shard.state)],
    ["owner", (shard) => shard.owner],
    ["", (shard) => bar(shard, PLACES), { wide: true }],
    ...PLACES.map((state) => [state, (shard) => shard[state] || null, { right: true }]),
    ["in · out · acked, per s", (shard) => [shard.enqueued_per_s, shard.dequeued_per_s, shard.acked_per_s].map((rate) => number(Math.round(rate * 10) / 10)).join(" · "), { right: true }],
    ["database p50 · p99", (shard) => `${said(shard.db_latency_ms_p50)} · ${said(shard.db_latency_ms_p99)} ms`, { right: true }],
    ["size", (shard) => bytes(shard.bytes), { right: true }],
    ["oldest transaction", (shard) => (shard.oldest_transaction_age_s === null ? null : span(shard.oldest_transaction_age_s)), { right: true }],
  ], found, "No shards."));
}

// A list whole, up to a size that is still looked at.
async function all(path, names = {}) {
  const found = [];
  for (let cursor = null, pages = 0; pages < 10; pages += 1) {
    const page = await ask(path, names, { limit: 1000, cursor });
    found.push(...page.items);
    cursor = page.next_cursor;
    if (!cursor) break;
  }
  return found;
}
