// The frame: which view the address names, the namespace, the token, and what is looked at afresh.
// An address is #/NAMESPACE/VIEW/ARGUMENT?QUERY, so each view can be sent to somebody.

import { Refused, setToken, token } from "./api.js";
import * as dags from "./dags.js";
import { h, put } from "./dom.js";
import * as queue from "./queue.js";

const SERVICE = document.documentElement.dataset.service;
const VIEWS = {
  queue: { topics: [queue.topics, queue.items], dead: [queue.dead], operations: [queue.operations], namespaces: [queue.namespaces], shards: [queue.shards] },
  dag: { dags: [dags.list, dags.one], shards: [dags.shards] },
}[SERVICE];
const NAMES = { dags: "DAGs", topics: "Topics", dead: "Dead", operations: "Operations", namespaces: "Namespaces", shards: "Shards" };
const EVERY_MS = 3000;
const NS = "headgate-namespace";

let leave = new AbortController();

function address() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map(decodeURIComponent);
  const asked = Object.fromEntries(new URLSearchParams(query));
  const ns = parts[0] || localStorage.getItem(NS) || "default";
  const view = VIEWS[parts[1]] ? parts[1] : Object.keys(VIEWS)[0];
  return { ns, view, argument: VIEWS[parts[1]]?.length > 1 && parts[2] ? parts[2] : null, query: asked };
}

function link(ns, path, query = {}) {
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  return `#/${[ns, ...path].map(encodeURIComponent).join("/")}${asked.size ? `?${asked}` : ""}`;
}

async function render() {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const { ns, view, argument, query } = address();
  const main = document.getElementById("main");
  localStorage.setItem(NS, ns);
  document.title = `${argument || NAMES[view]} · Headgate`;
  header(ns, view);
  const page = {
    ns, query,
    link: (path, asked) => link(ns, path, asked),
    go: (path, asked) => { location.hash = link(ns, path, asked); },
    show: (...parts) => { if (!signal.aborted) put(main, ...parts); },
    attempt: (work) => attempt(work, signal),
    again: render,
    follow: (work) => { work(signal); },
    every: (ms, work) => every(ms, work, signal),
  };
  const draw = VIEWS[view][argument ? 1 : 0];
  if (!main.childElementCount || main.dataset.at !== location.hash) put(main, h("p", { class: "empty" }, "…"));
  main.dataset.at = location.hash;
  const shown = await attempt(() => draw(page, argument), signal);
  if (shown === false && main.textContent === "…") put(main);
  // A list is looked at again while it is looked at; a DAG tells of itself.
  if (shown === false || !(view === "dags" && argument)) every(EVERY_MS, () => draw(page, argument), signal, shown === false);
}

function every(ms, work, signal, failed = false) {
  const timer = setInterval(() => {
    const busy = document.activeElement?.matches("#main input") || String(getSelection());
    if (!document.hidden && (failed || !busy)) attempt(work, signal).then((shown) => { if (failed && shown) render(); });
  }, ms);
  signal.addEventListener("abort", () => clearInterval(timer));
}

// Do it; what the service says instead is shown above what was there.
async function attempt(work, signal) {
  try {
    await work();
    if (!signal.aborted) note(null);
    return true;
  } catch (error) {
    if (signal.aborted) return null;
    if (!(error instanceof Refused) && !(error instanceof TypeError)) console.error(error);
    note(error instanceof Refused && error.status === 401 ? [token() ? `${error.message} ` : "This service asks for a token: ", tokenField()] : error instanceof Refused ? error.message : "The service does not answer; trying again.");
    return false;
  }
}

function note(parts) {
  const box = document.getElementById("note");
  if (parts && box.contains(document.activeElement)) return;
  box.hidden = !parts;
  put(box, parts);
}

function tokenField() {
  const input = h("input", { type: "password", placeholder: "hg_...", "aria-label": "token", autocomplete: "off" });
  return h("form", { onsubmit: (event) => { event.preventDefault(); setToken(input.value.trim()); document.activeElement.blur(); render(); } }, input, h("button", {}, "use this token"));
}

function header(ns, view) {
  const field = h("input", { value: ns, "aria-label": "namespace", spellcheck: "false", onchange: (event) => { location.hash = link(event.target.value.trim() || "default", [view]); } });
  put(document.getElementById("top"),
    h("a", { class: "logo", href: link(ns, [Object.keys(VIEWS)[0]]) }, "Headgate", h("span", {}, SERVICE === "dag" ? "DAGs" : "queue")),
    h("nav", {}, Object.keys(VIEWS).map((each) => h("a", { href: link(ns, [each]), "aria-current": each === view ? "page" : null }, NAMES[each]))),
    h("label", { class: "ns" }, "namespace", field),
    token() ? h("button", { type: "button", onclick: () => { setToken(""); render(); } }, "forget token") : null,
    h("a", { class: "quiet", href: "docs" }, "API"),
    h("p", { id: "note", role: "status", hidden: true }));
}

addEventListener("hashchange", render);
render();
