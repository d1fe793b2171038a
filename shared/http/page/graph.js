// Draws a DAG: levels from left to right, edges through points of their own on the levels between. Of many nodes it
// draws dots instead of boxes, a level as a block of several columns.

import { SIGNS, plain, put, svg } from "./dom.js";

const POINTS_MAX = 4000;
const SWEEPS = 6;

// Levels by the longest way from a root; `edges` are [from, to] positions.
export function levels(count, edges) {
  const below = Array.from({ length: count }, () => []);
  const waits = new Array(count).fill(0);
  for (const [up, down] of edges) { below[up].push(down); waits[down] += 1; }
  const level = new Array(count).fill(0);
  const ready = [];
  for (let node = 0; node < count; node += 1) if (!waits[node]) ready.push(node);
  while (ready.length) {
    const node = ready.pop();
    for (const down of below[node]) {
      level[down] = Math.max(level[down], level[node] + 1);
      waits[down] -= 1;
      if (!waits[down]) ready.push(down);
    }
  }
  return level;
}

// Where nodes go: {x: level, y: place} each, and each edge as the points it passes; `straight`: its ends only.
export function layout(count, edges, straight = false) {
  const level = levels(count, edges);
  const long = edges.reduce((sum, [up, down]) => sum + level[down] - level[up] - 1, 0);
  const chains = edges.map((edge) => edge);
  if (!straight && long <= POINTS_MAX) {
    edges.forEach(([up, down], at) => {
      const chain = [up];
      for (let between = level[up] + 1; between < level[down]; between += 1) { chain.push(level.length); level.push(between); }
      chains[at] = [...chain, down];
    });
  }
  const rows = Array.from({ length: Math.max(-1, ...level) + 1 }, () => []);
  level.forEach((at, point) => rows[at].push(point));
  const up = level.map(() => []), down = level.map(() => []);
  for (const chain of chains) for (let at = 1; at < chain.length; at += 1) { down[chain[at - 1]].push(chain[at]); up[chain[at]].push(chain[at - 1]); }
  const y = new Array(level.length).fill(0);
  for (const row of rows) row.forEach((point, at) => { y[point] = at - (row.length - 1) / 2; });
  const size = (point) => (point < count ? 1 : 0.45);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const forth = sweep % 2 === 0;
    for (const row of forth ? rows : [...rows].reverse()) place(row, forth ? up : down, y, size);
  }
  return { x: level, y, rows, chains };
}

// The same with each level as a block of columns, at most `high` places high.
function blocks({ y, rows, chains }, high) {
  const x = [], places = [];
  let left = 0;
  for (const row of rows) {
    const columns = Math.ceil(row.length / high), tall = Math.ceil(row.length / columns);
    [...row].sort((one, other) => y[one] - y[other]).forEach((point, at) => {
      x[point] = left + Math.floor(at / tall);
      places[point] = (at % tall) - (Math.min(tall, row.length) - 1) / 2;
    });
    left += columns + 1;
  }
  return { x, y: places, chains };
}

// Puts a level's points where their neighbours are on the mean, in that order and not over one another.
function place(row, beside, y, size) {
  const wanted = new Map(row.map((point) => [point, beside[point].length
    ? beside[point].reduce((sum, other) => sum + y[other], 0) / beside[point].length : y[point]]));
  row.sort((one, other) => wanted.get(one) - wanted.get(other) || y[one] - y[other]);
  const groups = [];
  for (const point of row) {
    let group = { points: [point], offsets: [0], at: wanted.get(point) };
    for (let last = groups.at(-1); last && last.at + last.offsets.at(-1) + gap(last.points.at(-1), group.points[0]) > group.at; last = groups.at(-1)) {
      const shift = last.offsets.at(-1) + gap(last.points.at(-1), group.points[0]);
      groups.pop();
      group = { points: [...last.points, ...group.points], offsets: [...last.offsets, ...group.offsets.map((offset) => offset + shift)] };
      group.at = group.points.reduce((sum, each, at) => sum + wanted.get(each) - group.offsets[at], 0) / group.points.length;
    }
    groups.push(group);
  }
  for (const group of groups) group.points.forEach((point, at) => { y[point] = group.at + group.offsets[at]; });
  function gap(one, other) { return (size(one) + size(other)) / 2; }
}

