// The shards of both services: a map of all of them, a table where they are few.

import { PATHS, all, ask, can, several } from "./api.js";
import { chart, happened, history, latest, line, millis, perSecond, seconds, spark } from "./chart.js";
import { ago, badge, bar, bytes, command, fields, h, number, said, span, table } from "./dom.js";

const PLACES = ["ready", "leased", "delayed", "disabled", "dead"];
const FEW = 64; // so many are asked one by one; of more, the map shows what the processes remember
const SERVICES = { queue: "Queue", dag: "DAG" };
const MEASURES = {
  up: ["answers", () => ""],
  ready: ["ready", number], dead: ["dead", number], oldest_ready_age_s: ["oldest ready", seconds], db_latency_ms_p99: ["database p99", millis],
  errors_per_s: ["errors", perSecond], blocked_nodes: ["blocked nodes", number], bytes: ["size", bytes],
};

export async function list(page) {
  const measure = MEASURES[page.query.by] ? page.query.by : "up";
  const metrics = [...new Set(["up", measure, "ready", "db_latency_ms_p99"])].join(",");
  const { found, lost } = await several(Object.keys(SERVICES).map((service) => history(service, { metrics, by: "shard", step_s: 60 })));
  const [queue, dag] = found;
  const numbers = (told) => (told?.series || []).filter((each) => each.metric === "up").map((each) => each.shard);
  const few = { queue: numbers(queue).length <= FEW, dag: numbers(dag).length <= FEW };
  const { found: [queueRows, dagRows] } = await several([queue && few.queue ? all(PATHS.queueShards) : Promise.resolve(null), dag && few.dag ? all(PATHS.dagShards) : Promise.resolve(null)]);
  page.show(
    h("h1", {}, "Shards"),
    lost.map((text) => h("p", { class: "lost", role: "alert" }, text)),
    h("div", { class: "choice", role: "group", "aria-label": "what the map shows" }, Object.entries(MEASURES).map(([name, [text]]) => h("a", { href: page.link(["shards"], { by: name === "up" ? null : name }), "aria-current": name === measure ? "true" : null }, text))),
    [["queue", queue], ["dag", dag]].filter(([, told]) => told).map(([service, told]) => [h("h2", {}, `${SERVICES[service]} service: ${number(numbers(told).length)} shards`), heat(page, service, told, measure, numbers(told))]),
    queueRows ? [h("h2", {}, "Queue shards"), table([
      ["shard", (shard) => h("a", { href: page.link(["shards", `queue-${shard.shard}`]) }, shard.shard), { right: true }],
      ["state", (shard) => badge(shard.state)],
      ["owner", (shard) => shard.owner],
      ["", (shard) => bar(shard, PLACES), { wide: true }],
      ...PLACES.filter((state) => state !== "disabled").map((state) => [state, (shard) => shard[state] || null, { right: true }]),
      ["in · out · acked, per s", (shard) => [shard.enqueued_per_s, shard.dequeued_per_s, shard.acked_per_s].map((rate) => number(Math.round(rate * 10) / 10)).join(" · "), { right: true }],
      ["database p50 · p99", (shard) => `${said(shard.db_latency_ms_p50)} · ${said(shard.db_latency_ms_p99)} ms`, { right: true }],
      ["p99, last hour", (shard) => spark(`queue ${shard.shard}`, queue, line(queue, "db_latency_ms_p99", { shard: shard.shard }), "p99", millis)],
      ["size", (shard) => bytes(shard.bytes), { right: true }],
    ], queueRows, "No shards.", (shard) => page.go(["shards", `queue-${shard.shard}`]))] : null,
    dagRows ? [h("h2", {}, "DAG shards"), table([
      ["shard", (shard) => h("a", { href: page.link(["shards", `dag-${shard.shard}`]) }, shard.shard), { right: true }],
      ["state", (shard) => badge(shard.state)],
      ["owner", (shard) => shard.owner],
      ["running DAGs", (shard) => shard.dags.running, { right: true }],
      ["blocked nodes", (shard) => shard.nodes.blocked, { right: true }],
      ["released nodes", (shard) => shard.nodes.released, { right: true }],
      ["outbox", (shard) => shard.outbox, { right: true }],
      ["release lag p99", (shard) => (shard.release_lag_s_p99 === null ? null : span(shard.release_lag_s_p99)), { right: true }],
      ["database p50 · p99", (shard) => `${said(shard.db_latency_ms_p50)} · ${said(shard.db_latency_ms_p99)} ms`, { right: true }],
      ["p99, last hour", (shard) => spark(`dag ${shard.shard}`, dag, line(dag, "db_latency_ms_p99", { shard: shard.shard }), "p99", millis)],
    ], dagRows, "No shards.", (shard) => page.go(["shards", `dag-${shard.shard}`]))] : null,
    happened([...(queue?.marks || []), ...(dag?.marks || [])]));
}

