// What pages do: a button where the reader's token allows it, and a dialog that says what will be done, to how many.

import { Refused, can } from "./api.js";
import { h, put } from "./dom.js";

// `say` answers what will be done, as parts of a page; `run` does it and answers what was done. `ask` are fields:
// [name, label, value, options]; their values are given to both, and to `run` a name of what is confirmed.
export function verb(page, { label, scope, title, say, run, ask = [], danger = false }) {
  if (!can(scope)) return null;
  return h("button", { type: "button", class: danger ? "danger" : null, onclick: () => confirm(page, { label, title: title || label, say, run, ask, danger }) }, label);
}

function confirm(page, { label, title, say, run, ask, danger }) {
  const told = h("div", { class: "told", role: "status" }), said = h("p", { class: "said", role: "alert", hidden: true });
  const inputs = ask.map(([name, text, value, options = {}]) => [name, text, h("input", { value: value ?? "", name, spellcheck: "false", autocomplete: "off", ...options, oninput: () => look() })]);
  const values = () => Object.fromEntries(inputs.map(([name, , input]) => [name, input.value.trim()]));
  const act = h("button", { type: "submit", class: danger ? "danger" : "main", disabled: true }, label);
  const leave = h("button", { type: "button", onclick: () => dialog.close() }, "Leave it");
  const form = h("form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); go(); } },
    inputs.map(([, text, input]) => h("label", {}, text, input)), told, said, h("p", { class: "buttons" }, leave, act));
  let running = false; // what is under way is not left before it says what came of it
  const dialog = h("dialog", { "aria-labelledby": "dialog-title", oncancel: (event) => { if (running) event.preventDefault(); }, onclose: () => { dialog.remove(); page.again(); } }, h("h2", { id: "dialog-title" }, title), form);
  let turn = 0, due = null;
  const names = new Map(); // what is confirmed once more, because nobody knows what came of it, is the same call
  const named = (meant) => names.get(meant) || names.set(meant, uuid()).get(meant);

  function look() {
    act.disabled = true;
    clearTimeout(due);
    if (!told.childElementCount) put(told, h("p", { class: "quiet" }, "Looking at what that would do."));
    const mine = (turn += 1); // so what is on its way, of what stood there before, lets nobody confirm what stands there now
    due = setTimeout(async () => {
      try {
        const { parts, stop = false } = await say(values());
        if (mine !== turn) return;
        put(told, parts);
        act.disabled = stop;
        said.hidden = true;
      } catch (error) {
        if (mine === turn) tell(error);
      }
    }, inputs.length ? 200 : 0);
  }

  function tell(error) {
    if (!(error instanceof Refused) && !(error instanceof TypeError)) console.error(error);
    said.hidden = false;
    put(said, error instanceof Refused ? `${error.message}${error.outcome === "unknown" ? ". What was asked may have been done." : ""}` : "The service does not answer; what was asked may have been done.");
  }

  async function go() {
    if (act.disabled) return;
    running = act.disabled = leave.disabled = true;
    try {
      put(told, await run(values(), named(JSON.stringify(values()))) || "Done.");
      said.hidden = true;
      act.remove();
      leave.textContent = "Close";
    } catch (error) {
      tell(error);
      act.disabled = false;
    }
    running = leave.disabled = false;
    if (!act.isConnected) leave.focus();
  }

  document.body.append(dialog);
  dialog.showModal();
  addEventListener("hashchange", () => dialog.close(), { once: true }); // it is of the page that is left
  look();
}

// `crypto.randomUUID` is only there for pages of this machine, or by TLS.
const uuid = () => "10000000-1000-4000-8000-100000000000".replace(/[018]/g, (digit) => (digit ^ (crypto.getRandomValues(new Uint8Array(1))[0] & (15 >> (digit / 4)))).toString(16));

export const plainly = (...parts) => ({ parts: h("p", {}, ...parts) });
