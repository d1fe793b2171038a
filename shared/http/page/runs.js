// Runs of workflows: the list, and one of them with what its code asked for and was told, on one axis of time.

import { plainly, verb } from "./act.js";
import { PATHS, all, ask, send } from "./api.js";
import { pager } from "./dags.js";
import { ago, badge, between, fields, h, json, number, put, short, span, table } from "./dom.js";

const STATES = ["running", "succeeded", "failed", "cancelled", "continued"];
const PAGE = 50, EVENTS_MAX = 20_000, NODES_MAX = 5_000, LANES_SHOWN = 300;
// An end of a node, in the colours of nodes; a run that goes on as new has done what it should.
const COLOURS = { continued: "succeeded", added: "released", running: "released" };
const colour = (state) => COLOURS[state] || state;
const over = (run) => run.state !== "running";
const told = (run) => (run.stuck ? badge("failed", "stuck") : badge(over(run) ? colour(run.state) : "running", run.paused ? "paused" : run.state));

export async function list(page) {
  const { ns, query } = page;
  const { type, state, stuck, version, cursor } = query;
  const found = await ask(PATHS.runs, { ns }, { type, state: stuck ? null : state, version, stuck: stuck ? "true" : null, limit: PAGE, cursor });
  const field = (name, holder) => h("input", { type: "search", placeholder: holder, "aria-label": holder, value: query[name] || "",
    onchange: (event) => page.go(["runs"], { ...query, [name]: event.target.value.trim(), cursor: null }) });
  const choice = (text, wanted, chosen) => h("a", { href: page.link(["runs"], { type, version, ...wanted }), "aria-current": chosen ? "true" : null }, text);
  page.show(h("h1", {}, "Runs of workflows"),
    h("div", { class: "tools" },
      h("div", { class: "choice", role: "group", "aria-label": "state" }, choice("all", {}, !state && !stuck), STATES.map((each) => choice(each, { state: each }, state === each && !stuck)), choice("stuck", { stuck: "1" }, Boolean(stuck))),
      h("span", { class: "filters" }, field("type", "type"), field("version", "version"))),
    table([
      ["state", told],
      ["id", (run) => h("a", { href: place(page, run) }, run.id), { wide: true }],
      ["type", (run) => h("a", { href: page.link(["runs"], { ...query, type: run.type, cursor: null }) }, run.type)],
      ["version", (run) => run.version],
      ["is", (run) => (over(run) ? null : run.parked ? "parked" : "awake")],
      ["began", (run) => ago(run.started_at)],
      ["took", (run) => (run.finished_at ? between(run.started_at, run.finished_at) : null), { right: true }],
      ["events", (run) => run.last_event, { right: true }],
      ["what is wrong", (run) => lastLine(run.stuck ? `${run.stuck.code}: ${run.stuck.error}` : run.error), { wide: true }],
    ], found.items, type || state || stuck || version ? "No such runs." : h("span", {}, "No workflow has run in this namespace yet. ", h("code", {}, "client.workflows.start(type, input)"), " begins one."), (run) => { location.hash = place(page, run); }),
    pager(page, ["runs"], query, found.next_cursor));
}

// A run that was followed by another of its id is named by its DAG, too.
const place = (page, run) => page.link(["runs", run.id], { run: run.run });
const lastLine = (error) => error?.trim().split("\n").at(-1) ?? null;

// What is known of the runs that were looked at last: events, behind which the history goes on, and nodes' lives.
const read = new Map();
const LIVES_MS = 10_000; // so old may the lives be of a run that nothing new is told of

