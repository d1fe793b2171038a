// The queue: topics and their items, the dead, operations and namespaces.

import { whatToDo } from "./runbook.js";
import { plainly, verb } from "./act.js";
import { PATHS, Refused, all, ask, can, send, several } from "./api.js";
import { chart, happening, history, latest, line, perSecond, ranged, seconds, spark } from "./chart.js";
import { pager } from "./dags.js";
import { ago, badge, bar, bytes, clock, command, fields, h, json, moment, number, quoted, reason, said, short, span, table } from "./dom.js";

const PLACES = ["ready", "leased", "delayed", "disabled", "dead"];
const PAGE = 50, SPARKS = 100, ROWS = 500, TOPICS_MAX = 10_000;
const RATES = ["enqueued_per_s", "dequeued_per_s", "acked_per_s"];

export async function topics(page) {
  const [holding, told, moved, why] = await Promise.all([all(PATHS.topics, { ns: page.ns }, {}, TOPICS_MAX), hour(page.ns, "ready"), hour(page.ns, RATES.join(","), undefined, { span_s: 60, step_s: 5 }), ask(PATHS.why, { ns: page.ns }).catch(() => null)]);
  const found = [...holding, ...empty(moved, page.ns, holding)].sort((one, other) => (one.topic < other.topic ? -1 : 1));
  const sum = (state) => found.reduce((total, topic) => total + topic[state], 0);
  const most = new Set([...found].sort((one, other) => held(other) - held(one)).slice(0, ROWS)), shown = found.filter((topic) => most.has(topic));
  page.show(
    h("h1", {}, "Topics"), reason(page, why),
    h("div", { class: "tiles" }, PLACES.map((state) => h("div", { class: `tile s-${state}` }, h("b", {}, number(sum(state))), h("span", {}, state)))),
    table([
      ["topic", (topic) => [h("a", { href: page.link(["topics", topic.topic]) }, topic.topic), topic.paused ? h("span", { class: "flag" }, "paused") : null], { wide: true }],
      ["", (topic) => bar(topic, PLACES), { wide: true }],
      ...PLACES.map((state) => [state, (topic) => topic[state] || null, { right: true }]),
      ["oldest ready", (topic) => (topic.oldest_ready_age_s === null ? null : span(topic.oldest_ready_age_s)), { right: true }],
      ["in · out · acked, per s", (topic) => flow(moved, { namespace: page.ns, topic: topic.topic }), { right: true }],
      ["ready, last hour", (topic) => (shown.indexOf(topic) < SPARKS ? spark(`topic ${topic.topic}`, told, line(told, "ready", { namespace: page.ns, topic: topic.topic }), "ready") : null)],
    ], shown, h("span", {}, "No active topics in this namespace. Put something in one: ", h("code", {}, "headgate enqueue mail '{\"to\": \"ada\"}'")), (topic) => page.go(["topics", topic.topic])),
    found.length > shown.length ? h("p", { class: "quiet" }, `These hold most, of ${holding.length < TOPICS_MAX ? "" : "at least "}${number(found.length)} topics. The search finds the others.`) : null);
}

const held = (topic) => PLACES.reduce((total, place) => total + topic[place], 0);

// Topics that hold nothing now, and of which something moved in the last minute: a quick one is not there by turns.
function empty(moved, namespace, holding) {
  const known = new Set(holding.map((topic) => topic.topic));
  const lines = (moved?.series || []).filter((each) => each.namespace === namespace && !known.has(each.topic) && each.values.some((value) => value > 0));
  return [...new Set(lines.map((each) => each.topic))].map((topic) => ({ topic, paused: false, oldest_ready_age_s: null, ...Object.fromEntries(PLACES.map((place) => [place, 0])) }));
}

// What has moved of a topic in the last minute; nothing where it is not among those of which most does.
function flow(moved, where) {
  const rates = RATES.map((metric) => {
    const told = (line(moved, metric, where) || []).filter((value) => value !== null);
    return told.length ? told.reduce((sum, value) => sum + value, 0) / told.length : null;
  });
  return rates.some((rate) => rate !== null) ? rates.map((rate) => number(Math.round((rate || 0) * 10) / 10)).join(" · ") : null;
}

