// The frame: which view the address names, the namespace, the token, and what is looked at afresh.
// An address is #/NAMESPACE/VIEW/ARGUMENT?QUERY, so each view can be sent to somebody.

import { Refused, SERVICE, can, forgetMe, forgetMissing, me, missing, setToken, token } from "./api.js";
import { forgetCharts } from "./chart.js";
import { audit } from "./audit.js";
import * as dags from "./dags.js";
import { h, plain, put } from "./dom.js";
import * as queue from "./queue.js";
import { overview } from "./overview.js";
import * as runbook from "./runbook.js";
import * as runs from "./runs.js";
import { schedules } from "./schedules.js";
import { search } from "./search.js";
import { workers } from "./workers.js";
import * as shards from "./shards.js";

// A view: its name, its list, the page of one of it, the scope that it needs, and why it is not at the top.
const VIEWS = {
  overview: ["Overview", overview, null, "ops"],
  topics: ["Topics", queue.topics, queue.topic],
  dead: ["Dead", queue.dead],
  operations: ["Operations", queue.operations],
  dags: ["DAGs", dags.list, dags.one],
  runs: ["Runs", runs.list, runs.one],
  schedules: ["Schedules", schedules],
  workers: ["Workers", workers],
  namespaces: ["Namespaces", queue.namespaces, null, "ops"],
  shards: ["Shards", shards.list, shards.one, "ops"],
  audit: ["Audit", audit, null, "ops"],
  runbooks: ["Runbooks", runbook.list, runbook.one, null, "reached by links"],
  items: [null, queue.topics, queue.item],
  search: [null, search],
};
const EVERY_MS = 3000, LATE_MS = 5000;
const NS = "headgate-namespace";

let leave = new AbortController();

function address() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map(word);
  const asked = Object.fromEntries(new URLSearchParams(query));
  const ns = parts[0] && parts[0] !== "main" ? parts[0] : localStorage.getItem(NS) || "default";
  const view = Object.hasOwn(VIEWS, parts[1] ?? "") ? parts[1] : can("ops") ? "overview" : "topics";
  return { ns, view, argument: VIEWS[view][2] && parts[2] ? parts[2] : null, query: asked };
}

