// A graph made smaller, or larger, in place: nodes of one kind at one depth as one box, and sub-DAGs among their parent's nodes.

import { number } from "./dom.js";
import { levels } from "./graph.js";

// Which state of its nodes a box shows: the one that asks most for a look.
const SHOWN_FIRST = ["failed", "cancelled", "released", "blocked", "skipped", "succeeded"];
const WORDS = /^[^\d:./#[(]*[^\d:./#[(\s_-]/;

export const FOLDS = {
  topic: (node) => node.topic || "a DAG",
  prefix: (node) => node.key.match(WORDS)?.[0] || node.key.slice(0, 1),
};

// The graph with a box for each kind of nodes at one depth, but for those that are `open`; and which node is in which box.
export function folded(graph, by, open) {
  const places = new Map(graph.nodes.map((node, at) => [node.key, at]));
  const edges = graph.edges.map((edge) => [places.get(edge.upstream), places.get(edge.downstream)]).filter((ends) => !ends.includes(undefined));
  const depth = levels(graph.nodes.length, edges);
  const boxes = new Map();
  graph.nodes.forEach((node, at) => {
    const kind = FOLDS[by](node), key = `${depth[at]} ${kind}`;
    if (!boxes.has(key)) boxes.set(key, { key, kind, members: [] });
    boxes.get(key).members.push(node);
  });
  const box = new Map(), nodes = [];
  for (const each of boxes.values()) {
    if (each.members.length < 2 || open.has(each.key)) { nodes.push(...each.members); continue; }
    each.node = { key: each.key, topic: each.kind };
    tell(each);
    for (const node of each.members) box.set(node.key, each);
    nodes.push(each.node);
  }
  const name = (at) => box.get(graph.nodes[at].key)?.key ?? graph.nodes[at].key;
  const seen = new Set(), drawn = [];
  for (const [up, down] of edges) {
    const [upstream, downstream] = [name(up), name(down)], mark = `${upstream}\u0000${downstream}`;
    if (seen.has(mark)) continue;
    seen.add(mark);
    drawn.push({ upstream, downstream });
  }
  return { nodes, edges: drawn, box };
}

// What a box says of its nodes, as they are now.
export function tell({ node, kind, members }) {
  const counts = {};
  for (const each of members) counts[each.state] = (counts[each.state] || 0) + 1;
  node.state = SHOWN_FIRST.find((state) => counts[state]) || "blocked";
  const some = counts[node.state] < members.length ? `, ${number(counts[node.state])} ${node.state}` : "";
  node.brief = `${kind} ${some ? `${number(counts[node.state])}/` : ""}${number(members.length)}`; // its sign says of which state
  node.label = `${kind} × ${number(members.length)}${some}`;
}

// The graph with a node's sub-DAG behind that node: its first nodes follow it, what followed the node follows its last ones.
export function unfolded(graph, key, sub) {
  const name = (of) => `${key} ▸ ${of}`;
  const nodes = sub.nodes.map((node) => ({ ...node, key: name(node.key), label: `▸ ${node.key}`, of: { dag: sub.id, key: node.key } }));
  const inside = sub.edges.map((edge) => ({ upstream: name(edge.upstream), downstream: name(edge.downstream) }));
  const [begun, ended] = [new Set(inside.map((edge) => edge.downstream)), new Set(inside.map((edge) => edge.upstream))];
  const first = nodes.filter((node) => !begun.has(node.key)), last = nodes.filter((node) => !ended.has(node.key));
  const edges = graph.edges.flatMap((edge) => (edge.upstream === key && last.length ? last.map((node) => ({ upstream: node.key, downstream: edge.downstream })) : [edge]));
  return { ...graph, nodes: [...graph.nodes, ...nodes], edges: [...edges, ...first.map((node) => ({ upstream: key, downstream: node.key })), ...inside] };
}
