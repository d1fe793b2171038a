// Lines over the last hour, drawn by uPlot: small ones in tables, larger ones with axes and marks.

import { PATHS, ask, reach } from "./api.js";
import { clock, h, moment, number, span } from "./dom.js";
import uPlot from "./uplot.js";

const KEPT_MS = 5000, DAY_S = 86_400;
const asked = new Map();

const RANGES = { "15m": [900, 5, "The last 15 minutes"], "1h": [3_600, 15, "The last hour"], "6h": [21_600, 60, "The last 6 hours"], "1d": [86_400, 300, "The last day"], "7d": [604_800, 1_800, "The last 7 days"], "30d": [2_592_000, 7_200, "The last 30 days"] };

// The range that a page's charts show: what to ask for, what it is called, and the others that there are.
export function ranged(page, path) {
  const there = Object.keys(RANGES).filter((name) => RANGES[name][0] <= Math.max(reach(), 3_600));
  const chosen = there.includes(page.query.range) ? page.query.range : "1h", [span_s, step_s, words] = RANGES[chosen];
  const choice = h("div", { class: "choice", role: "group", "aria-label": "range of the charts" }, there.map((name) => h("a", {
    href: page.link(path, { ...page.query, range: name === "1h" ? null : name }), "aria-current": name === chosen ? "true" : null }, name)));
  return { asked: chosen === "1h" ? {} : { span_s, step_s }, heading: h("div", { class: "tools range" }, h("h2", {}, words), choice) };
}

// The last hour of a service; what was asked a moment ago is not asked again.
export function history(service, query) {
  const key = JSON.stringify([service, query]);
  const known = asked.get(key);
  if (known && Date.now() - known.at < KEPT_MS) return known.answer;
  const answer = ask(service === "dag" ? PATHS.dagHistory : PATHS.queueHistory, {}, query);
  if (asked.size > 50) asked.clear();
  asked.set(key, { at: Date.now(), answer });
  answer.catch(() => asked.delete(key));
  return answer;
}

// Points of one metric: of the shard, of the topic, or of all.
export function line(told, metric, where = {}) {
  const found = told?.series.find((each) => each.metric === metric
    && (where.shard === undefined || each.shard === where.shard)
    && (where.topic === undefined || (each.topic === where.topic && each.namespace === where.namespace)));
  return found ? found.values : null;
}

export const latest = (values) => values?.findLast((value) => value !== null) ?? null;

const drawn = new Map(); // charts that are on the page, by what they show

export function forgetCharts() {
  for (const { plot } of drawn.values()) plot.destroy();
  drawn.clear();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", forgetCharts);

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function times(told) {
  return Array.from({ length: told.points }, (_, at) => told.begins_at_s + at * told.step_s);
}

// A point between two gaps has no line: it is drawn as a dot.
const alone = (plot, at) => plot.data[at].flatMap((value, place, all) => (value !== null && all[place - 1] == null && all[place + 1] == null ? [place] : []));

// A small line without axes; its words are what a reader that cannot see it is told.
export function spark(key, told, values, name, format = number) {
  if (!told || !values || !values.some((value) => value !== null)) return null;
  const words = `${name}: now ${format(latest(values) ?? 0)}, at most ${format(Math.max(...values.filter((value) => value !== null)))} within the hour`;
  const data = [times(told), values];
  const known = drawn.get(key);
  if (known) {
    known.plot.setData(data);
    known.box.setAttribute("aria-label", words);
    known.box.title = words;
    return known.box;
  }
  const box = h("div", { class: "spark", role: "img", "aria-label": words, title: words });
  const plot = new uPlot({
    width: 110, height: 26, legend: { show: false }, cursor: { show: false }, padding: [2, 0, 2, 0],
    axes: [{ show: false }, { show: false }],
    scales: { x: { time: true }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), high || 1] } },
    series: [{}, { stroke: colour("released"), fill: `${colour("released")}22`, width: 1.2, points: { show: true, filter: alone, size: 3, fill: colour("released") } }],
  }, data, box);
  drawn.set(key, { plot, box });
  return box;
}

