// DAGs: the list, and one of them with its graph, what it waits for, and its nodes.

import { plainly, verb } from "./act.js";
import { PATHS, all, ask, follow, send } from "./api.js";
import { SIGNS, ago, badge, bar, between, clock, command, fields, h, json, moment, number, put, quoted, reason, said, short, span, table } from "./dom.js";
import { CanvasDrawing } from "./canvas.js";
import { logged } from "./queue.js";
import { FOLDS, folded, tell, unfolded } from "./folding.js";
import { Drawing } from "./graph.js";

const STATES = ["succeeded", "released", "failed", "cancelled", "skipped", "blocked"];
const DAG_STATES = ["running", "cancelling", "succeeded", "failed", "cancelled"];
const DRAWN_MAX = 30_000;
const SVG_MAX = 300; // of more, a canvas is drawn
const SMALL = 200;
const FOLDED_MIN = 30, OPEN_MAX = 8; // a graph of so many nodes can be folded; so many sub-DAGs are shown in place
const FRONTIER_MS = 2000; // between two looks at what a DAG waits for, which costs the service the most
const FRONTIER_NODES = 100, TOLD_NODES = 20;
const PAGE = 50;
const TIMED_MAX = 10_000, TIMES_SHOWN = 300;

const OUTCOMES = { acked: "succeeded", running: "running", failed: "failed", lease_expired: "skipped", timed_out: "skipped", cancelled: "cancelled", dead: "failed" };
const last = (node) => Math.max(0, ...node.attempts.map((each) => each.attempt));
const finished = (dag) => ["succeeded", "failed", "cancelled"].includes(dag.state);

export async function list(page) {
  const { ns, query } = page;
  const found = await ask(PATHS.dags, { ns }, { state: query.state, name: query.name, limit: PAGE, cursor: query.cursor });
  const name = h("input", { type: "search", placeholder: "name", "aria-label": "name", value: query.name || "",
    onchange: (event) => page.go(["dags"], { ...query, name: event.target.value, cursor: null }) });
  page.show(
    h("h1", {}, "DAGs"),
    h("div", { class: "tools" },
      h("div", { class: "choice", role: "group" }, [null, ...DAG_STATES].map((state) => h("a", {
        href: page.link(["dags"], { ...query, state, cursor: null }), "aria-current": (query.state || null) === state ? "true" : null }, state || "all"))),
      name),
    table([
      ["state", (dag) => badge(dag.state, dag.paused ? "paused" : dag.held ? "held" : dag.state)],
      ["name", (dag) => h("a", { href: page.link(["dags", dag.id]) }, dag.name || dag.key || dag.id), { wide: true }],
      ["progress", (dag) => bar(dag.nodes, STATES), { wide: true }],
      ["nodes", (dag) => dag.nodes.total, { right: true }],
      ["failed", (dag) => dag.nodes.failed || null, { right: true }],
      ["created", (dag) => ago(dag.created_at)],
      ["took", (dag) => (dag.finished_at ? between(dag.created_at, dag.finished_at) : null), { right: true }],
      ["id", (dag) => short(dag.id)],
    ], found.items, query.state || query.name ? "No such DAGs." : empty(), (dag) => page.go(["dags", dag.id])),
    pager(page, ["dags"], query, found.next_cursor));
}

function empty() {
  return h("span", {}, "No DAGs in this namespace yet. One of shell commands: ", h("code", {}, "headgate dag run FILE"), ", or ", h("code", {}, "python -m examples.fan_out"), " in a checkout.");
}

export function pager(page, path, query, next) {
  return h("p", { class: "pager" },
    query.cursor ? h("a", { href: page.link(path, { ...query, cursor: null }) }, "first page") : null,
    next ? h("a", { href: page.link(path, { ...query, cursor: next }) }, "next page") : null);
}

