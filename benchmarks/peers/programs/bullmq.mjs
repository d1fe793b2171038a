// BullMQ over ioredis. Best settings found: two processes that add and work, concurrency 100, addBulk, jobs removed when
// they are done.
// Its flows are the DAGs: a chain is nested children, a fan has one parent; a parent runs after its children.
import { Load, say, serve, settings, sleep, version } from "./lines.mjs";

const { createRequire } = await import("node:module");
const require = createRequire(settings.modules + "/");
const { FlowProducer, Queue, Worker } = require("bullmq");

const { hostname: host, port } = new URL(settings.redis_url);
const connection = { host, port: Number(port), maxRetriesPerRequest: null };
const queue = new Queue("jobs", { connection });
const flows = new FlowProducer({ connection });
const opts = { removeOnComplete: true, removeOnFail: true };
const CONCURRENCY = 100;

const send = (jobs) => queue.addBulk(jobs.map((data) => ({ name: "job", data, opts })));
const start = async () => {
  const worker = new Worker("jobs", async (job) => load.ran(job.data.at), { connection, concurrency: load.concurrency ?? CONCURRENCY });
  worker.on("error", () => {});
  await worker.waitUntilReady();
  return () => worker.close();
};
const load = new Load(send, start, 1000);

// Runs flows with a worker of their own; gives the times at which nodes started.
async function runFlows(trees, nodes) {
  const starts = [];
  let finished;
  const all = new Promise((done) => (finished = done));
  const worker = new Worker("nodes", async () => { starts.push(performance.now()); }, { connection, concurrency: CONCURRENCY });
  let completed = 0;
  worker.on("completed", () => { if (++completed === nodes) finished(); });
  worker.on("error", () => {});
  await worker.waitUntilReady();
  await sleep(100);
  say({ begun: true });
  const begun = performance.now();
  await flows.addBulk(trees);
  await all;
  const seconds = (performance.now() - begun) / 1000;
  await worker.close();
  return { starts, seconds };
}

const node = (children) => ({ name: "node", queueName: "nodes", data: {}, opts, ...(children ? { children } : {}) });
const tree = (width) => node(Array.from({ length: width }, () => node([])));

const chain = async ({ nodes }) => {
  let flow = node();
  for (let i = 1; i < nodes; i++) flow = node([flow]);
  const { starts } = await runFlows([flow], nodes);
  say({ steps_ms: starts.slice(1).map((at, i) => at - starts[i]) });
  return { stopped: true };
};
// A flow is a tree: the first node of 1 -> n -> 1 would have n parents, so there are n + 1 nodes.
const fan = async ({ width, count = 1 }) => {
  const nodes = (width + 1) * count;
  const { seconds } = await runFlows(Array.from({ length: count }, () => tree(width)), nodes);
  say({ nodes, seconds });
  return { stopped: true };
};
await serve({ bullmq: version("bullmq"), ioredis: version("ioredis") }, { cycle: load.cycle, drain: load.drain, fill: load.fill, latency: load.latency, chain, fan });