async function history(ns, run) {
  const key = `${ns} ${run.run}`;
  const before = read.get(key);
  // A reset makes void what was read before.
  const known = before?.resets === run.resets ? before : { events: [], last: 0, cut: false, lives: [], livesOf: -1, livesAt: 0, resets: run.resets };
  while (!known.cut && known.last < run.last_event) {
    const found = await ask(PATHS.runHistory, { ns, dag: run.run }, { after: known.last });
    if (!found.events.length) break;
    known.events.push(...found.events);
    known.last = found.events.at(-1).event;
    known.cut = known.events.length >= EVENTS_MAX;
  }
  if (known.livesOf !== run.last_event || (!over(run) && Date.now() - known.livesAt > LIVES_MS)) {
    known.lives = await all(PATHS.timelines, { ns, dag: run.run }, {}, NODES_MAX);
    known.livesOf = run.last_event;
    known.livesAt = Date.now();
  }
  if (read.size > 8) read.clear();
  read.set(key, known);
  // A resume takes the end of a failed run back; what a reset has made void its code is not told.
  return { ...known, events: known.events.filter((event) => !event.void && (over(run) || event.kind !== "end")) };
}

export async function one(page, id) {
  const { ns } = page;
  const last = await ask(PATHS.run, { ns, workflow: id });
  const run = page.query.run && page.query.run !== last.run ? await ask(PATHS.runOfDag, { ns, dag: page.query.run }) : last;
  const found = await history(ns, run);
  const shown = lanes(found.events, found.lives, run);
  const body = h("section", {}), side = h("aside", { hidden: true });
  let chosen = page.query.at || null;
  const choose = (lane) => {
    chosen = lane?.key ?? null;
    history_(page, run, chosen);
    side.hidden = !lane;
    if (lane) put(side, h("button", { type: "button", class: "close", "aria-label": "close", onclick: () => choose(null) }, "×"), detail(page, lane, found.events));
  };
  page.show(heading(page, run, last), h("div", { class: "columns" }, h("div", { class: "main" }, body), side));
  put(body, timeline(run, shown, found, choose));
  if (chosen) choose(shown.lanes.find((lane) => lane.key === chosen) || null);
}

// What is looked at stands in the address, so that the page finds it again when it is drawn anew.
function history_(page, run, key) {
  const link = page.link(["runs", run.id], { ...page.query, at: key });
  page.query.at = key;
  if (link !== location.hash) window.history.replaceState(null, "", link);
  document.getElementById("main").dataset.at = location.hash;
}

function heading(page, run, last) {
  const { stuck } = run;
  return h("section", { class: "head" },
    h("h1", {}, told(run), " ", run.id, [run.parked && "parked", run.paused && "paused"].filter(Boolean).map((flag) => h("span", { class: "flag" }, flag))),
    run.run === last.run ? null : h("p", { class: "quiet" }, "This is an earlier run; the id means ", h("a", { href: page.link(["runs", run.id]) }, "a later one"), " now."),
    h("p", { class: "why" }, sentence(run)),
    stuck ? h("div", { class: "stuck", role: "alert" }, fields([["event", stuck.event ? number(stuck.event) : null], ["recorded", stuck.expected], ["code asks for", stuck.got], ["line", stuck.line]]), h("pre", { class: "error" }, json(stuck.error))) : null,
    verbs(page, run),
    fields([
      ["type", h("a", { href: page.link(["runs"], { type: run.type }) }, run.type)], ["version", run.version],
      ["run", h("a", { href: page.link(["dags", run.run]) }, short(run.run))],
      ["began", ago(run.started_at)], [over(run) ? "took" : "runs for", between(run.started_at, run.finished_at)],
      ["turns", number(run.turn)], ["resets", run.resets ? number(run.resets) : null], ["events", `${number(run.seen)} of ${number(run.last_event)} seen`],
      ["parent", run.parent ? h("a", { href: page.link(["dags", run.parent]) }, short(run.parent)) : null],
      ["goes on as", run.continued_as ? h("a", { href: page.link(["runs", run.id], { run: run.continued_as }) }, short(run.continued_as)) : null]]),
    Object.keys(run.published).length ? [h("h2", { class: "minor" }, "Published"), h("dl", { class: "published" }, Object.entries(run.published).map(([key, value]) => [h("dt", {}, key), h("dd", {}, h("code", {}, json(value, 400)))]))] : null,
    run.error ? [h("h2", { class: "minor" }, "Error"), h("pre", { class: "error" }, json(run.error))] : null,
    run.output !== null && run.output !== undefined ? [h("h2", { class: "minor" }, "Output"), h("pre", {}, json(run.output))] : null);
}