// The last hour of a namespace's topics, where the reader may see it.
async function hour(namespace, metrics, topic, asked) {
  if (!can("ops")) return null;
  return history("queue", { metrics, by: "topic", namespace, topic, step_s: topic ? 15 : 60, ...asked });
}

export async function topic(page, name) {
  const { ns } = page, { state, cursor } = page.query, path = ["topics", name], range = ranged(page, path);
  const { found: [found, told, known, why, audited], lost } = await several([
    ask(PATHS.items, { ns }, { topic: name, state, cursor, limit: PAGE }),
    hour(ns, "ready,leased,delayed,dead,oldest_ready_age_s,enqueued_per_s,dequeued_per_s,acked_per_s", name, range.asked),
    ask(PATHS.topics, { ns }, { topic: name }),
    ask(PATHS.why, { ns }, { topic: name }).catch(() => null),
    can("ops") ? ask(PATHS.queueAudit, {}, { namespace: ns, limit: 100 }).catch(() => null) : null,
  ].map((call) => Promise.resolve(call)));
  const [counts] = known?.items || [];
  const where = { namespace: ns, topic: name };
  const drawn = (metric) => line(told, metric, where);
  page.show(
    h("section", { class: "head" }, h("h1", {}, name, counts?.paused ? h("span", { class: "flag" }, "paused") : null),
      counts ? h("p", { class: "counts" }, PLACES.filter((each) => counts[each]).map((each) => badge(each, `${number(counts[each])} ${each}`)),
        counts.oldest_ready_age_s === null ? null : h("span", { class: "quiet" }, `oldest ready ${span(counts.oldest_ready_age_s)}`)) : null, reason(page, why),
      topicVerbs(page, name, counts)),
    told ? range.heading : null, told ? h("div", { class: "charts" },
      chart("topic", "Items", told, [
        { name: "ready", values: drawn("ready"), colour: "released", state: "ready" },
        { name: "leased", values: drawn("leased"), colour: "succeeded", state: "leased" },
        { name: "delayed", values: drawn("delayed"), colour: "blocked", state: "delayed", dash: [6, 3] },
        { name: "dead", values: drawn("dead"), colour: "failed", state: "dead", dash: [2, 2] }]),
      chart("topic-flow", "In, out and acked", told, [
        { name: "in", values: drawn("enqueued_per_s"), colour: "released", state: "ready" },
        { name: "out", values: drawn("dequeued_per_s"), colour: "skipped", state: "skipped", dash: [6, 3] },
        { name: "acked", values: drawn("acked_per_s"), colour: "succeeded", state: "succeeded" }], { format: perSecond }),
      chart("topic-age", "Oldest ready", told, [{ name: "age", values: drawn("oldest_ready_age_s"), colour: "skipped", state: "skipped" }], { format: seconds })) : null,
    range.asked.span_s > LATELY_S * 6 ? null : changes(told, drawn, audited, name),
    h("h2", {}, "Items"), lost.map((words) => h("p", { class: "lost", role: "alert" }, words)),
    h("div", { class: "choice", role: "group", "aria-label": "state" }, [null, ...PLACES].map((each) => h("a", {
      href: page.link(path, { state: each, range: page.query.range }), "aria-current": (state || null) === each ? "true" : null }, each || "all"))),
    table([
      ["state", (item) => badge(item.state)],
      ["id", (item) => h("a", { href: page.link(["items", item.id]) }, h("code", {}, item.id))],
      ["priority", (item) => item.priority, { right: true }],
      ["attempt", (item) => item.attempt || null, { right: true }],
      ["enqueued", (item) => ago(item.enqueued_at)],
      ["payload", (item) => h("code", {}, json(item.payload, 90)), { wide: true }],
      ["error", (item) => item.error?.trim().split("\n").at(-1), { wide: true }],
      ["DAG", (item) => (item.dag ? [h("a", { href: page.link(["dags", item.dag.id], { node: item.dag.node }) }, item.dag.node)] : null)],
    ], found?.items || [], found ? (state ? `None is ${state}.` : "It holds no items.") : "There is no list of them now.", (item) => page.go(["items", item.id])),
    pager(page, path, page.query, found?.next_cursor));
}

