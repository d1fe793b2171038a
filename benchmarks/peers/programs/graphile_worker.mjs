// graphile-worker. Best settings: those of its own performance test, with two processes: concurrency 24, a local
// queue of 500, completions in batches; jobs added by addJobs. Latency is measured without the batching that delays.
import { Load, serve, settings, version } from "./lines.mjs";

const { createRequire } = await import("node:module");
const require = createRequire(settings.modules + "/");
const { Logger, makeWorkerUtils, run } = require("graphile-worker");

const logger = new Logger(() => () => {});
const utils = await makeWorkerUtils({ connectionString: settings.dsn, maxPoolSize: 8, logger });
if (settings.first) await utils.migrate();
let batching = true;

const send = (jobs) => utils.addJobs(jobs.map((payload) => ({ identifier: "job", payload })));
const start = async () => {
  const jobs = load.concurrency ?? 24;
  const worker = { concurrentJobs: jobs, maxPoolSize: Math.min(jobs, 24) + 2, pollInterval: 500 };
  if (batching) Object.assign(worker, { localQueue: { size: 500, refetchDelay: { durationMs: 10 } }, completeJobBatchDelay: 0, failJobBatchDelay: 0 });
  const runner = await run({
    preset: { worker: { connectionString: settings.dsn, ...worker } },
    logger,
    noHandleSignals: true,
    taskList: { job: async (payload) => load.ran(payload.at) },
  });
  return () => runner.stop();
};
const load = new Load(send, start, 3000);
const latency = async (request) => {
  batching = false;
  try { return await load.latency(request); } finally { batching = true; }
};
await serve({ "graphile-worker": version("graphile-worker") }, { cycle: load.cycle, drain: load.drain, fill: load.fill, latency });
