// pg-boss flows. Best settings: workers woken by NOTIFY, batches of 100 a fetch and bursts while they come back full,
// the shortest intervals it takes (0.5 s for polling, 1 s for flows), and its own resolveFlow() called in a loop besides.
import { say, serve, settings, sleep, version } from "./lines.mjs";

const { PgBoss } = await import(settings.modules + "/pg-boss/dist/index.js");
const boss = new PgBoss({ connectionString: settings.dsn, max: 10, flowIntervalSeconds: 1, useListenNotify: true });
boss.on("error", () => {});
await boss.start();
await boss.createQueue("nodes", { notify: true });

async function runFlow(jobs) {
  const starts = [];
  let over = false, finished;
  const all = new Promise((done) => (finished = done));
  await boss.work("nodes", { batchSize: 100, pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5, burstWhenBatchFull: true }, async (batch) => {
    for (const _ of batch) starts.push(performance.now());
    if (starts.length >= jobs.length) finished();
  });
  const resolving = (async () => {
    while (!over) { await boss.resolveFlow().catch(() => {}); await sleep(5); }
  })();
  say({ begun: true });
  const begun = performance.now();
  await boss.flow(jobs);
  await all;
  const seconds = (performance.now() - begun) / 1000;
  over = true;
  await resolving;
  await boss.offWork("nodes");
  return { starts, seconds };
}

const chain = async ({ nodes }) => {
  const jobs = Array.from({ length: nodes }, (_, i) => ({ ref: `n${i}`, name: "nodes", ...(i ? { dependsOn: [`n${i - 1}`] } : {}) }));
  const { starts } = await runFlow(jobs);
  say({ steps_ms: starts.slice(1).map((at, i) => at - starts[i]) });
  return { stopped: true };
};
const fan = async ({ width, count = 1 }) => {
  const jobs = [];
  for (let dag = 0; dag < count; dag++) {
    const refs = Array.from({ length: width }, (_, i) => `${dag}-m${i}`);
    jobs.push({ ref: `${dag}-first`, name: "nodes" });
    for (const ref of refs) jobs.push({ ref, name: "nodes", dependsOn: [`${dag}-first`] });
    jobs.push({ ref: `${dag}-last`, name: "nodes", dependsOn: refs });
  }
  const { seconds } = await runFlow(jobs);
  say({ nodes: jobs.length, seconds });
  return { stopped: true };
};
await serve({ "pg-boss": version("pg-boss") }, { chain, fan });
