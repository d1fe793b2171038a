// A worker: places of a large graph's nodes. A level is a node's longest way from a root; within its level a node stands
// near the mean of its neighbours; a wide level is folded into columns. Asked {count, edges}, answers {x, y}.

const SWEEPS = 4;

export function layout(count, edges) {
  const level = levels(count, edges);
  const rows = [];
  for (let node = 0; node < count; node += 1) (rows[level[node]] ||= []).push(node);
  const [up, down] = [neighbours(count, edges, 1), neighbours(count, edges, 0)];
  const place = new Float64Array(count), wanted = new Float64Array(count);
  for (const row of rows) row.forEach((node, at) => { place[node] = at - row.length / 2; });
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const forth = sweep % 2 === 0, beside = forth ? up : down;
    for (const row of forth ? rows : [...rows].reverse()) {
      for (const node of row) wanted[node] = mean(beside, node, place);
      row.sort((one, other) => wanted[one] - wanted[other] || one - other);
      row.forEach((node, at) => { place[node] = at - row.length / 2; });
    }
  }
  const high = Math.max(14, Math.round(Math.sqrt(count) * 0.7));
  const x = new Float32Array(count), y = new Float32Array(count);
  let left = 0;
  for (const row of rows) {
    const columns = Math.ceil(row.length / high), tall = Math.ceil(row.length / columns);
    row.forEach((node, at) => {
      const column = Math.floor(at / tall);
      x[node] = left + column;
      y[node] = (at % tall) - (Math.min(tall, row.length - column * tall) - 1) / 2;
    });
    left += columns + (columns > 1 ? 1 : 0);
  }
  return { x, y };
}

function levels(count, edges) {
  const level = new Int32Array(count), waits = new Int32Array(count), down = neighbours(count, edges, 0);
  for (let at = 1; at < edges.length; at += 2) waits[edges[at]] += 1;
  const line = [];
  for (let node = 0; node < count; node += 1) if (!waits[node]) line.push(node);
  for (let at = 0; at < line.length; at += 1) {
    const node = line[at];
    for (let to = down.from[node]; to < down.from[node + 1]; to += 1) {
      const child = down.of[to];
      level[child] = Math.max(level[child], level[node] + 1);
      waits[child] -= 1;
      if (!waits[child]) line.push(child);
    }
  }
  return level;
}

// Of each node those at the other end of its edges, one behind another; `end` is where the node itself stands.
function neighbours(count, edges, end) {
  const from = new Int32Array(count + 1), of = new Int32Array(edges.length / 2);
  for (let at = end; at < edges.length; at += 2) from[edges[at] + 1] += 1;
  for (let node = 0; node < count; node += 1) from[node + 1] += from[node];
  const next = from.slice(0, count);
  for (let at = 0; at < edges.length; at += 2) { const node = edges[at + end]; of[next[node]] = edges[at + 1 - end]; next[node] += 1; }
  return { from, of };
}

function mean({ from, of }, node, place) {
  const count = from[node + 1] - from[node];
  if (!count) return place[node];
  let sum = 0;
  for (let at = from[node]; at < from[node + 1]; at += 1) sum += place[of[at]];
  return sum / count;
}

if (typeof WorkerGlobalScope !== "undefined") {
  addEventListener("message", ({ data }) => {
    const found = layout(data.count, data.edges);
    postMessage(found, [found.x.buffer, found.y.buffer]);
  });
}