function word(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function link(ns, path, query = {}) {
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  return `#/${[ns, ...path].map(encodeURIComponent).join("/")}${asked.size ? `?${asked}` : ""}`;
}

async function render() {
  if (location.hash === "#main") return document.getElementById("main").focus();
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const main = document.getElementById("main");
  main.ariaBusy = "true";
  const known = await attempt(me, signal);
  if (signal.aborted) return;
  if (known === false) {
    main.ariaBusy = "false";
    return every(EVERY_MS, me, signal, true);
  }
  const { ns, view, argument, query } = address();
  const [name, list, one] = VIEWS[view];
  localStorage.setItem(NS, ns);
  document.title = plain(`${argument || name || query.q || "Search"} · Headgate`);
  header(ns, view, query);
  const page = {
    ns, query,
    link: (path, asked) => link(ns, path, asked),
    go: (path, asked) => { location.hash = link(ns, path, asked); },
    show: (...parts) => { if (!signal.aborted) keepingFocus(main, () => put(main, lacks(), ...parts)); },
    attempt: (work) => attempt(work, signal),
    again: render,
    follow: (work) => { work(signal); },
    every: (ms, work) => every(ms, work, signal),
  };
  const draw = (...asked) => { forgetMissing(); return (argument ? one : list)(...asked); };
  if (!main.childElementCount || main.dataset.at !== location.hash) {
    forgetCharts();
    put(main, h("p", { class: "empty" }, "…"));
  }
  main.dataset.at = location.hash;
  const shown = await attempt(() => draw(page, argument), signal);
  if (!signal.aborted) main.ariaBusy = "false";
  if (shown === false && main.textContent === "…") put(main, h("h1", {}, argument || name || "Search"), h("p", { class: "empty" }, "There is nothing to show: see above."));
  // A list is looked at again while it is looked at; a DAG tells of itself.
  if (shown === false || !(view === "dags" && argument)) every(EVERY_MS, () => draw(page, argument), signal, shown === false);
}

// What lists on this page lack.
function lacks() {
  const shards = missing();
  return shards.length ? h("p", { class: "lost", role: "alert" }, `${shards.join(", ")} ${shards.length > 1 ? "do" : "does"} not answer: what is there is missing here.`) : null;
}

// Who goes through a page by keyboard stays where they are when it is drawn again.
function keepingFocus(main, draw) {
  const reach = () => [...main.querySelectorAll("a[href], button, input, select, [tabindex='0']")];
  const before = document.activeElement;
  const at = main.contains(before) && before !== main ? reach().indexOf(before) : -1;
  const mark = at < 0 ? null : before.getAttribute("href") || before.textContent;
  draw();
  if (at < 0) return;
  const now = reach();
  const same = now[at]?.getAttribute("href") === mark || now[at]?.textContent === mark ? now[at] : now.find((each) => (each.getAttribute("href") || each.textContent) === mark);
  (same || now[at])?.focus({ preventScroll: true });
}

function every(ms, work, signal, failed = false) {
  let asking = false; // a service that is slow is not asked again before it has answered
  const timer = setInterval(() => {
    const busy = document.activeElement?.matches("#main input, #main select") || document.querySelector("dialog") || String(getSelection());
    if (document.hidden || asking || (busy && !failed)) return;
    asking = true;
    attempt(work, signal).then((shown) => { asking = false; if (failed && shown) render(); });
  }, ms);
  signal.addEventListener("abort", () => clearInterval(timer));
}

// Do it; what the service says instead is shown above what was there.
async function attempt(work, signal) {
  const late = setTimeout(() => { if (!signal.aborted) note("The service has not answered yet; waiting for it."); }, LATE_MS);
  try {
    await work();
    if (!signal.aborted) note(null);
    return true;
  } catch (error) {
    if (signal.aborted) return null;
    if (!(error instanceof Refused) && !(error instanceof TypeError && /fetch|network/i.test(error.message))) console.error(error);
    note(error instanceof Refused && error.status === 401 ? [token() ? `${error.message} ` : "This service asks for a token: ", tokenField()] : error instanceof Refused ? error.message : "The service does not answer; trying again.");
    return false;
  } finally {
    clearTimeout(late);
  }
}

function note(parts) {
  if (!document.getElementById("note")) header(localStorage.getItem(NS) || "default", "", {});
  const box = document.getElementById("note");
  if (parts && box.contains(document.activeElement)) return;
  box.hidden = !parts;
  put(box, parts);
}

function tokenField() {
  const input = h("input", { type: "password", placeholder: "hg_...", "aria-label": "token", autocomplete: "off" });
  return h("form", { onsubmit: (event) => { event.preventDefault(); setToken(input.value.trim()); forgetMe(); document.activeElement.blur(); render(); } }, input, h("button", {}, "use this token"));
}

function header(ns, view, query) {
  const top = document.getElementById("top");
  if (top.contains(document.activeElement) && document.activeElement.matches("input") && top.dataset.view === view) return;
  top.dataset.view = view;
  const shown = Object.keys(VIEWS).filter((each) => VIEWS[each][0] && !VIEWS[each][4] && (!VIEWS[each][3] || can(VIEWS[each][3])));
  const field = h("input", { value: ns, "aria-label": "namespace", spellcheck: "false", onchange: (event) => { location.hash = link(event.target.value.trim() || "default", [view || "topics"]); } });
  const find = h("input", { type: "search", name: "q", placeholder: "id, key, topic, DAG", "aria-label": "search", "aria-keyshortcuts": "/", value: query.q || "", spellcheck: "false" });
  put(top,
    h("a", { class: "logo", href: link(ns, [shown[0]]) }, "Headgate"),
    h("nav", { "aria-label": "pages" }, shown.map((each) => h("a", { href: link(ns, [each]), "aria-current": each === view ? "page" : null }, VIEWS[each][0]))),
    h("form", { role: "search", onsubmit: (event) => { event.preventDefault(); find.blur(); location.hash = link(ns, ["search"], { q: find.value.trim() }); } }, find),
    h("label", { class: "ns" }, "namespace", field),
    token() ? h("button", { type: "button", onclick: () => { setToken(""); forgetMe(); render(); } }, "forget token") : null,
    h("a", { class: "quiet", href: "docs" }, "API"),
    h("p", { id: "note", role: "status", hidden: true }));
}

addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.ctrlKey && !event.metaKey && !document.activeElement?.matches("input, textarea, select")) {
    event.preventDefault();
    document.querySelector("#top input[type=search]")?.focus();
  }
});
addEventListener("hashchange", render);
render();