const LATELY_S = 600;

// What is otherwise than ten minutes ago: the counts, what operators did, what happened to shards and processes.
function changes(told, drawn, audited, name) {
  if (!told) return null;
  const back = Math.round(LATELY_S / told.step_s), since_s = Date.now() / 1000 - LATELY_S;
  const counts = ["ready", "leased", "delayed", "dead", "oldest_ready_age_s"].map((metric) => {
    const values = drawn(metric) || [], now = latest(values);
    const before = values.slice(Math.max(0, values.length - back - 4), Math.max(0, values.length - back) + 1).findLast((value) => value !== null) ?? values.find((value) => value !== null) ?? null;
    return { metric, now, before };
  }).filter(({ now, before }) => now !== null && before !== null && Math.round(now) !== Math.round(before));
  const show = (metric, value) => (metric === "oldest_ready_age_s" ? span(value) : number(Math.round(value)));
  const deeds = (audited?.items || []).filter((each) => each.target === name && Date.parse(each.at) / 1000 >= since_s);
  const marks = told.marks.filter((mark) => mark.at_s >= since_s);
  const lines = [
    ...counts.map(({ metric, now, before }) => [null, `${metric === "oldest_ready_age_s" ? "oldest ready" : metric}: ${show(metric, before)} → ${show(metric, now)}`]),
    ...deeds.map((each) => [Date.parse(each.at), `${each.verb}${each.changed === null ? "" : `, ${number(each.changed)}`} by ${each.who}`]),
    ...marks.map((mark) => [mark.at_s * 1000, happening(mark)]),
  ].sort(([one], [other]) => (other ?? Infinity) - (one ?? Infinity));
  return h("section", {}, h("h2", {}, "What changed in the last 10 minutes"),
    lines.length ? h("ul", { class: "marks" }, lines.slice(0, 12).map(([at, words]) => h("li", {}, at ? h("time", { datetime: new Date(at).toISOString() }, clock(at)) : null, words))) : h("p", { class: "quiet" }, "Nothing that was seen."));
}

function topicVerbs(page, name, counts) {
  const { ns } = page;
  return h("p", { class: "verbs" },
    counts?.paused
      ? verb(page, { label: "Resume", scope: "admin", title: `Resume ${name}`, say: async () => plainly(`Its ${number(counts.ready)} ready items are handed out again.`), run: async () => { await send(PATHS.resumeTopic, { ns }, { topic: name }); } })
      : verb(page, { label: "Pause", scope: "admin", title: `Pause ${name}`, say: async () => plainly("Nothing of it is handed out until it is resumed. What is leased goes on; what is enqueued is kept."), run: async () => { await send(PATHS.pauseTopic, { ns }, { topic: name }); } }),
    bulk(page, "Redrive dead", "redrive", { topic: name }),
    bulk(page, "Cancel some", "cancel", { topic: name }, true),
    bulk(page, "Purge", "purge", { topic: name }, true));
}

const ID_MS = 600_000; // an id is good for a quarter of an hour
const DEEDS = { redrive: "are put back, with fresh attempts", purge: "are cancelled and gone", cancel: "are cancelled and gone" };

