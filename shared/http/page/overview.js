// The first page: is all well, what is not, and the last hour.

import { PATHS, all, ask, several } from "./api.js";
import { SLOW_MS, chart, happened, history, latest, line, millis, perSecond, ranged, seconds, slowSince } from "./chart.js";
import { badge, clock, h, number, span, table } from "./dom.js";
import { whatToDo } from "./runbook.js";

const QUEUE = "ready,dead,oldest_ready_age_s,enqueued_per_s,dequeued_per_s,acked_per_s,errors_per_s,expired_per_s,dead_per_s,db_latency_ms_p50,db_latency_ms_p99,up";
const DAG = "running_dags,blocked_nodes,released_per_s,outbox,release_lag_s_p99,db_latency_ms_p99,up";
const NOW = "up,db_latency_ms_p50"; // of each shard
const FLOW = "enqueued_per_s,dequeued_per_s"; // of each topic
const OLD_S = 60, SHOWN = 8, EXTERNALS = 50, SLOW_SHOWN = 4, FLOOD_PER_S = 20, FLOODS_SHOWN = 4;

export async function overview(page) {
  const { ns } = page, range = ranged(page, ["overview"]);
  const { found, lost } = await several([
    history("queue", { metrics: QUEUE, ...range.asked }), history("dag", { metrics: DAG, ...range.asked }),
    history("queue", { metrics: NOW, by: "shard", span_s: 60 }), history("dag", { metrics: NOW, by: "shard", span_s: 60 }),
    all(PATHS.topics, { ns }), ask(PATHS.dead, { ns }, { limit: 200 }), ask(PATHS.dags, { ns }, { state: "failed", limit: SHOWN }),
    history("queue", { metrics: FLOW, by: "topic", span_s: 60 }), ask(PATHS.externals, { ns }, { limit: EXTERNALS }),
  ]);
  const [queue, dag, queueShards, dagShards, topics, dead, failed, flow, externals] = found;
  const count = (told) => {
    const lines = told?.series.filter((each) => each.metric === "up") || [];
    return { all: lines.length, away: lines.filter((each) => latest(each.values) === 0).map((each) => each.shard) };
  };
  const shards = count(queueShards), others = count(dagShards);
  const away = shards.away.length + others.away.length;
  const slow = (await Promise.all([["queue", queueShards], ["dag", dagShards]].map(([service, told]) => slowest(service, told)))).flat();
  const troubles = [
    ...shards.away.map((shard) => ["failed", h("a", { href: page.link(["shards", `queue-${shard}`]) }, `Queue shard ${shard}`), "takes nothing: it does not answer, or has no room", "HeadgateShardAway"]),
    ...others.away.map((shard) => ["failed", h("a", { href: page.link(["shards", `dag-${shard}`]) }, `DAG shard ${shard}`), "does not answer", "HeadgateShardAway"]),
    ...slow.map(({ service, shard, ms, since_s }) => ["skipped", h("a", { href: page.link(["shards", `${service}-${shard}`]) }, `${service === "dag" ? "DAG" : "Queue"} shard ${shard}`), `is slow: half of its statements take over ${millis(ms)}${since_s ? `, since ${clock(since_s * 1000)}` : ""}`, "HeadgateSlowPostgres"]),
    ...(topics || []).filter((topic) => topic.paused && topic.ready).map((topic) => ["skipped", topicLink(page, topic.topic), `is paused; ${number(topic.ready)} are ready`, "HeadgateItemsWait"]),
    ...(topics || []).filter((topic) => !topic.paused && topic.oldest_ready_age_s > OLD_S).sort((one, other) => other.oldest_ready_age_s - one.oldest_ready_age_s)
      .map((topic) => ["skipped", topicLink(page, topic.topic), `its oldest ready item waits for ${span(topic.oldest_ready_age_s)}; ${number(topic.ready)} ${topic.ready === 1 ? "is" : "are"} ready`, "HeadgateItemsWait"]),
    ...floods(flow).map(({ namespace, topic, taken, handed }) => ["skipped", h("a", { href: `#/${encodeURIComponent(namespace)}/topics/${encodeURIComponent(topic)}` }, `${namespace}: ${topic}`), `floods: ${perSecond(taken)} and more come in, ${handed ? `no more than ${perSecond(handed)} go out` : "none goes out"}`, "HeadgateItemsWait"]),
    ...(failed?.items || []).map((each) => ["failed", h("a", { href: page.link(["dags", each.id]) }, each.name || each.key || each.id), `failed; ${number(each.nodes.failed)} of ${number(each.nodes.total)} nodes`, "HeadgateDagsFail"]),
    ...longKept(externals).map((each) => ["skipped", h("a", { href: page.link(["dags", each.dag], { node: each.node }) }, each.dag_name || each.dag_key || each.dag), kept(each), null, { href: page.link(["dags", each.dag], { node: each.node }) }]),
    ...(dead?.items || []).slice(0, SHOWN).map((group) => ["failed", topicLink(page, group.topic), `${number(group.count)} dead: ${group.error || "without a word"}`, group.managed ? "HeadgateDagsFail" : "HeadgateItemsDie"]),
  ];
  const marks = [...(queue?.marks || []), ...(dag?.marks || [])];
  const both = [...new Set([...(queue?.processes || []), ...(dag?.processes || [])])];
  page.show(
    h("h1", {}, "Overview"),
    lost.map((line) => h("p", { class: "lost", role: "alert" }, line)),
    h("div", { class: "tiles" },
      tile("shards", page, away ? "failed" : "succeeded", away ? `${number(away)} of ${number(shards.all + others.all)}` : number(shards.all + others.all), away ? "shards are away" : "shards, all answer"),
      tile("namespaces", page, "released", told(line(queue, "ready")), "ready, all namespaces"),
      tile("topics", page, latest(line(queue, "oldest_ready_age_s")) > OLD_S ? "skipped" : "released", told(line(queue, "oldest_ready_age_s"), seconds), "oldest ready"),
      tile("dead", page, latest(line(queue, "dead")) ? "failed" : "succeeded", told(line(queue, "dead")), "dead"),
      tile("dags", page, "released", told(line(dag, "running_dags")), "DAGs run"),
      tile("shards", page, queue?.silent || dag?.silent ? "skipped" : "succeeded", number(both.length), queue?.silent || dag?.silent ? "processes; not all have answered" : "processes")),
    h("section", {}, h("h2", {}, "Needs a look", h("span", { class: "quiet" }, ` topics and DAGs of ${ns}, shards and floods of all`)), table([
      ["", ([state]) => badge(state, { failed: "wrong", skipped: "waits" }[state])],
      ["what", ([, what]) => what, { wide: true, third: true }],
      ["why", ([, , why]) => why, { wide: true }],
      ["", ([, , , alert, node]) => (alert ? whatToDo(page, alert) : h("a", node, "resolve")), { right: true }],
    ], troubles.sort((one, other) => (other[0] === "failed") - (one[0] === "failed")).slice(0, 20), lost.length ? "Nothing, of what could be asked." : "Nothing. All shards answer, no topic waits, nothing has failed."), h("p", {}, h("a", { class: "quiet", href: page.link(["runbooks"]) }, "All runbooks"))),
    h("section", {}, range.heading, h("div", { class: "charts" },
      chart("flow", "Items", queue, [
        { name: "in", values: line(queue, "enqueued_per_s"), colour: "released", state: "ready" },
        { name: "out", values: line(queue, "dequeued_per_s"), colour: "skipped", state: "skipped", dash: [6, 3] },
        { name: "acked", values: line(queue, "acked_per_s"), colour: "succeeded", state: "succeeded" }], { format: perSecond }),
      chart("backlog", "Ready", queue, [{ name: "ready", values: line(queue, "ready"), colour: "released", state: "ready" }]),
      chart("oldest", "Oldest ready", queue, [{ name: "age", values: line(queue, "oldest_ready_age_s"), colour: "skipped", state: "skipped" }], { format: seconds }),
      chart("latency", "Queue: database", queue, [
        { name: "p50", values: line(queue, "db_latency_ms_p50"), colour: "released", state: "ready" },
        { name: "p99", values: line(queue, "db_latency_ms_p99"), colour: "failed", state: "failed" }], { format: millis }),
      chart("faults", "Faults", queue, [
        { name: "errors", values: line(queue, "errors_per_s"), colour: "failed", state: "failed" },
        { name: "expired", values: line(queue, "expired_per_s"), colour: "skipped", state: "skipped", dash: [6, 3] },
        { name: "died", values: line(queue, "dead_per_s"), colour: "cancelled", state: "cancelled", dash: [2, 2] }], { format: perSecond }),
      chart("dags", "DAGs", dag, [
        { name: "run", values: line(dag, "running_dags"), colour: "released", state: "ready" },
        { name: "nodes released a second", values: line(dag, "released_per_s"), colour: "succeeded", state: "succeeded" }]))),
    happened(marks));
}