// One DAG. It is followed by its events, so a state is on the page as soon as it is committed.
export async function one(page, id) {
  const names = { ns: page.ns, dag: id };
  let dag = await ask(PATHS.dag, names);
  const view = page.query.view || (dag.nodes.total <= DRAWN_MAX ? "graph" : "nodes");
  const head = h("section", { class: "head" }), body = h("section", { class: "body" }), waits = h("section", { class: "waits" }), side = h("aside", { hidden: true });
  let drawing = null, chosen = page.query.node || null, explained = 0, why = null;
  let graph = null, known = new Map(), box = new Map(), subs = new Map();
  const fold = Object.hasOwn(FOLDS, page.query.fold || "") ? page.query.fold : null, open = new Set();
  page.show(head, h("div", { class: "columns" }, h("div", { class: "main" }, tabs(page, id, view), body, waits), side));

  async function draw() {
    dag = await ask(PATHS.dag, names);
    if (view === "timeline") return times();
    if (view === "grid") return grid();
    if (view !== "graph") return nodes();
    if (dag.nodes.total > DRAWN_MAX) return put(body, h("p", { class: "empty" }, `A graph of ${number(dag.nodes.total)} nodes is too large to look at; up to ${number(DRAWN_MAX)} are drawn.`));
    if (!dag.nodes.total) return put(body, h("p", { class: "empty" }, "This DAG has no nodes yet."));
    graph = await ask(PATHS.graph, names, { format: "json" });
    subs = new Map(await Promise.all([...subs.keys()].map(async (key) => [key, await graphOf(subs.get(key).id)])));
    paint();
  }

  const graphOf = (of) => ask(PATHS.graph, { ns: page.ns, dag: of }, { format: "json" });

  // The graph as it is known, with what is folded and what is open.
  function paint() {
    const whole = [...subs].reduce((sum, [key, sub]) => unfolded(sum, key, sub), graph);
    known = new Map(whole.nodes.map((node) => [node.key, node]));
    const shown = fold ? folded(whole, fold, open) : whole, large = shown.nodes.length > SVG_MAX;
    box = shown.box || new Map();
    drawing = large ? new CanvasDrawing(shown, pick) : new Drawing(shown, pick);
    drawing.choose(chosen);
    put(body, graph.nodes.length < FOLDED_MIN ? null : folds(), large ? [drawing.element, legend()] : canvas(drawing));
  }

  function folds() {
    const link = (by) => h("a", { href: page.link(["dags", id], { view: "graph", node: chosen, fold: by }), "aria-current": fold === by ? "true" : null }, by ? `by ${by}` : "each node");
    return h("div", { class: "choice", role: "group", "aria-label": "boxes" }, [null, ...Object.keys(FOLDS)].map(link),
      open.size ? h("button", { type: "button", onclick: () => { open.clear(); paint(); } }, "fold again") : null);
  }

  // A box that is clicked opens; a node tells of itself.
  function pick(key) {
    if (known.has(key)) return choose(key);
    open.add(key);
    return paint();
  }

  function stated(key, state) {
    const node = known.get(key), within = box.get(key);
    if (!node) return false;
    node.state = state;
    if (!within) return drawing.state(key, state);
    tell(within);
    return drawing.state(within.key, within.node.state, within.node.label, within.node.brief);
  }

  async function unfold(node) {
    if (subs.has(node.key)) subs.delete(node.key);
    else if (subs.size < OPEN_MAX) subs.set(node.key, await graphOf(node.dag));
    paint();
  }

  // Events tell of this DAG's own nodes; those of sub-DAGs in place are looked at again.
  async function lookInside() {
    for (const [key, sub] of subs) {
      const now = await graphOf(sub.id);
      subs.set(key, now);
      if (now.nodes.length !== sub.nodes.length) return paint();
      for (const node of now.nodes) stated(`${key} ▸ ${node.key}`, node.state);
    }
    return null;
  }

  async function nodes() {
    const { state, cursor } = page.query;
    const found = await ask(PATHS.nodes, names, { state, cursor, limit: PAGE });
    put(body,
      h("div", { class: "choice", role: "group" }, [null, ...STATES].map((each) => h("a", {
        href: page.link(["dags", id], { view: "nodes", state: each }), "aria-current": (state || null) === each ? "true" : null }, each || "all"))),
      table([
        ["state", (node) => badge(node.state)],
        ["key", (node) => node.key, { wide: true }],
        ["topic", (node) => node.topic || h("span", {}, "a DAG")],
        ["attempts", (node) => node.attempts || null, { right: true }],
        ["took", (node) => (node.finished_at && node.released_at ? between(node.released_at, node.finished_at) : null), { right: true }],
        ["waits for, or error", (node) => node.error?.trim().split("\n").at(-1) || waiting(node), { wide: true }],
      ], found.items, "No such nodes.", (node) => choose(node.key)),
      pager(page, ["dags", id], { ...page.query, view: "nodes" }, found.next_cursor));
  }

  // When each node was released, who tried it when, and when it ended, the longest of many: where the time went.
  async function times() {
    const found = await all(PATHS.timelines, names, {}, TIMED_MAX);
    const begun = found.filter((node) => node.released_at).map((node) => ({ ...node, from: Date.parse(node.released_at), to: node.ended_at ? Date.parse(node.ended_at) : Date.now() }));
    if (!begun.length) return put(body, h("p", { class: "empty" }, "Nothing was released yet."));
    const first = begun.reduce((least, node) => Math.min(least, node.from), Infinity), last = begun.reduce((most, node) => Math.max(most, node.to), 0), whole = Math.max(1, last - first);
    const shown = [...begun].sort((one, other) => (other.to - other.from) - (one.to - one.from)).slice(0, TIMES_SHOWN).sort((one, other) => one.from - other.from || one.to - other.to);
    put(body,
      h("p", { class: "quiet" }, `${span(whole / 1000)} from the first release to ${begun.every((node) => node.ended_at) ? "the last end" : "now"}.`, shown.length < begun.length ? ` Of ${number(begun.length)} nodes the ${number(TIMES_SHOWN)} that took longest are shown.` : ""),
      h("p", { class: "legend" }, [["made", "released, with no worker"], ["tried", "an attempt"]].map(([cls, words]) => h("span", {}, h("i", { class: `mark ${cls}`, "aria-hidden": "true" }), words))),
      h("ol", { class: "times lanes" }, shown.map((node) => h("li", {}, h("button", { type: "button", class: "plain", title: node.key, onclick: () => choose(node.key) }, node.key), life(node, first, whole),
        h("span", { class: "quiet" }, span((node.to - node.from) / 1000), node.attempts.length > 1 ? ` · ${node.attempts.length} tries` : "", node.attempts.at(-1)?.worker ? ` · ${node.attempts.at(-1).worker}` : "")))));
  }

  // A row for each node, a column for each attempt of its present generation: those that took most attempts first.
  async function grid() {
    const found = (await all(PATHS.timelines, names, {}, TIMED_MAX)).map((node, at) => ({ ...node, at }));
    if (!found.length) return put(body, h("p", { class: "empty" }, "This DAG has no nodes yet."));
    found.sort((one, other) => other.attempts.length - one.attempts.length || one.at - other.at);
    const shown = found.slice(0, TIMES_SHOWN), most = Math.max(1, ...shown.map((node) => last(node)));
    const cell = (node, nth) => {
      const each = node.attempts.find((one) => one.attempt === nth);
      if (!each) return h("td", { "data-name": nth });
      const words = `${node.key}, attempt ${nth}: ${each.outcome.replace("_", " ")}${each.started_at && each.ended_at ? ` after ${between(each.started_at, each.ended_at)}` : ""}${each.worker ? ` at ${each.worker}` : ""}${each.error ? `: ${each.error.trim().split("\n").at(-1)}` : ""}`;
      return h("td", { "data-name": nth }, h("span", { class: `cell s-${OUTCOMES[each.outcome] || "failed"}`, role: "img", title: words, "aria-label": words }, SIGNS[OUTCOMES[each.outcome] || "failed"]));
    };
    put(body, shown.length < found.length ? h("p", { class: "quiet" }, `Of ${number(found.length)} nodes the ${number(TIMES_SHOWN)} with most attempts.`) : null,
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "nodes and their attempts" }, h("table", { class: "grid" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "node"), h("th", { scope: "col" }, "state"), Array.from({ length: most }, (_, at) => h("th", { scope: "col" }, at ? number(at + 1) : "attempt 1")))),
        h("tbody", {}, shown.map((node) => h("tr", {}, h("th", { scope: "row" }, h("button", { type: "button", class: "plain", onclick: () => choose(node.key) }, node.key)), h("td", { "data-name": "state" }, badge(node.state)),
          Array.from({ length: most }, (_, at) => cell(node, at + 1))))))));
  }

  async function choose(key) {
    chosen = key;
    drawing?.choose(box.get(key)?.key ?? key);
    const of = known.get(key)?.of, place = of ? { ...names, dag: of.dag } : names, asked = { key: of?.key ?? key };
    const [node, life, why, whose] = await Promise.all([ask(PATHS.node, place, asked), ask(PATHS.timeline, place, asked), ask(PATHS.dagWhy, place, asked).catch(() => null), of ? ask(PATHS.dag, place) : dag]);
    const logs = node.topic ? await ask(PATHS.logs, { ns: page.ns, item_id: node.item_id }, { limit: 200 }).catch(() => null) : null;
    if (chosen !== key) return;
    const opens = side.hidden;
    side.hidden = false;
    put(side, h("button", { type: "button", class: "close", "aria-label": "close", onclick: () => { chosen = null; side.hidden = true; drawing?.choose(null); drawing?.refit?.(); } }, "×"), detail(page, whose, node, life, why, logs, of || !drawing || !node.dag ? null : h("button", { type: "button", onclick: () => page.attempt(() => unfold(node)) }, subs.has(key) ? "fold it again" : "show it here")));
    for (const pre of side.querySelectorAll(".error")) pre.scrollTop = pre.scrollHeight; // what happened stands last
    if (opens) drawing?.refit?.();
  }

  async function refresh() {
    const ended = finished(dag);
    dag = await ask(PATHS.dag, names);
    if (ended && !finished(dag)) return page.again(); // it was retried
    if (Date.now() - explained >= FRONTIER_MS) why = await ask(PATHS.dagWhy, names).catch(() => null);
    heading(page, head, dag, why);
    if (finished(dag)) put(waits);
    else if (Date.now() - explained >= FRONTIER_MS) {
      explained = Date.now();
      const frontier = await ask(PATHS.frontier, names, { limit: FRONTIER_NODES });
      drawing?.working(frontier.items.filter((node) => node.standing === "running").map((node) => node.key));
      drawing?.critical?.(frontier.longest_chain?.keys || []);
      waitsFor(waits, frontier, choose);
    }
    if (subs.size) await lookInside();
    if (chosen) await choose(chosen);
  }

  // What many events at once ask for is done once.
  let due = null, again = false;
  function soon(redraw) {
    again ||= redraw;
    due ??= setTimeout(async () => {
      due = null;
      const whole = again;
      again = false;
      await page.attempt(async () => { if (whole) await draw(); await refresh(); });
    }, dag.nodes.total > SMALL ? 1000 : 300);
  }

  await draw();
  await refresh();
  page.follow((signal) => follow(names, dag.last_event_id, signal, (events) => {
    let unknown = false;
    for (const event of events) if (event.kind === "node" && view === "graph" && drawing) unknown ||= !stated(event.key, event.state);
    soon(unknown || (view === "graph" && !drawing) || (view === "nodes" && !page.query.cursor));
  }));
  page.every(3000, refresh);
}