// An operation on all items that a filter means, after a look at which these are.
export function bulk(page, label, kind, filter, danger = false) {
  const { ns } = page;
  const asks = kind === "cancel" ? [["state", "State (all, if empty)", "", { placeholder: "ready, delayed, leased, disabled or dead" }], ["error", "Error begins like", ""], ["enqueued_before", "Enqueued before", "", { placeholder: "2026-01-31T12:00:00Z" }]] : [];
  const whole = (values) => ({ ...filter, ...Object.fromEntries(Object.entries(values).filter(([, value]) => value)) });
  // Confirmed once more, because nobody knows what came of it, it is the same operation, as long as it means the same.
  let begun = null;
  async function look(values) {
    const wanted = whole(values), meant = JSON.stringify(wanted);
    const seen = await send(PATHS.operations, { ns }, { kind, filter: wanted, dry_run: true });
    if (!begun?.sent || begun.meant !== meant) begun = { id: seen.id, meant, sent: false, at: Date.now() };
    return seen;
  }
  async function begin(values) {
    if (!begun.sent && Date.now() - begun.at > ID_MS) await look(values);
    try {
      return await send(PATHS.operations, { ns }, { kind, filter: whole(values), id: begun.id });
    } catch (error) {
      if (!(error instanceof Refused) || error.outcome !== "none") begun.sent = true;
      if (!begun.sent) begun.at = 0; // nothing was done; the shard of the id may be away
      throw error;
    }
  }
  return verb(page, { label, scope: "admin", danger, ask: asks, title: `${label}: ${Object.values(filter).filter(Boolean).join(", ")}`,
    say: async (values) => {
      const seen = await look(values);
      const count = seen.matched;
      return { stop: !count && !seen.away.length, parts: [
        h("p", {}, h("b", {}, `${seen.exact || !count ? "" : "At least "}${number(count)} ${count === 1 ? "item" : "items"}`), ` ${count ? DEEDS[kind] : seen.away.length ? "are meant on the shards that answer" : "are meant: there is nothing to do"}.`, " A DAG's items are left alone: they are changed through their DAG."),
        seen.away.length ? h("p", { class: "lost", role: "alert" }, `${seen.away.length === 1 ? `Shard ${seen.away[0]} does` : `Shards ${seen.away.join(", ")} do`} not answer: what is there is not counted. Begun now, it is done on the others, and there when ${seen.away.length === 1 ? "it is" : "they are"} back.`) : null,
        seen.sample.length ? h("ul", { class: "sample" }, seen.sample.slice(0, 10).map((id) => h("li", {}, h("a", { href: page.link(["items", id]) }, h("code", {}, id))))) : null] };
    },
    run: async (values) => {
      const found = await begin(values);
      return h("p", {}, `${number(found.changed)} changed${found.state === "running" ? " so far; it goes on by itself: " : ". "}`, h("a", { href: page.link(["operations"]) }, "operations"));
    } });
}

// What a job has logged, as text, under a heading of its own.
export function logged(logs, heading = h("h3", {}, "Log")) {
  if (!logs?.items.length) return null;
  return [heading, h("pre", { class: "log", tabindex: "0" }, logs.items.map((line) => `${clock(line.at)} ${line.level.padEnd(8)} ${line.text}\n`), logs.next_cursor ? "and more\n" : "")];
}

const minor = (words) => h("h2", { class: "minor" }, words);

function progressed({ done, total, note, at }) {
  const far = total ? `${number(done)} of ${number(total)}` : number(done);
  return [note ? `${far}: ${note}` : far, h("span", { class: "quiet" }, " ", ago(at))];
}