// The shards that are slow now, the slowest first, and since when.
async function slowest(service, now) {
  const lines = (now?.series || []).filter((each) => each.metric === "db_latency_ms_p50" && latest(each.values) >= SLOW_MS);
  const most = lines.sort((one, other) => latest(other.values) - latest(one.values)).slice(0, SLOW_SHOWN);
  const { found } = await several(most.map((each) => history(service, { metrics: "db_latency_ms_p50", by: "shard", shard: each.shard })));
  return most.map((each, at) => ({ service, shard: each.shard, ms: latest(each.values), since_s: null, ...slowSince(found[at], line(found[at], "db_latency_ms_p50") || []) }));
}

const told = (values, format = (value) => number(Math.round(value))) => (latest(values) === null ? "–" : format(latest(values)));
const topicLink = (page, topic) => h("a", { href: page.link(["topics", topic]) }, topic);
const tile = (view, page, state, value, name) => h("a", { class: `tile s-${state}`, href: page.link([view]) }, h("b", {}, value), h("span", {}, name));

// DAGs that wait for somebody's word, for long enough that somebody may have forgotten it.
const longKept = (told) => (told?.items || []).filter((each) => !each.since || Date.now() - new Date(each.since) > OLD_S * 1000).slice(0, SHOWN);

function kept({ node, external, more, since, blocked }) {
  const behind = blocked > 1 ? `; ${number(blocked - 1)} more ${blocked > 2 ? "nodes are" : "node is"} blocked` : "";
  return [`${node} waits for ${external}${more ? ` and ${number(more)} more` : ""}, which somebody has to resolve, `, since ? `since ${clock(since)}` : "for long", behind];
}

// Topics of any namespace into which far more went than out of them, all through the last minute; most first.
function floods(told) {
  const least = (values) => Math.min(...values.filter((value) => value !== null)), most = (values) => Math.max(...values.filter((value) => value !== null));
  const lines = (told?.series || []).filter((each) => latest(each.values) !== null && !each.namespace.startsWith("_"));
  return lines.filter((each) => each.metric === "enqueued_per_s").map(({ namespace, topic, values }) => {
    const out = lines.find((each) => each.metric === "dequeued_per_s" && each.namespace === namespace && each.topic === topic);
    return { namespace, topic, taken: least(values), handed: out ? most(out.values) : 0 };
  }).filter((each) => each.taken >= FLOOD_PER_S && each.taken > 2 * each.handed).sort((one, other) => other.taken - one.taken).slice(0, FLOODS_SHOWN);
}