// A node's life on the DAG's time: from its release on, and each attempt.
function life(node, first, whole) {
  const part = (cls, from, to, words) => h("span", { class: cls, title: words, style: { left: `${((from - first) / whole) * 100}%`, width: `${Math.max(0.3, ((to - from) / whole) * 100)}%` } });
  const tried = node.attempts.filter((each) => each.started_at).map((each) => {
    const from = Date.parse(each.started_at), to = each.ended_at ? Date.parse(each.ended_at) : Date.now();
    return part(`part tried s-${OUTCOMES[each.outcome] || "failed"}`, from, to, `attempt ${each.attempt}: ${each.outcome.replace("_", " ")} after ${span((to - from) / 1000)}${each.worker ? ` at ${each.worker}` : ""}`);
  });
  const words = `${node.state}, ${number(node.attempts.length)} ${node.attempts.length === 1 ? "attempt" : "attempts"}`;
  return h("span", { class: "lane", role: "img", "aria-label": words }, part("part waited", node.from, node.to, words), tried);
}

function tabs(page, id, view) {
  return h("nav", { class: "tabs" }, ["graph", "nodes", "timeline", "grid"].map((each) =>
    h("a", { href: page.link(["dags", id], { view: each }), "aria-current": each === view ? "page" : null }, each)));
}

