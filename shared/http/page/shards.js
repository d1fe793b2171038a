// The shards of both services: a map of all of them, a table where they are few.

import { verb } from "./act.js";
import { PATHS, all, ask, send, several } from "./api.js";
import { SLOW_MS, chart, happened, history, latencies, latest, line, millis, perSecond, ranged, seconds, slowSince, spark } from "./chart.js";
import { whatToDo } from "./runbook.js";
import { ago, badge, bar, bytes, clock, command, fields, h, number, said, span, table } from "./dom.js";

const PLACES = ["ready", "leased", "delayed", "disabled", "dead"];
// How a shard is; `open` is its breaker, and that no call goes through.
const standing = (shard, slow = shard.db_latency_ms_p50 >= SLOW_MS) => (slow && shard.state === "healthy" ? badge("skipped", "slow") : badge(shard.state, { open: "away", half_open: "tried again" }[shard.state] || shard.state));
const NUMBERED = 128; // of so many, squares of the map have their numbers in them
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
      ["state", (shard) => standing(shard)],
      ["owner", (shard) => shard.owner],
      ["", (shard) => bar(shard, PLACES), { wide: true }],
      ...PLACES.filter((state) => state !== "disabled").map((state) => [state, (shard) => shard[state] || null, { right: true }]),
      ["in · out · acked, per s", (shard) => [shard.enqueued_per_s, shard.dequeued_per_s, shard.acked_per_s].map((rate) => number(Math.round(rate * 10) / 10)).join(" · "), { right: true }],
      ["database p50 · p99", (shard) => latencies(shard.db_latency_ms_p50, shard.db_latency_ms_p99), { right: true }],
      ["p99, last hour", (shard) => spark(`queue ${shard.shard}`, queue, line(queue, "db_latency_ms_p99", { shard: shard.shard }), "p99", millis)],
      ["size", (shard) => (shard.bytes ? bytes(shard.bytes) : null), { right: true }],
    ], queueRows, "No shards.", (shard) => page.go(["shards", `queue-${shard.shard}`]))] : null,
    dagRows ? [h("h2", {}, "DAG shards"), table([
      ["shard", (shard) => h("a", { href: page.link(["shards", `dag-${shard.shard}`]) }, shard.shard), { right: true }],
      ["state", (shard) => standing(shard)],
      ["owner", (shard) => shard.owner],
      ["running DAGs", (shard) => shard.dags.running, { right: true }],
      ["blocked nodes", (shard) => shard.nodes.blocked, { right: true }],
      ["released nodes", (shard) => shard.nodes.released, { right: true }],
      ["outbox", (shard) => shard.outbox, { right: true }],
      ["release lag p99", (shard) => (shard.release_lag_s_p99 === null ? null : span(shard.release_lag_s_p99)), { right: true }],
      ["database p50 · p99", (shard) => latencies(shard.db_latency_ms_p50, shard.db_latency_ms_p99), { right: true }],
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
  const peak = [...values].reduce((best, each) => ((each[1] ?? 0) > (best?.[1] ?? 0) ? each : best), null);
  return [h("div", { class: numbers.length > NUMBERED ? "heat" : "heat few", role: "group", "aria-label": `${SERVICES[service]} shards by ${text}` }, numbers.map((shard) => {
    const value = values.get(shard) ?? null, away = answers.get(shard) === 0;
    const words = `${service} shard ${shard}: ${away ? "does not answer" : "answers"}${measure === "up" || value === null ? "" : `, ${text} ${format(value)}`}`;
    const step = measure === "up" ? 0 : Math.ceil(4 * Math.sqrt((value ?? 0) / most));
    return h("a", { href: page.link(["shards", `${service}-${shard}`]), class: away ? "away" : `step-${step}`, title: words, "aria-label": words }, away ? "✕" : numbers.length > NUMBERED ? "" : shard);
  })), scale(page, service, measure === "up" ? null : peak, format, [...answers.values()].filter((answer) => answer === 0).length)];
}

// What the shades mean: from nothing to the most, and where that is.
function scale(page, service, peak, format, away) {
  return h("p", { class: "scale" },
    peak ? ["0", h("span", { class: "heat", "aria-hidden": "true" }, [0, 1, 2, 3, 4].map((step) => h("i", { class: `step-${step}` }))), `${format(peak[1])}, the most: `, h("a", { href: page.link(["shards", `${service}-${peak[0]}`]) }, `shard ${peak[0]}`)] : null,
    away ? h("span", { class: "heat" }, h("i", { class: "away", "aria-hidden": "true" }, "✕"), `${number(away)} ${away === 1 ? "does" : "do"} not answer`) : null);
}

export async function one(page, argument) {
  const [service, text] = argument.split("-"), shard = Number(text);
  if (!SERVICES[service] || !Number.isInteger(shard)) return page.show(h("p", { class: "empty" }, "There is no such shard."));
  return service === "queue" ? queueShard(page, shard) : dagShard(page, shard);
}

const QUEUE = "ready,delayed,leased,dead,oldest_ready_age_s,enqueued_per_s,dequeued_per_s,acked_per_s,errors_per_s,expired_per_s,dead_per_s,db_latency_ms_p50,db_latency_ms_p99,bytes,dead_tuples,waiting_calls";

async function queueShard(page, number_) {
  const range = ranged(page, ["shards", `queue-${number_}`]);
  const { found: [told, shard, inside, topics, commands], lost } = await several([history("queue", { metrics: QUEUE, by: "shard", shard: number_, ...range.asked }), ask(PATHS.queueShard, { shard: number_ }), inspected("queue", number_),
    history("queue", { metrics: PLACES.join(","), by: "topic", shard: number_, span_s: 300, step_s: 60 }), ask(PATHS.queueCommands)]);
  const drawn = (metric) => line(told, metric, { shard: number_ });
  page.show(
    lost.map((words) => h("p", { class: "lost", role: "alert" }, words)),
    shard ? h("section", { class: "head" }, h("h1", {}, standing(shard, Boolean(slowly(told, number_))), ` Queue shard ${number_}`), inside ? h("p", { class: "why" }, inside.why, slowly(told, number_), troubled(page, shard)) : null, bar(shard, PLACES), orders(page, "queue", number_, shard, commands, drains(shard, inside)), fields([
      ["owner", shard.owner], ["epoch", shard.epoch ? number(shard.epoch) : null], ["size", shard.bytes ? bytes(shard.bytes) : null], ["dead tuples", shard.bytes ? number(shard.dead_tuples) : null],
      ["oldest transaction", shard.oldest_transaction_age_s === null ? null : span(shard.oldest_transaction_age_s)]])) : null,
    range.heading, h("div", { class: "charts" },
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
      chart("s-faults", "Faults", told, [
        { name: "errors", values: drawn("errors_per_s"), colour: "failed", state: "failed" },
        { name: "expired", values: drawn("expired_per_s"), colour: "skipped", state: "skipped", dash: [6, 3] },
        { name: "died", values: drawn("dead_per_s"), colour: "cancelled", state: "cancelled", dash: [2, 2] }], { format: perSecond }),
      chart("s-waits", "Calls that wait for a connection", told, [{ name: "wait", values: drawn("waiting_calls"), colour: "skipped", state: "skipped" }])),
    shard && ordered("queue", number_, shard, commands, drains(shard, inside)), happened(told?.marks), work(page, topics), within(inside));
}

const TOPICS_SHOWN = 12;

// Whose work the shard has: by topic and by tenant, of the topics that hold most.
function work(page, told) {
  if (!told?.series.length) return null;
  const rows = new Map();
  for (const each of told.series) {
    const key = `${each.namespace} ${each.topic}`, value = latest(each.values) || 0;
    const row = rows.get(key) || { namespace: each.namespace, topic: each.topic, all: 0 };
    row[each.metric] = value;
    row.all += value;
    rows.set(key, row);
  }
  const sum = (list, name) => list.reduce((total, row) => total + (row[name] || 0), 0);
  const every = [...rows.values()].filter((row) => row.all > 0), whole = sum(every, "all") || 1;
  const tenants = Object.values(Object.groupBy(every, (row) => row.namespace)).map((list) => ({ namespace: list[0].namespace, topics: list.length, ...Object.fromEntries([...PLACES, "all"].map((name) => [name, sum(list, name)])) }));
  const share = (row) => `${Math.round((row.all / whole) * 1000) / 10} %`;
  const most = (list) => list.sort((one, other) => other.all - one.all).slice(0, TOPICS_SHOWN);
  const columns = [["", (row) => bar(row, PLACES), { wide: true }], ["share", share, { right: true }], ["ready", (row) => row.ready || null, { right: true }], ["leased", (row) => row.leased || null, { right: true }], ["waits", (row) => (row.delayed || 0) + (row.disabled || 0) || null, { right: true }], ["dead", (row) => row.dead || null, { right: true }]];
  return h("section", {},
    h("h2", {}, "Whose work it has"), table([["tenant", (row) => row.namespace, { wide: true }], ["topics", (row) => row.topics, { right: true }], ...columns], most(tenants), "Nothing is here."),
    h("h2", {}, "Hottest topics"), table([["topic", (row) => h("a", { href: `#/${encodeURIComponent(row.namespace)}/topics/${encodeURIComponent(row.topic)}` }, row.topic), { wide: true }], ["tenant", (row) => row.namespace], ...columns], most(every), "Nothing is here."),
    every.length > TOPICS_SHOWN ? h("p", { class: "quiet" }, `Of ${number(every.length)} topics the ${TOPICS_SHOWN} that hold most.`) : null);
}

const DAG = "running_dags,blocked_nodes,released_nodes,outbox,released_per_s,release_lag_s_p99,errors_per_s,db_latency_ms_p50,db_latency_ms_p99,waiting_calls";

async function dagShard(page, number_) {
  const range = ranged(page, ["shards", `dag-${number_}`]);
  const { found: [told, shards, inside, commands], lost } = await several([history("dag", { metrics: DAG, by: "shard", shard: number_, ...range.asked }), all(PATHS.dagShards), inspected("dag", number_), ask(PATHS.dagCommands)]);
  const shard = shards?.find((each) => each.shard === number_);
  const drawn = (metric) => line(told, metric, { shard: number_ });
  page.show(
    lost.map((words) => h("p", { class: "lost", role: "alert" }, words)),
    shard ? h("section", { class: "head" }, h("h1", {}, standing(shard, Boolean(slowly(told, number_))), ` DAG shard ${number_}`), inside ? h("p", { class: "why" }, inside.why, slowly(told, number_), troubled(page, shard)) : null, orders(page, "dag", number_, shard, commands, drains(shard, inside)), fields([
      ["owner", shard.owner], ["epoch", number(shard.epoch)], ["running DAGs", number(shard.dags.running || 0)], ["outbox", number(shard.outbox)]])) : h("p", { class: "empty" }, "There is no such shard."),
    range.heading, h("div", { class: "charts" },
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
    shard && ordered("dag", number_, shard, commands, drains(shard, inside)), happened(told?.marks), within(inside));
}

// Since when it is slow, where it is.
function slowly(told, shard) {
  const slow = slowSince(told, line(told, "db_latency_ms_p50", { shard }) || []);
  return slow ? ` It is slow: half of its statements take over ${millis(slow.ms)}, since ${clock(slow.since_s * 1000)}.` : null;
}

const looks = new Map(); // the last look at each shard's server, to tell how fast it writes

async function inspected(service, shard) {
  const found = await ask(service === "dag" ? PATHS.dagInspection : PATHS.queueInspection, { shard });
  const key = `${service} ${shard}`, before = looks.get(key), now = found.server;
  if (now) {
    const span_s = before ? now.at_s - before.at_s : 0;
    found.walPerS = span_s > 0 && now.wal_bytes >= before.wal_bytes ? (now.wal_bytes - before.wal_bytes) / span_s : null;
    if (!before || span_s > 2) looks.set(key, now);
  }
  return found;
}

// What the server and each process tell.
function within(found) {
  if (!found) return null;
  const { server } = found;
  const differs = (name) => new Set(found.views.map((view) => view[name])).size > 1;
  const cell = (name, show = said) => (view) => (differs(name) ? h("b", { class: "news" }, show(view[name])) : show(view[name]));
  const untold = new Map(found.untold.map((text) => [text.split(": ")[0], text.split(": ").slice(1).join(": ")]));
  const byCause = new Map();
  for (const [name, cause] of untold) byCause.set(cause, [...(byCause.get(cause) || []), name]);
  const part = (title, rows, columns, empty) => (rows ? [h("h2", {}, title), table(columns, rows, empty)] : null);
  return h("section", {},
    h("h2", {}, "As each process sees it"), found.silent ? h("p", { class: "lost" }, `${number(found.silent)} of the processes that were asked have not answered.`) : null,
    table([
      ["process", (view) => [view.process, view.owns ? h("span", { class: "flag" }, "owns it") : null], { wide: true }],
      ["calls", (view) => badge(view.breaker === "closed" ? "healthy" : "open", view.breaker === "closed" ? "go through" : "refused")],
      ["takes items", cell("takes_items", (value) => (value ? "yes" : "no"))],
      ["drains", cell("draining", (value) => (value ? "yes" : "no"))],
      ["owner", cell("owner")], ["epoch", cell("owner_epoch")], ["map", cell("map_version")],
      ["connections", (view) => `${view.connections_in_use} of ${view.connections_max}`, { right: true }],
      ["waiting", (view) => view.calls_waiting || null, { right: true }],
      ["p50 · p99", (view) => latencies(view.latency_ms_p50, view.latency_ms_p99), { right: true }],
    ], found.views, ""),
    server ? [h("h2", {}, "Its server"), h("div", { class: "head" }, fields([
      ["Postgres", server.version], ["role", server.is_standby ? "standby" : "primary"], ["up", span(server.up_s)], ["database", bytes(server.database_bytes)],
      ["WAL", found.walPerS === null || found.walPerS === undefined ? "…" : `${bytes(Math.round(found.walPerS))}/s`], ["connections", `${number(server.connections)} of ${number(server.connections_max)}`]]))] : null,
    part("Locks waited for", found.locks, [
      ["session", (lock) => String(lock.pid), { right: true }], ["waits for", (lock) => [lock.mode, lock.table ? ` on ${lock.table}` : ` (${lock.kind})`]], ["held by", (lock) => lock.blocked_by.join(", ")],
      ["for", (lock) => (lock.waits_s === null ? null : span(lock.waits_s)), { right: true }], ["statement", (lock) => h("code", {}, lock.statement), { wide: true }]], "Nobody waits for a lock."),
    part("Oldest transactions", found.transactions, [
      ["session", (each) => String(each.pid), { right: true }], ["age", (each) => span(each.age_s), { right: true }], ["of", (each) => each.application], ["state", (each) => each.state],
      ["statement", (each) => h("code", {}, each.statement), { wide: true }]], "No transaction is open."),
    part("Sessions", found.sessions, [
      ["sessions", (each) => each.sessions, { right: true }], ["of", (each) => each.application], ["state", (each) => each.state], ["wait for", (each) => [each.wait_event_type, each.wait_event].filter(Boolean).join(": ") || null],
      ["oldest", (each) => (each.oldest_s === null ? null : span(each.oldest_s)), { right: true }]], "None."),
    found.statements ? part("Statements that take the most time", found.statements, [
      ["calls", (each) => each.calls, { right: true }], ["mean", (each) => millis(each.mean_ms), { right: true }], ["in all", (each) => span(each.total_ms / 1000), { right: true }], ["rows", (each) => each.rows, { right: true }],
      ["statement", (each) => h("code", {}, each.statement), { wide: true }]], "None yet.") : untold.has("statements") || !server ? null : [h("h2", {}, "Statements"), h("p", { class: "quiet" }, "The server has no pg_stat_statements; with it, those that take the most time are listed here.")],
    part("Standbys", found.standbys, [
      ["standby", (each) => each.name], ["state", (each) => [each.state, each.sync_state].filter(Boolean).join(", ")], ["behind", (each) => (each.behind_bytes === null ? null : bytes(each.behind_bytes)), { right: true }],
      ["by", (each) => (each.behind_s === null ? null : span(each.behind_s)), { right: true }]], "None."),
    part("Tables", found.tables, [
      ["table", (each) => each.table], ["rows", (each) => each.rows, { right: true }], ["dead", (each) => each.dead || null, { right: true }], ["vacuumed", (each) => (each.vacuumed_at ? ago(each.vacuumed_at) : null)],
      ["table bytes", (each) => bytes(each.bytes), { right: true }], ["index bytes", (each) => bytes(each.index_bytes), { right: true }]], "None."),
    [...byCause].map(([cause, parts]) => h("p", { class: "quiet" }, cause ? `Not told, as ${cause}: ${parts.join(", ")}.` : `Not told: ${parts.join(", ")}.`)));
}

// Where a shard is not as it should be, what to do about it.
const RUNBOOK = { open: "HeadgateShardAway", half_open: "HeadgateShardAway", degraded: "HeadgateShardAway", unowned: "HeadgateShardUnowned" };
const LONG_S = 300;

function troubled(page, shard) {
  const name = RUNBOOK[shard.state] || (shard.oldest_transaction_age_s > LONG_S ? "HeadgateLongTransaction" : null);
  return name ? [" ", whatToDo(page, name)] : null;
}

// Whether it takes nothing new; of one that is away its state does not say.
const drains = (seen, inside) => seen.state === "draining" || (seen.state !== "healthy" && Boolean(inside?.views.some((view) => view.draining)));

// What a drain, or its end, means for who calls.
function meaning(service, seen, draining) {
  if (draining) return "From then on what may live anywhere comes here, too; slots that went elsewhere stay there.";
  return service === "queue"
    ? `Nothing new without an id comes; slots of keys and affinities move to other shards, and what is here (${number(seen.ready + seen.leased + seen.delayed + seen.disabled)} items, ${number(seen.dead)} dead) is worked on until it is gone. Calls with a key whose slot is on its way are refused for a moment, with nothing done.`
    : `No new DAG comes; the ${number(seen.dags.running || 0)} that run go on here until they have ended. What has ended stays until its retention.`;
}

// What is done to the map of the shards by a click, where the service allows it.
function orders(page, service, shard, seen, commands, draining) {
  if (!commands?.enabled) return null;
  return h("p", { class: "verbs" },
    order(page, service, shard, draining ? "undrain" : "drain", draining ? "Use it again" : "Drain", meaning(service, seen, draining)),
    service === "queue" ? order(page, service, shard, "rebalance", "Even out slots", "Slots of keys and affinities move so that every shard that takes new items has an even share; those of shards that drain go elsewhere. Calls with a key whose slot is on its way are refused for a moment, with nothing done.") : null,
    order(page, service, shard, "move", "Move", "The whole shard is copied to another server. Until that is done calls to it are refused (503), with nothing done, and all other shards go on.", [["to", "To the server of shard", "", { inputmode: "numeric" }]]));
}

// What was begun from pages, and what it says; where nothing can be, the command.
function ordered(service, shard, seen, commands, draining) {
  const mine = (commands?.items || []).filter((each) => each.shard === shard || each.kind === "rebalance");
  if (commands?.enabled && !mine.length) return null;
  const flag = service === "dag" ? "--service dag " : "";
  return h("section", {}, h("h2", {}, "The shard map"),
    commands?.enabled ? null : [h("p", {}, `${draining ? "Use it again" : "Let it run empty"}: ${meaning(service, seen, draining)}`), command(`python -m shards ${flag}${draining ? "undrain" : "drain"} ${shard} --yes`)],
    mine.length ? table([
      ["is", (each) => badge({ running: "running", done: "done", failed: "failed" }[each.state], each.state)],
      ["command", (each) => `${each.kind} ${each.kind === "rebalance" ? "" : each.shard}${each.to === null ? "" : ` to the server of ${each.to}`}`],
      ["begun", (each) => ago(each.begun_at)],
      ["said", (each) => each.lines.map((words) => h("div", {}, words)), { wide: true }],
    ], mine, "") : null);
}

// The service is asked first what it would do, and that is what the dialog says.
function order(page, service, shard, kind, label, meaning, fieldsAsked = []) {
  const path = service === "dag" ? PATHS.commandDagShard : PATHS.commandQueueShard;
  const body = ({ to } = {}) => ({ kind, ...(to ? { to: Number(to) } : {}) });
  return verb(page, { label, scope: "admin", danger: kind === "move" || kind === "drain", title: `${label}: ${service} shard ${shard}`, ask: fieldsAsked,
    say: async (values = {}) => {
      if (kind === "move" && !/^\d{1,4}$/.test(values.to || "")) return { stop: true, parts: h("p", {}, "Which shard is on the server that it is to move to?") };
      const planned = await send(path, { shard }, { ...body(values), dry_run: true });
      const idle = planned.lines.some((words) => words.endsWith(": nothing to do"));
      return { stop: planned.state === "failed" || idle, parts: [h("p", {}, meaning), h("pre", {}, planned.lines.filter((words) => !words.startsWith("nothing was done")).join("\n"))] };
    },
    run: async (values = {}) => { await send(path, { shard }, body(values)); return h("p", {}, "It has begun; what it says stands on the page."); } });
}
