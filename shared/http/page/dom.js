// Small parts of pages. Text always goes in as text: what tenants stored must not become markup.

const SAID = new Set(["title", "aria-label"]);

export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, val] of Object.entries(value)) element.style.setProperty(key, val);
    else element.setAttribute(name, value === true ? "" : SAID.has(name) ? plain(value) : value);
  }
  return put(element, ...children);
}

// Characters that nobody sees, or that turn the direction of what stands around them, would let a name look like another
// one: they are shown, and so are spaces that are no plain ones. What joins letters of other scripts, and emoji, stays
// where it does so.
const UNSEEN = /(?!(?<=[^\0-\x7f]|[0-9#*])[\ufe00-\ufe0f\u{e0100}-\u{e01ef}])(?!(?<=[^\0-\x7f])[\u200c\u200d](?=[^\0-\x7f]))(?!(?<=[\u{1f3f4}\u{e0020}-\u{e007e}])[\u{e0020}-\u{e007f}])(?!(?<=[^\0-\x7f])\u3000)[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000\p{Default_Ignorable_Code_Point}\u061c\u2028\u2029\u2800\ufff9-\ufffb]/gu;

export function plain(text) {
  return String(text).replace(UNSEEN, (mark) => `⟨U+${mark.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

// What such an element holds alone may be a name: the spaces that it begins or ends with are shown, too.
const OF_NAMES = new Set(["a", "button", "code", "dd", "h1", "h2", "td", "title"]);
const edged = (text) => text.replace(/^ +| +$/g, (spaces) => "⟨U+0020⟩".repeat(spaces.length));

// Gives an element new content; what is null or false is left out.
export function put(element, ...children) {
  const parts = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  const shown = parts.length === 1 && OF_NAMES.has(element.localName) ? (text) => edged(plain(text)) : plain;
  element.replaceChildren(...parts.map((child) => (child instanceof Node ? child : shown(child))));
  return element;
}

export const SIGNS = {
  blocked: "○", released: "●", running: "▶", succeeded: "✓", failed: "✕", skipped: "–", cancelled: "⊘", cancelling: "⊘",
  healthy: "✓", degraded: "!", open: "✕", slow: "!", draining: "↓", unowned: "?", done: "✓",
  ready: "●", leased: "●", delayed: "○", disabled: "○", dead: "✕",
};

export function badge(state, text = state) {
  return h("span", { class: `badge s-${state}` }, h("i", { "aria-hidden": "true" }, SIGNS[state] || "·"), text);
}

// Counts by state as one bar; their words are in the title.
export function bar(counts, order) {
  const total = order.reduce((sum, state) => sum + (counts[state] || 0), 0);
  const said = order.filter((state) => counts[state]).map((state) => `${number(counts[state])} ${state}`).join(", ");
  return h("div", { class: "bar", title: said || "nothing", role: "img", "aria-label": said || "nothing" },
    order.filter((state) => counts[state]).map((state) =>
      h("span", { class: `s-${state}`, style: { "flex-grow": counts[state] / total } })));
}

// Rows under headings. A column is [heading, cell(row), options]; options: right, wide, mono.
export function table(columns, rows, empty, onclick) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  const cls = (options = {}) => Object.keys(options).filter((name) => options[name]).join(" ") || null;
  return h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, columns.map(([name, , options]) => h("th", { class: cls(options), scope: "col" }, name)))),
    h("tbody", {}, rows.map((row) => h("tr", onclick ? { class: "link", onclick: () => onclick(row) } : {},
      columns.map(([name, cell, options]) => {
        const value = said(cell(row));
        return h("td", { class: cls({ ...options, none: value === NONE }), "data-name": name }, value);
      }))))));
}

// Why something does not go on: a sentence, and of the chain of causes what it does not tell.
export function reason(page, why) {
  if (!why) return null;
  const [first, ...others] = why.causes, ofDag = why.about === "dag", whole = ofDag || why.about === "node" || !first;
  const near = [...new Set(why.causes.flatMap((cause) => cause.near))];
  const since = (cause) => (cause.since ? h("span", { class: "quiet" }, ` ${new Date(cause.since) > new Date() ? "until" : "since"} ${moment(cause.since)}`) : null);
  const rest = ofDag ? why.causes.slice(3) : !whole ? others : others.length ? why.causes : [];
  const told = ofDag ? first : why.causes.at(-1); // what the sentence ends at
  return h("div", { class: "why" },
    h("p", {}, whole ? [coded(why.sentence), told ? since(told) : null] : [coded(`${first.text[0].toUpperCase()}${first.text.slice(1)}.`), since(first)],
      near.length ? [" Did you mean ", near.map((topic, at) => [at ? " or " : "", h("a", { href: page.link(["topics", topic]) }, topic)]), "?"] : null),
    rest.length ? h("ul", {}, rest.map((cause) => h("li", {}, coded(cause.text), since(cause)))) : null);
}

// Text in which `commands` are set as such; other backticks are of what tenants wrote.
const coded = (text) => text.split(/`((?:headgate|python -m) [^`]*)`/).map((part, at) => (at % 2 ? h("code", {}, part) : part));

export function fields(pairs) {
  return h("dl", {}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

// A command that does what this page only shows; a click copies it.
export function command(text) {
  const button = h("button", { type: "button", class: "copy", title: "copy", onclick: copy }, "copy");
  function copy() {
    navigator.clipboard?.writeText(text).then(() => { button.textContent = "copied"; }, () => {});
  }
  return h("div", { class: "command" }, h("code", {}, text), button);
}

const NONE = "–";

export function said(value) {
  if (value === null || value === undefined || value === "") return NONE;
  if (typeof value === "number") return number(value);
  return value;
}

export function number(value) {
  return Number.isInteger(value) ? value.toLocaleString("en") : String(Math.round(value * 1000) / 1000);
}

export function json(value, chars = 4000) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, chars > 200 ? 2 : 0);
  return text.length > chars ? text.slice(0, chars) + " ..." : text;
}

// A duration in at most two units.
export function span(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 1) return `${Math.max(0, Math.round(seconds * 1000))}ms`;
  if (seconds < 10) return `${Math.round(seconds * 10) / 10}s`;
  let left = Math.floor(seconds);
  const parts = [];
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]) {
    const count = Math.floor(left / size);
    left -= count * size;
    if (count) parts.push(`${count}${unit}`);
  }
  return parts.slice(0, 2).join(" ");
}

export function ago(at) {
  if (!at) return NONE;
  return h("time", { datetime: at, title: moment(at) }, `${span((Date.now() - new Date(at)) / 1000)} ago`);
}

// A time of the reader's clock: of the day, and with its date.
export const clock = (at) => new Date(at).toLocaleTimeString("sv");
export const moment = (at) => new Date(at).toLocaleString("sv");

export function between(from, to) {
  return from ? span(((to ? new Date(to) : new Date()) - new Date(from)) / 1000) : NONE;
}

export function bytes(count) {
  let value = count, unit = 0;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit ? value.toFixed(1) : value} ${units[unit]}`;
}

export function short(id) {
  return h("code", { title: id }, `${id.slice(0, 8)}…${id.slice(-4)}`);
}

// A word as the shell takes it.
export function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