function heading(page, head, dag, why) {
  const flags = ["open", "held", "paused", "cleaning"].filter((flag) => dag[flag]);
  put(head,
    h("h1", {}, badge(dag.state), " ", dag.name || dag.key || "a DAG", flags.map((flag) => h("span", { class: "flag" }, flag))),
    h("p", { class: "counts" }, `${number(dag.nodes.total)} nodes: `,
      STATES.filter((state) => dag.nodes[state]).map((state) => badge(state, `${number(dag.nodes[state])} ${state}`))),
    bar(dag.nodes, STATES),
    finished(dag) ? null : reason(page, why),
    verbs(page, dag),
    fields([
      ["id", h("code", {}, dag.id)],
      ["key", dag.key && !dag.key.startsWith("sdk-") ? dag.key : null],
      ["created", ago(dag.created_at)],
      [dag.finished_at ? "took" : "runs for", between(dag.created_at, dag.finished_at)],
      ["deadline", dag.deadline_at ? moment(dag.deadline_at) : null],
      ["reason", dag.reason],
      ["resolved, and nothing waits for it", dag.undeclared.map((each) => `${each.name} of ${each.node}`).join(", ") || null],
      ["run of", dag.workflow ? h("a", { href: page.link(["runs"], { type: dag.workflow }) }, dag.workflow) : null],
      ["parent", dag.parent ? h("a", { href: page.link(["dags", dag.parent.dag], { node: dag.parent.node }) }, dag.parent.node) : null],
    ]));
}

