// A large graph on a canvas: what is in view is drawn, names where there is room for them. Its places come from a worker.

import { SIGNS, h, number, plain } from "./dom.js";

const BOX = { w: 168, h: 30, dx: 214, dy: 40 };
const NAMED_PX = 11, SIGNED_PX = 5; // a box is so high, at least, to show its name, or its sign
const SLID_MIN = 2000, REST_MS = 120, STROKES = 200;
const STATES = ["blocked", "released", "running", "succeeded", "failed", "skipped", "cancelled"];

export class CanvasDrawing {
  constructor(graph, choose) {
    this.graph = graph;
    this.onchoose = choose;
    this.places = new Map(graph.nodes.map((node, at) => [node.key, at]));
    this.states = graph.nodes.map((node) => node.state);
    this.held = new Set();
    this.chosen = -1;
    this.chain = new Set();
    this.scale = 1;
    this.left = this.top = 0;
    this.fitted = true;
    const edges = graph.edges.flatMap((edge) => {
      const ends = [this.places.get(edge.upstream), this.places.get(edge.downstream)];
      return ends.includes(undefined) ? [] : ends;
    });
    this.edges = Int32Array.from(edges);
    this.canvas = h("canvas", { tabindex: "0", role: "application", "aria-label": `graph of ${number(graph.nodes.length)} nodes; arrows move it, plus and minus zoom; the nodes view lists them` });
    this.find = h("input", { type: "search", placeholder: "find a node", "aria-label": "find a node", spellcheck: "false", onkeydown: (event) => { if (event.key === "Enter") { event.preventDefault(); this.seek(event.target.value); } } });
    this.told = h("span", { class: "quiet", role: "status" }, "laying it out …");
    const button = (text, title, onclick) => h("button", { type: "button", title, "aria-label": title, onclick }, text);
    this.element = h("div", { class: "board" }, this.canvas, h("p", { class: "tools" }, this.find, this.told,
      h("span", { class: "zoom" }, button("−", "smaller", () => this.zoom(0.8)), button("+", "larger", () => this.zoom(1.25)), button("fit", "whole graph", () => this.fit()))));
    this.listen();
    this.worker = new Worker("ui/layout.js", { type: "module" });
    this.ready = new Promise((done) => {
      this.worker.onmessage = ({ data }) => { this.place(data); this.worker.terminate(); done(); };
    });
    this.worker.postMessage({ count: graph.nodes.length, edges: this.edges });
  }

  place({ x, y }) {
    this.x = x.map((column) => column * BOX.dx);
    this.y = y.map((row) => row * BOX.dy);
    this.width = Math.max(...this.x) + BOX.w;
    this.low = Math.min(...this.y);
    this.height = Math.max(...this.y) - this.low + BOX.h;
    this.told.textContent = "";
    this.size();
    this.fit();
    // Where boxes would be specks, the part that asks for a look is shown first.
    if (BOX.h * this.scale < SIGNED_PX) {
      const first = ["failed", "released", "blocked"].map((state) => this.states.indexOf(state)).find((at) => at >= 0);
      this.show(this.chosen >= 0 ? this.chosen : first ?? 0);
      this.told.textContent = `${number(this.graph.nodes.length)} nodes; a part is shown`;
    }
    this.element.dataset.drawn = "1";
  }

  // -- what is looked at --------------------------------------------------------------------------------------

  size() {
    const ratio = devicePixelRatio || 1, { clientWidth, clientHeight } = this.canvas;
    this.canvas.width = clientWidth * ratio;
    this.canvas.height = clientHeight * ratio;
    this.colours = null;
    this.soon();
  }

  fit() {
    const { clientWidth, clientHeight } = this.canvas;
    if (!this.x || !clientWidth || !clientHeight) return;
    this.scale = Math.min(1, (clientWidth - 24) / this.width, (clientHeight - 24) / this.height);
    this.left = (clientWidth - this.width * this.scale) / 2;
    this.top = (clientHeight - this.height * this.scale) / 2 - (this.low - BOX.h / 2) * this.scale;
    this.fitted = true;
    this.soon();
  }

  refit() { if (this.fitted) this.fit(); }

  zoom(factor, atX = this.canvas.clientWidth / 2, atY = this.canvas.clientHeight / 2) {
    const next = Math.min(2, Math.max(0.01, this.scale * factor));
    this.left = atX - (atX - this.left) * (next / this.scale);
    this.top = atY - (atY - this.top) * (next / this.scale);
    this.scale = next;
    this.fitted = false;
    this.slide();
  }

  move(byX, byY) {
    this.left += byX;
    this.top += byY;
    this.fitted = false;
    this.slide();
  }