function sentence(run) {
  if (run.stuck) return `Its code has not gone on for ${between(run.stuck.since)}: ${run.stuck.code}, ${number(run.stuck.attempts)} attempts. Mend the code; the next attempt goes on, at once after a resume.`;
  if (run.state === "failed") return `It has failed: ${lastLine(run.error)}`;
  if (run.state === "continued") return "It goes on as another run of the same id.";
  if (over(run)) return `It has ${run.state}.`;
  if (run.paused) return "It is paused: nothing more is released until it is resumed.";
  return run.parked ? "It waits: its code is parked until something that it asked for ends, a signal comes or a timer is due." : `A worker has its code, or will: there are ${number(run.last_event - run.seen)} events that it has not seen.`;
}

function verbs(page, run) {
  const names = { ns: page.ns, workflow: run.id };
  const plain = (label, path, words, options = {}) => verb(page, { label, scope: "enqueue", title: `${label} ${run.id}`, say: async () => plainly(words), run: async ({ reason } = {}, id) => { await send(path, names, { id, ...(reason ? { reason } : {}) }); }, ...options });
  const reason = [["reason", "Reason", ""]];
  const download = h("button", { type: "button", onclick: () => page.attempt(() => save(page, run)) }, "Download history");
  return h("p", { class: "tools verbs-and-more" }, h("span", { class: "verbs" },
    run.paused || run.stuck || run.state === "failed" ? plain("Resume", PATHS.resumeRun, run.stuck ? "1 run: its code is tried again at once, as workers have it now." : run.paused ? "1 run goes on." : "1 run that failed goes on from where its code ended: its end is taken back, and mended code decides again.") : null,
    run.stuck || run.state === "failed" ? verb(page, { label: "Replace output", scope: "enqueue", title: `Replace an output of ${run.id}`, ask: [["key", "Of which call, as card/charge#1", "", { required: true }], ["output", "Output (JSON)", "", { required: true }], ["reason", "Reason", ""]],
      say: async ({ key, output }) => { const fault = !key ? "Of which call?" : !output ? "Which output?" : notJson(output); return { stop: Boolean(fault), parts: h("p", {}, fault || `1 run goes on: its code is told this in the place of what ${key} came to. What it asked for since is void, and is asked for anew.`) }; },
      run: async ({ key, output, reason }, id) => { await send(PATHS.resumeRun, names, { id, outputs: { [key]: JSON.parse(output) }, ...(reason ? { reason } : {}) }); } }) : null,
    verb(page, { label: "Reset", scope: "enqueue", title: `Reset ${run.id}`, danger: true, ask: [["event", "To event (its number in the history)", "1", { required: true }], ["reason", "Reason", ""]],
      say: async ({ event }) => { const fault = /^[1-9][0-9]*$/.test(event || "") ? null : "An event has a number, from 1 on."; return { stop: Boolean(fault), parts: h("p", {}, fault || `1 run goes on as when its code was told of event ${event}. What it asked for since is void: it is cancelled, and asked for anew. Signals stay.`) }; },
      run: async ({ event, reason }, id) => { await send(PATHS.resetRun, names, { event: Number(event), id, ...(reason ? { reason } : {}) }); } }),
    over(run) ? null : verb(page, { label: "Signal", scope: "enqueue", title: `Signal ${run.id}`, ask: [["name", "Name", "", { required: true }], ["data", "Data (JSON, may be empty)", ""]],
      say: async ({ name, data }) => { const fault = !name ? "Which signal?" : notJson(data); return { stop: Boolean(fault), parts: h("p", {}, fault || `1 run is told ${name}; it is kept until its code receives it.`) }; },
      run: async ({ name, data }, id) => { await send(PATHS.signalRun, names, { name, data: data ? JSON.parse(data) : null, id }); } }),
    over(run) || run.paused ? null : plain("Pause", PATHS.pauseRun, "1 run: nothing more of it is released until it is resumed; what is out goes on."),
    over(run) ? null : plain("Cancel", PATHS.cancelRun, "1 run is asked to end; its code is told and may clean up.", { ask: reason, danger: true }),
    over(run) ? null : plain("Terminate", PATHS.terminateRun, "1 run is ended now, with all that it asked for; its code hears nothing of it, so it does not clean up. It cannot be taken back.", { ask: reason, danger: true })), download);
}