function verbs(page, dag) {
  const names = { ns: page.ns, dag: dag.id }, { nodes } = dag, ended = finished(dag);
  const unfinished = nodes.blocked + nodes.released;
  const plain = (label, path, text) => verb(page, { label, scope: "enqueue", title: `${label} ${dag.name || dag.key || dag.id}`, say: async () => plainly(text), run: async () => { await send(path, names); } });
  return h("p", { class: "verbs" },
    nodes.failed ? verb(page, { label: "Retry failed", scope: "enqueue", title: "Retry what failed", say: async () => plainly(`${number(nodes.failed)} failed ${nodes.failed === 1 ? "node runs" : "nodes run"} again in a new generation, and what was skipped or cancelled because of them. What succeeded is kept.`), run: async () => { await send(PATHS.retryDag, names); } }) : null,
    dag.held ? plain("Release", PATHS.releaseDag, `The hold is lifted: of ${number(unfinished)} unfinished nodes those that wait for nothing else are released.`) : null,
    dag.open && !ended ? plain("Close", PATHS.closeDag, "It ends when its nodes have ended; nodes that run may still add some.") : null,
    ended ? null : dag.paused ? plain("Resume", PATHS.resumeDag, "Nodes are released again.") : plain("Pause", PATHS.pauseDag, `Of ${number(nodes.blocked)} blocked nodes none is released until it is resumed. The ${number(nodes.released)} that are released go on.`),
    ended || dag.state === "cancelling" ? null : verb(page, { label: "Cancel", scope: "enqueue", danger: true, title: `Cancel ${dag.name || dag.key || dag.id}`, ask: [["reason", "Reason", ""]],
      say: async () => plainly(h("b", {}, `${number(unfinished)} unfinished nodes`), " are cancelled, those that workers have now as well. It cannot be taken back."), run: async ({ reason }) => { await send(PATHS.cancelDag, names, reason ? { reason } : {}); } }));
}

