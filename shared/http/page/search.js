// One box: an id, a key, a topic, a DAG's name.

import { PATHS, all, ask, several } from "./api.js";
import { badge, h, number, table } from "./dom.js";

const ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
const SHOWN = 20;

export async function search(page) {
  const { ns } = page, text = page.query.q || "";
  if (!text) return page.show(h("h1", {}, "Search"), h("p", { class: "empty" }, "An id, a key, a topic, or the name of a DAG."));
  const id = ID.test(text) ? text.toLowerCase() : null;
  const { found, lost } = await several([
    id ? absent(ask(PATHS.item, { ns, item_id: id })) : none(), id ? absent(ask(PATHS.dag, { ns, dag: id })) : none(),
    ask(PATHS.dags, { ns }, { key: text, limit: 1 }), ask(PATHS.dags, { ns }, { name: text, limit: SHOWN }),
    all(PATHS.topics, { ns }), all(PATHS.schedules, { ns }),
  ]);
  const [item, dag, byKey, byName, topics, schedules] = found;
  const near = (name) => name.toLowerCase().includes(text.toLowerCase());
  const rows = [];
  if (item) rows.push(["item", h("a", { href: page.link(["items", item.id]) }, item.id), [badge(item.state), ` in ${item.topic}`]]);
  if (item?.dag) rows.push(["node", h("a", { href: page.link(["dags", item.dag.id], { node: item.dag.node }) }, item.dag.node), "whose item it is"]);
  const seen = new Set();
  for (const each of [dag, ...(byKey?.items || []), ...(byName?.items || [])]) {
    if (!each || seen.has(each.id)) continue;
    seen.add(each.id);
    rows.push(["DAG", h("a", { href: page.link(["dags", each.id]) }, each.name || each.key || each.id), [badge(each.state), ` ${number(each.nodes.total)} nodes`]]);
  }
  for (const topic of (topics || []).filter((each) => near(each.topic)).slice(0, SHOWN)) rows.push(["topic", h("a", { href: page.link(["topics", topic.topic]) }, topic.topic), `${number(topic.ready)} ready, ${number(topic.leased)} leased, ${number(topic.dead)} dead`]);
  for (const each of (schedules || []).filter((one) => near(one.id)).slice(0, SHOWN)) rows.push(["schedule", h("a", { href: page.link(["schedules"]) }, each.id), each.paused ? "paused" : ""]);
  page.show(h("h1", {}, "Search: ", text), lost.map((line) => h("p", { class: "lost", role: "alert" }, line)), table([
    ["is a", ([kind]) => kind], ["", ([, where]) => where, { wide: true }], ["", ([, , note]) => note, { wide: true }],
  ], rows, `Nothing in ${ns} has this id, key or name. Items that were acked are gone.`));
}

const none = () => Promise.resolve(null);
const absent = (call) => call.catch((error) => { if (error.status === 404 && error.code === "not_found") return null; throw error; });
