// What every peer of Node does: see lines.py, which says the same for Python.
import { createInterface } from "node:readline";
import { readFileSync } from "node:fs";

const SENDERS = 64, AFTER_MS_MAX = 10000, QUIET_MS = 400, DRAINED_MS = 1000;
export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
export const settings = JSON.parse(process.argv[2]);
export const say = (answer) => process.stdout.write("@" + JSON.stringify(answer) + "\n");
export const job = (size) => ({ p: "x".repeat(size - 8) });
export const version = (name) =>
  JSON.parse(readFileSync(`${settings.modules}/${name}/package.json`, "utf8")).version;

// Waits until nothing has happened for a while: what one process adds may run in another.
async function quiet(progress) {
  const deadline = performance.now() + AFTER_MS_MAX;
  for (let seen = -1; progress() !== seen && performance.now() < deadline; await sleep(QUIET_MS)) seen = progress();
}

// The same numbers from the same seed (mulberry32); each process has a seed of its own.
function random(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

export class Load {
  // send(jobs) enqueues; start() starts workers and gives a function that stops them gently; `window`
  // is how many unfinished jobs keep the workers busy: more would only delay them.
  constructor(send, start, window) {
    this.window = window;
    this.send = send;
    this.start = start;
    this.sent = this.done = 0;
    // How many jobs at once the workers are to take; null: as many as is best.
    this.concurrency = null;
    this.latencies = [];
  }

  ran(at) {
    this.done += 1;
    if (this.concurrency) {
      this.last = (performance.timeOrigin + performance.now()) / 1000;
      this.first ??= this.last;
    }
    if (at) this.latencies.push(performance.timeOrigin + performance.now() - at * 1000);
  }

  fill = async ({ count }) => {
    for (let first = 0; first < count; first += 1000)
      await this.send(Array(Math.min(1000, count - first)).fill(job(128)));
    return { filled: count };
  };

  drain = async ({ concurrency }) => {
    this.done = 0;
    this.first = undefined;
    this.concurrency = concurrency;
    const stop = await this.start();
    say({ begun: true });
    const latest = performance.now() + AFTER_MS_MAX;
    while (!this.done && performance.now() < latest) await sleep(10);
    for (let before = -1; before !== this.done; await sleep(DRAINED_MS)) before = this.done;
    say({ jobs: this.done, ended_s: this.done ? [this.first, this.last] : [] });
    await stop();
    this.concurrency = null;
    return { stopped: true };
  };

  cycle = async (request) => {
    const jobs = Array(request.batch).fill(job(request.bytes ?? 128));
    let over = false;
    this.sent = this.done = 0;
    const stop = await this.start();
    const produce = async () => {
      while (!over) {
        if (this.sent - this.done >= this.window) { await sleep(2); continue; }
        this.sent += request.batch;
        await this.send(jobs);
      }
    };
    const producers = Array.from({ length: request.clients }, produce);
    // Warm is a worker whose first job has run.
    const latest = performance.now() + AFTER_MS_MAX;
    while (!this.done && performance.now() < latest) await sleep(10);
    await sleep(request.warm_s * 1000);
    say({ begun: true });
    const done = this.done, begun = performance.now();
    await sleep(request.seconds * 1000);
    say({ items: this.done - done, seconds: (performance.now() - begun) / 1000 });
    over = true;
    await Promise.all(producers);
    if (!request.backlog) await quiet(() => this.done);
    await stop();
    return { stopped: true };
  };

  latency = async (request) => {
    const choose = random(request.seed);
    const stop = await this.start();
    this.sent = this.done = 0;
    this.latencies = [];
    await sleep(request.warm_s * 1000);
    const now = () => (performance.timeOrigin + performance.now()) / 1000;
    const begun = now(), schedule = [];
    for (let at = 0; at < request.seconds; at -= Math.log(1 - choose()) / request.rate) schedule.push(begun + at);
    let next = 0;
    const sender = async () => {
      while (next < schedule.length) {
        const moment = schedule[next++];
        const wait = (moment - now()) * 1000;
        if (wait > 0) await sleep(wait);
        await this.send([{ ...job(128), at: moment }]);
      }
    };
    say({ begun: true });
    await Promise.all(Array.from({ length: SENDERS }, sender));
    await quiet(() => this.latencies.length);
    await stop();
    const found = this.latencies.map((value) => Math.round(value * 100) / 100);
    say({ latencies_ms: found, lost: schedule.length - found.length });
    return { stopped: true };
  };
}

// Answers requests until the input ends.
export async function serve(versions, verbs) {
  say({ ready: versions });
  for await (const line of createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    say(await verbs[request.do](request));
  }
  process.exit(0);
}