function nodeVerbs(page, dag, node) {
  const names = { ns: page.ns, dag: dag.id };
  const external = node.blocked_by.filter((block) => block.kind === "external");
  return h("p", { class: "verbs" },
    node.state === "failed" ? verb(page, { label: "Retry", scope: "enqueue", title: `Retry ${node.key}`, say: async () => plainly("1 node runs again, and what was skipped or cancelled because of it."), run: async () => { await send(PATHS.retryDag, names, { nodes: [node.key] }); } }) : null,
    node.state === "blocked" ? verb(page, { label: "Skip", scope: "enqueue", title: `Skip ${node.key}`, say: async () => plainly(`1 node is taken as skipped; the ${number(node.downstream.length)} that wait for it decide by their triggers.`), run: async () => { await send(PATHS.skipNodes, names, { nodes: [node.key] }); } }) : null,
    ["blocked", "released"].includes(node.state) ? verb(page, { label: "Cancel node", scope: "enqueue", danger: true, title: `Cancel ${node.key}`, say: async () => plainly("1 node is cancelled; others go on by their triggers."), run: async () => { await send(PATHS.cancelNodes, names, { nodes: [node.key] }); } }) : null,
    external.map((block) => verb(page, { label: `Resolve ${block.name.length > 30 ? `${block.name.slice(0, 29)}…` : block.name}`, scope: "enqueue", title: `Resolve ${block.name} of ${node.key}`, ask: [["data", "Data (JSON, may be empty)", ""]],
      say: async ({ data }) => { let fault = null; try { if (data) JSON.parse(data); } catch { fault = "This is no JSON."; } return { stop: Boolean(fault), parts: h("p", {}, fault || "It is said to have happened, with this data.") }; },
      run: async ({ data }) => { await send(PATHS.resolve, names, { external: [{ node: node.key, name: block.name, ...(data ? { data: JSON.parse(data) } : {}) }] }); } })));
}

function canvas(drawing) {
  const box = h("div", { class: "canvas" }, drawing.element);
  let zoom = 1, fitted = true;
  const apply = () => { drawing.element.style.width = `${drawing.width * zoom}px`; drawing.element.style.height = `${drawing.height * zoom}px`; };
  const by = (factor) => { fitted = false; zoom = Math.min(3, Math.max(0.05, zoom * factor)); apply(); };
  const whole = () => { fitted = true; zoom = Math.min(1, (box.clientWidth - 4) / drawing.width, Math.max(320, innerHeight * 0.7) / drawing.height); apply(); };
  const buttons = [["−", "smaller", () => by(0.8)], ["+", "larger", () => by(1.25)], ["fit", "whole graph", whole]].map(([text, title, onclick]) => h("button", { type: "button", title, onclick }, text));
  const begin = () => { whole(); if (zoom < 0.35 && drawing.box.w > 20) { zoom = 0.7; apply(); } };
  drawing.refit = () => { if (fitted) begin(); };
  requestAnimationFrame(begin);
  return [box, legend(h("span", { class: "zoom" }, buttons))];
}

function legend(more = null) {
  return h("div", { class: "legend" }, ["blocked", "released"].map((state) => badge(state)), badge("running", "with a worker"),
    ["succeeded", "failed", "skipped", "cancelled"].map((state) => badge(state)), more);
}

function waiting(node) {
  return node.blocked_by.map((block) => block.key || block.name || block.kind).join(", ");
}

const UNASKED_TOLD_S = 15;
const KEPT = { hold: "release (it is held)", pause: "resume (it is paused)", retry: "a retry at work", close: "close (it is open, or empty)" };
const obstacle = (each) => (each.kind === "external" ? `external ${each.name}` : KEPT[each.kind] || each.kind);