export async function item(page, id) {
  const { ns } = page;
  const [found, tries, logs, why] = await Promise.all([ask(PATHS.item, { ns, item_id: id }), ask(PATHS.attempts, { ns, item_id: id }, { limit: 20 }), ask(PATHS.logs, { ns, item_id: id }, { limit: 200 }), ask(PATHS.why, { ns }, { item: id }).catch(() => null)]);
  const standing = found.state === "leased" ? await send(PATHS.itemStates, { ns }, { ids: [id] }).then((told) => told.results[0], () => null) : null;
  const part = (name, value) => (value === null || value === undefined ? null : [minor(name), h("pre", { tabindex: "0" }, json(value, 20_000))]);
  page.show(
    h("section", { class: "head" }, h("h1", {}, badge(found.state), " ", h("code", {}, found.id)), reason(page, why),
      fields([
        ["topic", h("a", { href: page.link(["topics", found.topic]) }, found.topic)],
        ["DAG", found.dag ? h("a", { href: page.link(["dags", found.dag.id], { node: found.dag.node }) }, `${found.dag.node}, generation ${found.dag.generation}`) : null],
        ["enqueued", ago(found.enqueued_at)],
        ["deliverable", found.state === "delayed" ? `${moment(found.deliver_at)}, in ${span((new Date(found.deliver_at) - Date.now()) / 1000)}` : null],
        ["lease ends", found.lease_expires_at ? `in ${span((new Date(found.lease_expires_at) - Date.now()) / 1000)}` : null],
        ["worker", standing?.worker],
        ["expires", found.expires_at ? ago(found.expires_at) : null],
        ["priority", number(found.priority)], ["attempt", found.attempt ? `${found.attempt}${found.max_attempts ? ` of ${found.max_attempts}` : ""}` : null],
        ["delivery", found.delivery.replaceAll("_", " ")], ["lease", span(found.lease_s)], ["fairness key", found.fairness_key], ["progress", found.progress ? progressed(found.progress) : null], ["tells", found.ack_topic]]),
      h("p", { class: "verbs" },
        found.dag ? null : verb(page, { label: "Cancel", scope: "admin", danger: true, title: "Cancel this item", say: async () => plainly(`1 item of ${found.topic}, ${found.state}, is never delivered again.`, found.state === "leased" ? " Its worker is told with its next call." : ""), run: async () => said((await send(PATHS.cancelItems, { ns }, { ids: [id] })).results[0].status) }),
        found.dag || found.state !== "disabled" ? null : verb(page, { label: "Revive", scope: "enqueue", title: "Revive this item", say: async () => plainly("1 item becomes deliverable."), run: async () => said((await send(PATHS.reviveItems, { ns }, { items: [{ id }] })).results[0].status) }))),
    part("Error", found.error),
    tries.items.length ? [minor("Attempts that failed"), table([
      ["attempt", (each) => each.attempt, { right: true }], ["outcome", (each) => each.outcome.replaceAll("_", " ")], ["worker", (each) => each.worker], ["ended", (each) => ago(each.ended_at)],
      ["error", (each) => each.error, { wide: true }]], tries.items, "")] : null,
    logged(logs, minor("Log")),
    part("Payload", found.payload), part("Inputs", found.inputs), part("Metadata", found.metadata), part("Headers", found.headers), part("Ack context", found.ack_context));
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
    h("h1", {}, "Dead"), rows.length ? h("p", {}, whatToDo(page, "HeadgateItemsDie")) : null,
    table([
      ["count", (group) => group.count, { right: true }],
      ["of DAGs", (group) => group.managed || null, { right: true }],
      ["topic", (group) => h("a", { href: page.link(["topics", group.topic], { state: "dead" }) }, group.topic)],
      ["error", (group) => group.error, { wide: true }],
      ["oldest", (group) => ago(group.oldest)],
      ["newest", (group) => ago(group.newest)],
      ["an id", (group) => h("a", { href: page.link(["items", group.sample_id]) }, short(group.sample_id))],
      ["", (group) => h("span", { class: "verbs" },
        group.count > group.managed ? [bulk(page, "Redrive", "redrive", { topic: group.topic, error: group.error }), bulk(page, "Purge", "purge", { topic: group.topic, error: group.error, state: "dead" }, true)] : null,
        group.dag ? h("a", { href: page.link(["dags", group.dag.id]) }, "its DAG") : null)],
    ], rows, "Nothing is dead."),
    rows.length ? [h("p", { class: "quiet" }, "When the cause is mended, put them back; what a DAG is made of runs again in its DAG:"),
      rows.slice(0, 5).flatMap((group) => [
        group.count > group.managed ? command(`headgate redrive --topic ${quoted(group.topic)} --error ${quoted(group.error)}`) : null,
        group.dag ? command(`headgate dag retry ${group.dag.id}`) : null])] : null);
}