// A square for each shard: its shade is the measure against the largest, its sign says what does not answer.
function heat(page, service, told, measure, numbers) {
  const [text, format] = MEASURES[measure];
  const values = new Map(), answers = new Map();
  for (const each of told.series) {
    if (each.metric === measure) values.set(each.shard, latest(each.values));
    if (each.metric === "up") answers.set(each.shard, latest(each.values));
  }
  const most = Math.max(1e-9, ...[...values.values()].map((value) => value ?? 0));
  return h("div", { class: "heat", role: "group", "aria-label": `${SERVICES[service]} shards by ${text}` }, numbers.map((shard) => {
    const value = values.get(shard) ?? null, away = answers.get(shard) === 0;
    const words = `${service} shard ${shard}: ${away ? "does not answer" : "answers"}${measure === "up" || value === null ? "" : `, ${text} ${format(value)}`}`;
    const step = measure === "up" ? 0 : Math.ceil(4 * Math.sqrt((value ?? 0) / most));
    return h("a", { href: page.link(["shards", `${service}-${shard}`]), class: away ? "away" : `step-${step}`, title: words, "aria-label": words }, away ? "✕" : "");
  }));
}

export async function one(page, argument) {
  const [service, text] = argument.split("-"), shard = Number(text);
  if (!SERVICES[service] || !Number.isInteger(shard)) return page.show(h("p", { class: "empty" }, "There is no such shard."));
  return service === "queue" ? queueShard(page, shard) : dagShard(page, shard);
}

const QUEUE = "ready,delayed,leased,dead,oldest_ready_age_s,enqueued_per_s,dequeued_per_s,acked_per_s,errors_per_s,expired_per_s,dead_per_s,db_latency_ms_p50,db_latency_ms_p99,bytes,dead_tuples,waiting_calls";