  seek(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted || !this.x) return;
    const found = this.graph.nodes.flatMap((node, at) => (node.key.toLowerCase().includes(wanted) ? [at] : []));
    this.told.textContent = found.length ? `${number(found.length)} found` : "none is named so";
    if (!found.length) return;
    const next = found.find((at) => at > this.chosen) ?? found[0];
    this.show(next);
    this.onchoose(this.graph.nodes[next].key);
  }

  show(at) {
    this.scale = Math.max(this.scale, 0.7);
    this.left = this.canvas.clientWidth / 2 - (this.x[at] + BOX.w / 2) * this.scale;
    this.top = this.canvas.clientHeight / 2 - this.y[at] * this.scale;
    this.fitted = false;
    this.soon();
  }

  listen() {
    const { canvas } = this;
    let held = null, moved = false;
    canvas.addEventListener("pointerdown", (event) => { held = [event.clientX, event.clientY]; moved = false; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointermove", (event) => {
      if (!held) return;
      const [byX, byY] = [event.clientX - held[0], event.clientY - held[1]];
      if (!moved && Math.abs(byX) + Math.abs(byY) < 4) return;
      moved = true;
      held = [event.clientX, event.clientY];
      this.move(byX, byY);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (held && !moved) {
        const at = this.at(event.offsetX, event.offsetY);
        if (at >= 0) this.onchoose(this.graph.nodes[at].key);
      }
      held = null;
    });
    canvas.addEventListener("wheel", (event) => { event.preventDefault(); this.zoom(Math.exp(-event.deltaY * 0.0015), event.offsetX, event.offsetY); }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const deed = { ArrowLeft: () => this.move(80, 0), ArrowRight: () => this.move(-80, 0), ArrowUp: () => this.move(0, 80), ArrowDown: () => this.move(0, -80), "+": () => this.zoom(1.25), "-": () => this.zoom(0.8), 0: () => this.fit() }[event.key];
      if (deed) { event.preventDefault(); deed(); }
    });
    new ResizeObserver(() => { this.size(); this.refit(); }).observe(canvas);
  }

  at(pixelX, pixelY) {
    if (!this.x) return -1;
    const x = (pixelX - this.left) / this.scale, y = (pixelY - this.top) / this.scale;
    return this.x.findIndex((left, at) => x >= left && x <= left + BOX.w && Math.abs(y - this.y[at]) <= BOX.h / 2);
  }

  // -- what is told -------------------------------------------------------------------------------------------

  state(key, state, label = null, brief = label) {
    const at = this.places.get(key);
    if (at === undefined) return false;
    if (label) Object.assign(this.graph.nodes[at], { label, brief });
    this.states[at] = state;
    this.soon();
    return true;
  }

  working(keys) {
    this.held = new Set(keys.map((key) => this.places.get(key)));
    this.soon();
  }

  critical(keys) {
    this.chain = new Set(keys.map((key) => this.places.get(key)));
    this.soon();
  }

  choose(key) {
    this.chosen = this.places.get(key) ?? -1;
    this.soon();
  }

  // -- how it is drawn ----------------------------------------------------------------------------------------

  soon() {
    this.due ??= requestAnimationFrame(() => { this.due = null; this.draw(); });
  }

  // While a large graph is moved its last picture is moved; it is drawn anew when it rests.
  slide() {
    if (!this.picture?.canvas.width || this.graph.nodes.length < SLID_MIN) return this.soon();
    clearTimeout(this.rest);
    this.rest = setTimeout(() => this.soon(), REST_MS);
    this.sliding ??= requestAnimationFrame(() => { this.sliding = null; this.slid(); });
  }

  slid() {
    const { picture, canvas } = this, pen = canvas.getContext("2d"), ratio = devicePixelRatio || 1, by = this.scale / picture.scale;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(picture.canvas, (this.left - picture.left * by) * ratio, (this.top - picture.top * by) * ratio, picture.canvas.width * by, picture.canvas.height * by);
  }

  keep() {
    this.picture ??= { canvas: document.createElement("canvas") };
    const kept = this.picture.canvas;
    if (kept.width !== this.canvas.width || kept.height !== this.canvas.height) [kept.width, kept.height] = [this.canvas.width, this.canvas.height];
    const pen = kept.getContext("2d");
    pen.clearRect(0, 0, kept.width, kept.height);
    pen.drawImage(this.canvas, 0, 0);
    Object.assign(this.picture, { scale: this.scale, left: this.left, top: this.top });
  }

  palette() {
    const styles = getComputedStyle(document.documentElement), read = (name) => styles.getPropertyValue(`--${name}`).trim();
    const states = Object.fromEntries(STATES.map((state) => [state, read(state === "running" ? "released" : state)]));
    return { states, ink: read("ink"), card: read("card"), edge: read("blocked"), lit: read("link") };
  }

  draw() {
    if (!this.x || !this.canvas.width || !this.canvas.height) return; // nobody sees it
    this.colours ??= this.palette();
    const ratio = devicePixelRatio || 1, { canvas, scale, colours } = this, pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    pen.setTransform(ratio * scale, 0, 0, ratio * scale, this.left * ratio, this.top * ratio);
    const view = { left: -this.left / scale, top: -this.top / scale };
    view.right = view.left + canvas.clientWidth / scale;
    view.bottom = view.top + canvas.clientHeight / scale;
    this.drawEdges(pen, view);
    this.drawNodes(pen, view, colours);
    if (this.graph.nodes.length >= SLID_MIN) this.keep();
  }

  drawEdges(pen, view) {
    const { edges, x, y, scale, colours } = this;
    const lit = new Path2D();
    let plain = new Path2D(), strokes = 0;
    pen.globalAlpha = edges.length > 2000 ? 0.25 : 0.5;
    pen.lineWidth = 1 / Math.max(scale, 0.2);
    pen.strokeStyle = colours.edge;
    for (let at = 0; at < edges.length; at += 2) {
      const up = edges[at], down = edges[at + 1];
      const [fromX, fromY, toX, toY] = [x[up] + BOX.w, y[up], x[down], y[down]];
      if (toX < view.left || fromX > view.right || Math.max(fromY, toY) < view.top || Math.min(fromY, toY) > view.bottom) continue;
      const shown = up === this.chosen || down === this.chosen || (this.chain.has(up) && this.chain.has(down));
      const path = shown ? lit : plain;
      if (path === plain && (strokes += 1) % STROKES === 0) { pen.stroke(plain); plain = new Path2D(); plain.moveTo(fromX, fromY); } else path.moveTo(fromX, fromY);
      if (scale > 0.35) { const middle = (fromX + toX) / 2; (shown ? lit : plain).bezierCurveTo(middle, fromY, middle, toY, toX, toY); } else (shown ? lit : plain).lineTo(toX, toY);
    }
    pen.stroke(plain);
    pen.globalAlpha = 1;
    pen.lineWidth = 2 / Math.max(scale, 0.2);
    pen.strokeStyle = colours.lit;
    pen.stroke(lit);
  }

  drawNodes(pen, view, colours) {
    const seen = new Map(STATES.map((state) => [state, []]));
    for (let at = 0; at < this.x.length; at += 1) {
      if (this.x[at] > view.right || this.x[at] + BOX.w < view.left || this.y[at] - BOX.h > view.bottom || this.y[at] + BOX.h < view.top) continue;
      const state = this.states[at] === "released" && this.held.has(at) ? "running" : this.states[at];
      seen.get(state)?.push(at);
    }
    const high = BOX.h * this.scale;
    pen.textBaseline = "middle";
    for (const [state, nodes] of seen) {
      const colour = colours.states[state];
      pen.fillStyle = colours.card;
      for (const at of nodes) pen.fillRect(this.x[at], this.y[at] - BOX.h / 2, BOX.w, BOX.h);
      pen.globalAlpha = high < SIGNED_PX || state === "running" ? 0.75 : 0.3;
      pen.fillStyle = colour;
      for (const at of nodes) pen.fillRect(this.x[at], this.y[at] - BOX.h / 2, BOX.w, BOX.h);
      pen.globalAlpha = 1;
      if (high < SIGNED_PX) continue;
      pen.font = "700 13px system-ui, sans-serif";
      for (const at of nodes) pen.fillText(SIGNS[state] || "·", this.x[at] + 9, this.y[at] + 1);
      if (high < NAMED_PX) continue;
      pen.fillStyle = colours.ink;
      pen.font = "13px system-ui, sans-serif";
      for (const at of nodes) pen.fillText(fit(this.graph.nodes[at].brief || this.graph.nodes[at].label || this.graph.nodes[at].key), this.x[at] + 27, this.y[at] + 1, BOX.w - 34);
    }
    if (this.chosen >= 0) {
      pen.strokeStyle = colours.lit;
      pen.lineWidth = 3 / Math.max(this.scale, 0.2);
      pen.strokeRect(this.x[this.chosen], this.y[this.chosen] - BOX.h / 2, BOX.w, BOX.h);
    }
  }
}

function fit(key) {
  const text = plain(key);
  return text.length > 22 ? `${text.slice(0, 13)}…${text.slice(-8)}` : text;
}