export async function operations(page) {
  const found = await ask(PATHS.operations, { ns: page.ns }, { limit: PAGE, cursor: page.query.cursor });
  page.show(
    h("h1", {}, "Operations"),
    table([
      ["state", (each) => badge(each.state)],
      ["kind", (each) => each.kind],
      ["of", (each) => h("code", {}, Object.entries(each.filter).filter(([, value]) => value !== null).map(([name, value]) => `${name}=${json(value, 60)}`).join(", ") || "everything"), { wide: true }],
      ["done", (each) => bar({ succeeded: each.state === "done" ? 1 : each.scanned, blocked: each.state === "done" ? 0 : Math.max(0, each.total - each.scanned) }, ["succeeded", "blocked"]), { wide: true }],
      ["changed", (each) => each.changed, { right: true }],
      ["left alone", (each) => each.skipped || null, { right: true }],
      ["begun", (each) => ago(each.requested_at)],
      ["id", (each) => short(each.id)],
      ["", (each) => (each.state === "running" ? verb(page, { label: "Stop", scope: "admin", title: `Stop this ${each.kind}`, say: async () => plainly(`It stops where it is; ${number(each.changed)} are changed and stay so.`), run: async () => { await send(PATHS.cancelOperation, { ns: page.ns, operation: each.id }); } }) : null)],
    ], found.items, "No purge, redrive or cancel of many items within the last week."),
    pager(page, ["operations"], page.query, found.next_cursor));
}

export async function namespaces(page) {
  const found = await all(PATHS.namespaces);
  const use = (used, limit, form = number) => (limit === null ? said(used === null ? null : form(used)) : [`${form(used || 0)} of ${form(limit)}`, bar({ [used > limit * 0.9 ? "failed" : "released"]: used || 0, blocked: Math.max(0, limit - (used || 0)) }, ["failed", "released", "blocked"])]);
  page.show(h("h1", {}, "Namespaces"), table([
    ["namespace", (each) => h("a", { href: `#/${encodeURIComponent(each.namespace)}/topics` }, each.namespace), { wide: true }],
    ["enqueued in the last minute", (each) => use(each.enqueued_last_minute, each.enqueues_per_minute), { right: true }],
    ["in flight", (each) => use(each.in_flight, each.in_flight_max), { right: true }],
    ["items", (each) => use(each.items, each.items_max), { right: true }],
    ["stored", (each) => use(each.stored_bytes, each.stored_bytes_max, bytes), { right: true }],
    ["", (each) => quotas(page, each)],
  ], found.sort((one, other) => other.items - one.items), "No namespaces yet."));
}

const QUOTAS = [["enqueues_per_minute", "Enqueues a minute"], ["in_flight_max", "Leased at once"], ["items_max", "Items"], ["stored_bytes_max", "Stored bytes"]];

function quotas(page, each) {
  const names = { ns: each.namespace };
  // A call sets all quotas: those that this reader leaves alone stay as they are by then, whoever has set them meanwhile.
  const wanted = async (values) => {
    const now = await ask(PATHS.namespace, names), given = (name) => (values[name] === "" ? null : Number(values[name]));
    return { now, next: Object.fromEntries(QUOTAS.map(([name]) => [name, values[name] === String(each[name] ?? "") ? now[name] ?? null : given(name)])) };
  };
  return verb(page, { label: "Quotas", scope: "admin", title: `Quotas of ${each.namespace}`, ask: QUOTAS.map(([name, text]) => [name, `${text} (empty: no limit)`, each[name] ?? "", { inputmode: "numeric", pattern: "[0-9]*" }]),
    say: async (values) => {
      const { now, next } = await wanted(values);
      const changed = QUOTAS.filter(([name]) => (now[name] ?? null) !== next[name]);
      return { stop: !changed.length || Object.values(next).some((value) => value !== null && !Number.isSafeInteger(value)), parts: changed.length ? h("ul", {}, changed.map(([name, text]) => h("li", {}, `${text}: ${said(now[name])} → ${said(next[name])}`))) : h("p", { class: "quiet" }, "Nothing changes yet.") };
    },
    run: async (values) => { await send(PATHS.namespace, names, (await wanted(values)).next, "PUT"); return h("p", {}, "In force on every process within a second."); } });
}