async function queueShard(page, number_) {
  const { found: [told, shard], lost } = await several([history("queue", { metrics: QUEUE, by: "shard", shard: number_ }), ask(PATHS.queueShard, { shard: number_ })]);
  const drawn = (metric) => line(told, metric, { shard: number_ });
  page.show(
    lost.map((words) => h("p", { class: "lost", role: "alert" }, words)),
    shard ? h("section", { class: "head" }, h("h1", {}, badge(shard.state), ` Queue shard ${number_}`), bar(shard, PLACES), fields([
      ["owner", shard.owner], ["epoch", shard.epoch ? number(shard.epoch) : null], ["size", bytes(shard.bytes)], ["dead tuples", number(shard.dead_tuples)],
      ["oldest transaction", shard.oldest_transaction_age_s === null ? null : span(shard.oldest_transaction_age_s)]])) : null,
    h("div", { class: "charts" },
      chart("s-flow", "Items", told, [
        { name: "in", values: drawn("enqueued_per_s"), colour: "released", state: "ready" },
        { name: "out", values: drawn("dequeued_per_s"), colour: "skipped", state: "skipped", dash: [6, 3] },
        { name: "acked", values: drawn("acked_per_s"), colour: "succeeded", state: "succeeded" }], { format: perSecond }),
      chart("s-backlog", "What it holds", told, [
        { name: "ready", values: drawn("ready"), colour: "released", state: "ready" },
        { name: "leased", values: drawn("leased"), colour: "succeeded", state: "leased" },
        { name: "dead", values: drawn("dead"), colour: "failed", state: "dead", dash: [2, 2] }]),
      chart("s-oldest", "Oldest ready", told, [{ name: "age", values: drawn("oldest_ready_age_s"), colour: "skipped", state: "skipped" }], { format: seconds }),
      chart("s-latency", "Database", told, [
        { name: "p50", values: drawn("db_latency_ms_p50"), colour: "released", state: "ready" },
        { name: "p99", values: drawn("db_latency_ms_p99"), colour: "failed", state: "failed" }], { format: millis }),
      chart("s-faults", "What went wrong", told, [
        { name: "errors", values: drawn("errors_per_s"), colour: "failed", state: "failed" },
        { name: "leases expired", values: drawn("expired_per_s"), colour: "skipped", state: "skipped", dash: [6, 3] },
        { name: "died", values: drawn("dead_per_s"), colour: "cancelled", state: "cancelled", dash: [2, 2] }], { format: perSecond }),
      chart("s-waits", "Calls that wait for a connection", told, [{ name: "wait", values: drawn("waiting_calls"), colour: "skipped", state: "skipped" }])),
    happened(told?.marks));
}

const DAG = "running_dags,blocked_nodes,released_nodes,outbox,released_per_s,release_lag_s_p99,errors_per_s,db_latency_ms_p50,db_latency_ms_p99,waiting_calls";

async function dagShard(page, number_) {
  const { found: [told, shards], lost } = await several([history("dag", { metrics: DAG, by: "shard", shard: number_ }), all(PATHS.dagShards)]);
  const shard = shards?.find((each) => each.shard === number_);
  const drawn = (metric) => line(told, metric, { shard: number_ });
  page.show(
    lost.map((words) => h("p", { class: "lost", role: "alert" }, words)),
    shard ? h("section", { class: "head" }, h("h1", {}, badge(shard.state), ` DAG shard ${number_}`), fields([
      ["owner", shard.owner], ["epoch", number(shard.epoch)], ["running DAGs", number(shard.dags.running || 0)], ["outbox", number(shard.outbox)]])) : h("p", { class: "empty" }, "There is no such shard."),
    h("div", { class: "charts" },
      chart("d-dags", "DAGs and nodes", told, [
        { name: "DAGs run", values: drawn("running_dags"), colour: "released", state: "ready" },
        { name: "blocked nodes", values: drawn("blocked_nodes"), colour: "blocked", state: "blocked", dash: [6, 3] },
        { name: "released nodes", values: drawn("released_nodes"), colour: "succeeded", state: "succeeded" }]),
      chart("d-flow", "Released", told, [{ name: "nodes", values: drawn("released_per_s"), colour: "released", state: "ready" }], { format: perSecond }),
      chart("d-lag", "Release lag", told, [{ name: "p99", values: drawn("release_lag_s_p99"), colour: "failed", state: "failed" }], { format: seconds }),
      chart("d-latency", "Database", told, [
        { name: "p50", values: drawn("db_latency_ms_p50"), colour: "released", state: "ready" },
        { name: "p99", values: drawn("db_latency_ms_p99"), colour: "failed", state: "failed" }], { format: millis }),
      chart("d-faults", "Errors", told, [{ name: "errors", values: drawn("errors_per_s"), colour: "failed", state: "failed" }], { format: perSecond }),
      chart("d-waits", "Calls that wait for a connection", told, [{ name: "wait", values: drawn("waiting_calls"), colour: "skipped", state: "skipped" }])),
    happened(told?.marks));
}