function waitsFor(waits, frontier, choose) {
  const chain = frontier.longest_chain;
  put(waits,
    h("h2", {}, "What it waits for"),
    frontier.waits_for.map((each) => h("p", {}, `${obstacle(each)}, for `, ago(each.since))),
    chain?.nodes ? h("p", { class: "quiet" }, `Longest chain left: ${number(chain.nodes)} ${chain.nodes === 1 ? "node" : "nodes"}${chain.expected_s === null ? "" : `, about ${span(chain.expected_s)}`}: ${chain.keys.slice(0, 8).map((key) => (key.length > 60 ? `${key.slice(0, 40)}…${key.slice(-12)}` : key)).join(" → ")}${chain.nodes > 8 ? " → …" : ""}`) : null,
    table([
      ["state", (node) => badge({ kept: "blocked", running: "running" }[node.standing] || "released", node.standing)],
      ["node", (node) => node.key, { wide: true }],
      ["topic", (node) => node.topic || (node.dag ? "a DAG" : "a timer")],
      ["for", (node) => between(node.since), { right: true }],
      ["attempt", (node) => node.attempt || null, { right: true }],
      ["note", (node) => [node.waits_for.map(obstacle).join(", ") || node.error?.trim().split("\n").at(-1), node.worker ? `with ${node.worker}` : null,
        node.unasked_s >= UNASKED_TOLD_S ? `nobody has asked for its topic for ${span(node.unasked_s)}` : null].filter(Boolean).join("; "), { wide: true }],
    ], frontier.items.slice(0, TOLD_NODES), "No node is on its way.", (node) => choose(node.key)),
    frontier.next_cursor || frontier.items.length > TOLD_NODES ? h("p", { class: "quiet" }, "and more") : null);
}

function detail(page, dag, node, life, why, logs, inPlace) {
  const id = `${dag.id} ${quoted(node.key)}`;
  const deed = node.state === "failed" ? `headgate dag retry ${id}` : node.state === "blocked" ? `headgate dag skip ${id}` : null;
  return [
    h("h2", {}, node.key), h("p", {}, badge(node.state), node.generation > 1 ? h("span", { class: "flag" }, `generation ${node.generation}`) : null),
    ["blocked", "released", "failed"].includes(node.state) ? reason(page, why) : null,
    nodeVerbs(page, dag, node),
    fields([
      ["topic", node.topic],
      ["timer", node.timer ? (node.timer.due_at ? `due ${node.timer.due_at}` : node.timer.at ? `at ${node.timer.at}` : `${node.timer.delay_s} s`) : null],
      ["DAG", node.dag ? [h("a", { href: page.link(["dags", node.dag]) }, "its own page"), " ", inPlace] : null],
      ["trigger", node.trigger === "all_succeeded" ? null : node.trigger],
      ["runs on", node.run_on], ["compensates", node.compensates],
      ["waits for", node.blocked_by.length ? h("ul", {}, node.blocked_by.map((block) => h("li", {}, block.kind === "node" ? `${block.key} (${block.state})` : block.kind === "external" ? `external ${block.name}` : block.kind))) : null],
      ["after", node.upstream.length ? node.upstream.slice(0, 20).join(", ") + (node.upstream.length > 20 ? ` and ${node.upstream.length - 20} more` : "") : null],
      ["before", node.downstream.length ? node.downstream.slice(0, 20).join(", ") + (node.downstream.length > 20 ? ` and ${node.downstream.length - 20} more` : "") : null],
      ["item", h("code", {}, node.item_id)],
    ]),
    h("h3", {}, "Life"), h("ol", { class: "life" }, moments(life).map(([at, what, note]) => h("li", {}, h("b", {}, what), note ? ` ${note}` : "", at ? h("span", { class: "quiet" }, " ", clock(at), " · ", ago(at)) : null))),
    node.error ? [h("h3", {}, "Error"), h("pre", { class: "error" }, json(node.error))] : null,
    logged(logs),
    node.output !== null && node.output !== undefined ? [h("h3", {}, "Output"), h("pre", {}, json(node.output))] : null,
    deed ? command(deed) : null,
  ];
}

function moments(life) {
  const found = [[life.created_at, "created"]];
  if (life.generation > 1) found.push([life.generation_at, "retried", `generation ${life.generation}`]);
  if (life.released_at) found.push([life.released_at, "released", life.deliver_at ? `due ${clock(life.deliver_at)}` : ""]);
  for (const each of life.attempts) {
    const took = each.started_at && each.ended_at ? `after ${between(each.started_at, each.ended_at)}` : "";
    if (each.outcome === "running") found.push([each.started_at, `attempt ${each.attempt} runs`, each.worker ? `at ${each.worker}` : ""]);
    else found.push([each.ended_at, `attempt ${each.attempt} ${each.outcome.replace("_", " ")}`, [took, each.worker ? `at ${each.worker}` : ""].filter(Boolean).join(", ")]);
  }
  if (life.ended_at) found.push([life.ended_at, life.state]);
  return found;
}