// An <svg> of a graph as the service answers it. `choose(key)` is called for a node that is clicked.
export class Drawing {
  constructor(graph, choose) {
    const places = new Map(graph.nodes.map((node, at) => [node.key, at]));
    const edges = graph.edges.map((edge) => [places.get(edge.upstream), places.get(edge.downstream)])
      .filter(([up, down]) => up !== undefined && down !== undefined);
    const small = graph.nodes.length > 120;
    this.box = small ? { w: 16, h: 16, dx: 24, dy: 24 } : { w: 168, h: 30, dx: 204, dy: 42 };
    this.elements = new Map();
    this.held = new Set(); // released nodes that a worker has
    const laid = layout(graph.nodes.length, edges, small);
    const found = small ? blocks(laid, Math.max(14, Math.round(Math.sqrt(graph.nodes.length)))) : laid;
    const xs = found.x.map((level) => level * this.box.dx), ys = found.y.map((place) => place * this.box.dy);
    const top = Math.min(0, ...ys), bottom = Math.max(0, ...ys);
    this.width = Math.max(0, ...xs) + this.box.w + 16;
    this.height = bottom - top + this.box.h + 16;
    const at = (point) => [xs[point] + 8, ys[point] - top + 8 + this.box.h / 2];
    const lines = svg("g", { class: edges.length > 800 ? "edges many" : "edges" }, found.chains.map((chain, number) => {
      const [upKey, downKey] = [graph.edges[number].upstream, graph.edges[number].downstream];
      return svg("path", { d: this.path(chain, at), "data-up": upKey, "data-down": downKey });
    }));
    const boxes = svg("g", { class: "nodes" }, graph.nodes.map((node, point) => this.node(node, at(point), small, choose)));
    this.element = svg("svg", { viewBox: `0 0 ${this.width} ${this.height}`, role: "group", "aria-label": `graph of ${graph.nodes.length} nodes` }, lines, boxes);
    this.lines = [...lines.children];
  }

  path(chain, at) {
    const [x, y] = at(chain[0]);
    let text = `M${x + this.box.w} ${y}`, from = [x + this.box.w, y];
    for (const point of chain.slice(1)) {
      const to = at(point), middle = (from[0] + to[0]) / 2;
      text += `C${middle} ${from[1]} ${middle} ${to[1]} ${to[0]} ${to[1]}`;
      from = to;
      if (point !== chain.at(-1)) { text += `h${this.box.w}`; from = [to[0] + this.box.w, to[1]]; }
    }
    return text;
  }

  node(node, [x, y], small, choose) {
    const sign = svg("text", { class: "sign", x: small ? this.box.w / 2 : 15, y: this.box.h / 2, "text-anchor": "middle" });
    const parts = [svg("title", {}, node.label && !node.of ? node.label : `${node.key} (${node.topic || "a DAG"})`), svg("rect", { width: this.box.w, height: this.box.h, rx: small ? 3 : 6 }), sign];
    if (!small) parts.push(svg("text", { class: "key", x: 28, y: this.box.h / 2 }, fit(node.brief || node.label || node.key, this.box.w - (node.dag || !node.topic ? 50 : 36)) + (node.dag || !node.topic ? " ▸" : "")));
    const element = svg("g", { transform: `translate(${x} ${y - this.box.h / 2})`, tabindex: "0", role: "button",
      onclick: () => choose(node.key), onkeydown: (event) => { if (event.key === "Enter") choose(node.key); } }, parts);
    this.elements.set(node.key, element);
    this.state(node.key, node.state);
    return element;
  }

  state(key, state, label = null, brief = label) {
    const element = this.elements.get(key);
    if (!element) return false;
    if (label) {
      put(element.querySelector("title"), label);
      const words = element.querySelector(".key");
      if (words) words.textContent = fit(brief, this.box.w - 36);
    }
    const [chosen, held] = [element.classList.contains("chosen"), state === "released" && this.held.has(key)];
    element.setAttribute("class", `node s-${state}${held ? " held" : ""}${chosen ? " chosen" : ""}`);
    element.querySelector(".sign").textContent = SIGNS[held ? "running" : state] || "";
    element.dataset.state = state;
    return true;
  }

  // Which of the released nodes a worker has now; the others wait for one.
  working(keys) {
    const before = this.held;
    this.held = new Set(keys);
    for (const key of new Set([...before, ...keys])) if (this.elements.has(key)) this.state(key, this.elements.get(key).dataset.state);
  }

  choose(key) {
    for (const [each, element] of this.elements) element.classList.toggle("chosen", each === key);
    for (const line of this.lines) line.classList.toggle("lit", line.dataset.up === key || line.dataset.down === key);
  }
}

const pen = document.createElement("canvas").getContext("2d");

// As much of a text as has room, its end kept: names of many nodes differ there.
function fit(text, px) {
  const whole = plain(text.slice(0, 400));
  pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  if (pen.measureText(whole).width <= px) return whole;
  for (let chars = Math.min(40, whole.length - 1); chars > 2; chars -= 1) {
    const cut = `${whole.slice(0, Math.ceil(chars * 0.6))}…${whole.slice(whole.length - Math.floor(chars * 0.4))}`;
    if (pen.measureText(cut).width <= px) return cut;
  }
  return "…";
}