// A chart with a heading, its newest values, and marks of what happened.
export function chart(key, title, told, lines, { format = number } = {}) {
  const shown = lines.filter((each) => each.values);
  const whole = format === number ? (value) => number(value < 10 ? Math.round(value * 10) / 10 : Math.round(value)) : format;
  const words = shown.map((each) => `${each.name} ${latest(each.values) === null ? "–" : whole(latest(each.values))}`).join(", ");
  const legend = h("p", { class: "legend" }, shown.map((each) => h("span", {}, h("i", { class: `line s-${each.state}`, "aria-hidden": "true" }), `${each.name} `, h("b", {}, latest(each.values) === null ? "–" : whole(latest(each.values))))));
  if (!told || !shown.length) return h("figure", { class: "chart" }, h("figcaption", {}, title), h("p", { class: "quiet" }, "nothing sampled yet"));
  const data = [times(told), ...shown.map((each) => each.values)];
  const id = `${key} ${shown.map((each) => each.name)}`;
  let known = drawn.get(id);
  if (!known) {
    const box = h("div", { class: "plot", role: "img" });
    const axis = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    known = { box, marks: [] };
    known.plot = new uPlot({
      width: 400, height: 130, legend: { show: false }, padding: [6, 18, 0, 0],
      cursor: { points: { show: false }, y: false, sync: { key: "hour" } },
      axes: [{ ...axis, size: 22, space: 60, values: (plot, at) => at.map((s) => (plot.scales.x.max - plot.scales.x.min > 2 * DAY_S ? moment(s * 1000).slice(5, 10) : clock(s * 1000).slice(0, 5))) },
        { ...axis, size: 52, space: 28, values: (_, at) => at.map(format) }],
      scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), high ? high * 1.05 : 1] } },
      series: [{}, ...shown.map((each) => ({ stroke: colour(each.colour), width: 1.5, dash: each.dash, points: { show: true, filter: alone, size: 5, fill: colour(each.colour) } }))],
      hooks: { draw: [(plot) => drawMarks(plot, known.marks)] },
    }, data, box);
    new ResizeObserver(([entry]) => { if (entry.contentRect.width > 40) known.plot.setSize({ width: Math.floor(entry.contentRect.width), height: 130 }); }).observe(box);
    drawn.set(id, known);
  }
  known.marks = told.marks;
  known.plot.setData(data);
  known.box.setAttribute("aria-label", `${title}: ${words}`);
  return h("figure", { class: "chart" }, h("figcaption", {}, title, legend), known.box);
}

function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.lineWidth = 1;
  ctx.setLineDash([3, 3]);
  for (const mark of marks) {
    const x = plot.valToPos(mark.at_s, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = colour({ breaker: "failed", failover: "failed", drain: "skipped" }[mark.kind] || "blocked");
    ctx.beginPath();
    ctx.moveTo(Math.round(x) + 0.5, bbox.top);
    ctx.lineTo(Math.round(x) + 0.5, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

const TOGETHER_S = 10; // what several processes see within so long is one thing that happened
const SELF = ["start", "owner"]; // what a process tells of itself

export const happening = (mark) => `${mark.shard === null || mark.kind === "owner" ? "" : `shard ${mark.shard} `}${mark.text}`;

// What happened within the hour, newest first, each thing once with those that saw it.
export function happened(told, most = 8) {
  const found = [];
  for (const mark of [...(told || [])].sort((one, other) => other.at_s - one.at_s)) {
    const known = found.find((each) => each.kind === mark.kind && each.shard === mark.shard && each.text === mark.text && each.at_s - mark.at_s < TOGETHER_S);
    if (known) known.seen.add(mark.process);
    else found.push({ ...mark, seen: new Set([mark.process]) });
  }
  if (!found.length) return null;
  return h("section", {}, h("h2", {}, "What happened"), h("ul", { class: "marks" }, found.slice(0, most).map((mark) => h("li", {},
    h("time", { datetime: new Date(mark.at_s * 1000).toISOString() }, clock(mark.at_s * 1000)),
    h("span", { class: `badge s-${{ breaker: "failed", failover: "failed", drain: "skipped" }[mark.kind] || "blocked"}` }, mark.kind),
    happening(mark), SELF.includes(mark.kind) ? "" : h("span", { class: "quiet" }, ` seen by ${[...mark.seen].sort().join(", ")}`)))));
}

// From here on half of a shard's statements take so long that its work is held up.
export const SLOW_MS = 50;

// Since when a line has not been under that, of what is told; null: it is.
export function slowSince(told, values) {
  const now = latest(values);
  if (now === null || now < SLOW_MS) return null;
  const quick = values.findLastIndex((value) => value !== null && value < SLOW_MS);
  const first = values.findIndex((value, at) => at > quick && value !== null);
  return { since_s: told.begins_at_s + first * told.step_s, ms: now };
}

export const perSecond = (value) => `${number(value < 1 ? Math.round(value * 100) / 100 : Math.round(value * 10) / 10)}/s`;
export const millis = (value) => (value >= 1000 ? span(value / 1000) : `${number(Math.round(value * 100) / 100)} ms`);
export const latencies = (p50, p99) => (p50 === null ? null : `${millis(p50)} · ${millis(p99)}`);
export const seconds = (value) => span(value);