function notJson(data) {
  try { if (data) JSON.parse(data); } catch { return "This is no JSON."; }
  return null;
}

// The whole history as `headgate workflow replay` reads it.
async function save(page, run) {
  const names = { ns: page.ns, dag: run.run };
  let whole = null;
  do {
    const part = await ask(PATHS.runHistory, names, { after: whole?.events.at(-1)?.event ?? 0 });
    whole = { ...part, events: [...(whole?.events || []), ...part.events] };
  } while (whole.more);
  const link = h("a", { href: URL.createObjectURL(new Blob([JSON.stringify(whole)], { type: "application/json" })), download: `${run.id.replace(/[^\w.-]/g, "_")}.json` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// A lane for each thing that the code asked for, and marks for what the run was told and for its turns.
function lanes(events, nodes, run) {
  const lives = new Map(nodes.map((node) => [node.key, node]));
  const found = new Map(), marks = [], turns = [];
  for (const event of events) {
    const at = Date.parse(event.at), { kind, state } = event;
    if (event.after !== undefined && turns.at(-1) !== at) turns.push(at);
    if (kind === "run" || kind === "end") marks.push({ at, kind, words: kind === "end" ? "its code ended" : state.replace("_", " ") });
    else if (kind === "signal") marks.push({ at, kind, words: `signal ${event.data?.name ?? event.key}` });
    else if (["marker", "cancel", "publish", "answer"].includes(kind)) marks.push({ at, kind, words: event.key.replace(/^marker:/, "") });
    else {
      const lane = found.get(event.key) || { key: event.key, kind, made: at, state, ended: null, life: lives.get(event.key) };
      lane.state = state;
      if (state !== "added") lane.ended = at;
      found.set(event.key, lane);
    }
  }
  return { lanes: [...found.values()], marks, turns, begins: Date.parse(events[0]?.at ?? run.started_at), ends: over(run) ? Date.parse(run.finished_at ?? events.at(-1)?.at) : Date.now() };
}

function timeline(run, { lanes: every, marks, turns, begins, ends }, found, choose) {
  const whole = Math.max(1, ends - begins), place = (at) => `${Math.min(100, Math.max(0, ((at - begins) / whole) * 100))}%`;
  const shown = every.length > LANES_SHOWN ? every.slice(-LANES_SHOWN) : every;
  const mark = (cls, at, words) => h("i", { class: cls, title: `${words}, ${clock(at)}`, style: { left: place(at) } });
  const seen = new Set();
  const few = turns.filter((at) => { const x = Math.round(((at - begins) / whole) * 500); return !seen.has(x) && seen.add(x); });
  return [
    h("h2", {}, "Timeline"),
    h("p", { class: "quiet" }, `${span(whole / 1000)}, ${number(run.turn)} turns, ${number(every.length)} asked for.`,
      shown.length < every.length ? ` The last ${number(LANES_SHOWN)} are shown.` : "", found.cut ? ` Of the history the first ${number(EVENTS_MAX)} events are read; it can be downloaded whole.` : ""),
    h("p", { class: "legend" }, [["made", "asked for, not released"], ["tried", "an attempt"], ["turn", "a turn of its code"], ["signal", "a signal"]].map(([cls, words]) => h("span", {}, h("i", { class: `mark ${cls}`, "aria-hidden": "true" }), words))),
    h("ol", { class: "times lanes" },
      h("li", {}, h("b", {}, "the run"), h("span", { class: "lane" },
        few.map((at) => mark("turn", at, "turn")), marks.map((each) => mark(each.kind === "signal" ? "signal" : each.kind === "run" && each.words === "cancel requested" ? "asked" : "note", each.at, each.words))),
        h("span", { class: "quiet" }, `${number(marks.filter((each) => each.kind === "signal").length)} signals`)),
      shown.map((lane) => h("li", {}, h("button", { type: "button", class: "plain", title: lane.key, onclick: () => choose(lane) }, lane.key), bars(lane, begins, whole, ends),
        h("span", { class: "quiet" }, span(((lane.ended ?? ends) - lane.made) / 1000), lane.life?.attempts.length > 1 ? ` · ${lane.life.attempts.length} tries` : "")))),
    every.length ? null : h("p", { class: "empty" }, "Its code has asked for nothing yet."),
    marks.length ? [h("h2", {}, "What it was told, and what it published"), h("ul", { class: "marks" }, marks.slice(-50).reverse().map((each) => h("li", {}, h("time", { datetime: new Date(each.at).toISOString() }, clock(each.at)), h("span", { class: "badge s-blocked" }, each.kind), each.words)))] : null];
}

function bars(lane, begins, whole, ends) {
  const left = (at) => `${((at - begins) / whole) * 100}%`, width = (from, to) => `${Math.max(0.3, ((to - from) / whole) * 100)}%`;
  const part = (cls, from, to, words) => h("span", { class: cls, title: words, style: { left: left(from), width: width(from, to) } });
  const until = lane.ended ?? ends, life = lane.life;
  const released = life?.released_at ? Date.parse(life.released_at) : null;
  return h("span", { class: "lane", role: "img", "aria-label": `${lane.kind}, ${lane.state === "added" ? "unfinished" : lane.state}, ${span((until - lane.made) / 1000)}` },
    part("part waited", lane.made, until, `${lane.kind}, ${lane.state === "added" ? "waits" : lane.state}`),
    released === null && life ? null : part(`part s-${colour(lane.state)}`, Math.max(released ?? lane.made, begins), until, lane.state === "added" ? "released" : lane.state),
    (life?.attempts || []).map((each) => (each.started_at ? part(`part tried s-${each.outcome === "acked" ? "succeeded" : each.outcome === "running" ? "running" : "failed"}`, Date.parse(each.started_at), each.ended_at ? Date.parse(each.ended_at) : ends, `attempt ${each.attempt}: ${each.outcome.replace("_", " ")}${each.worker ? ` at ${each.worker}` : ""}`) : null)));
}

const clock = (at) => new Date(at).toLocaleTimeString([], { hour12: false, hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 });

function detail(page, lane, events) {
  const { life } = lane;
  const mine = events.filter((event) => event.key === lane.key && event.kind === lane.kind);
  const record = mine.find((event) => event.data?.shown), end = mine.find((event) => event.state !== "added");
  return [h("h2", {}, lane.key), h("p", {}, badge(colour(lane.state), lane.state === "added" ? "unfinished" : lane.state), h("span", { class: "flag" }, lane.kind)),
    fields([["topic", life?.topic ? h("a", { href: page.link(["topics", life.topic]) }, life.topic) : null], ["asked for", clock(lane.made)], ["released", life?.released_at ? clock(Date.parse(life.released_at)) : null],
      ["ended", lane.ended ? clock(lane.ended) : null], ["item", life?.item_id && life.topic ? h("a", { href: page.link(["items", life.item_id]) }, short(life.item_id)) : null],
      ["in its place", life && !life.topic && ["sub", "child"].includes(lane.kind) ? h("a", { href: page.link(["dags", life.item_id]) }, "open the DAG") : null],
      ["with", record ? h("code", {}, record.data.shown) : null]]),
    life?.attempts.length ? [h("h3", {}, "Attempts"), h("ol", { class: "life" }, life.attempts.map((each) => h("li", { value: each.attempt }, h("b", {}, each.outcome.replace("_", " ")), each.started_at ? ` after ${between(each.started_at, each.ended_at)}` : "", each.worker ? `, at ${each.worker}` : "", each.error ? h("div", { class: "quiet" }, lastLine(each.error)) : null)))] : null,
    end?.error || life?.error ? [h("h3", {}, "Error"), h("pre", { class: "error" }, json(end?.error || life.error))] : null,
    end?.output !== undefined ? [h("h3", {}, "Output"), h("pre", {}, json(end.output))] : null];
}
