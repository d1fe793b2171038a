// What to do when an alert fires: all of them, and one.

import { badge, h, table } from "./dom.js";
import { RUNBOOKS } from "./runbooks.js";

const severity = (name) => badge(RUNBOOKS[name].severity === "page" ? "failed" : "skipped", RUNBOOKS[name].severity);

// Text in which backticks mark code.
const marked = (text) => text.split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part));

export function list(page) {
  page.show(h("h1", {}, "Runbooks"),
    h("p", { class: "quiet" }, "The alerts of deploy/prometheus/alerts.yaml: ", h("b", {}, "page"), " is for somebody at night, ", h("b", {}, "ticket"), " for the next morning."),
    table([
      ["", severity],
      ["alert", (name) => h("a", { href: page.link(["runbooks", name]) }, name)],
      ["what to do", (name) => marked(RUNBOOKS[name].text), { wide: true }],
    ], Object.keys(RUNBOOKS), "", (name) => page.go(["runbooks", name])));
}

export function one(page, name) {
  if (!Object.hasOwn(RUNBOOKS, name)) return page.show(h("p", { class: "empty" }, "There is no such alert. ", h("a", { href: page.link(["runbooks"]) }, "All runbooks")));
  const { text, fires } = RUNBOOKS[name];
  return page.show(h("h1", {}, severity(name), ` ${name}`), h("p", { class: "runbook" }, marked(text)),
    h("h2", { class: "minor" }, "It fires when"), h("pre", { tabindex: "0" }, fires), h("p", {}, h("a", { href: page.link(["runbooks"]) }, "All runbooks")));
}

// A link to what to do, where something is wrong.
export const whatToDo = (page, name) => h("a", { href: page.link(["runbooks", name]), title: name }, "what to do");
