// Asks the service that this page came from, and through it the other one. The token, where one is needed, lives as
// long as the tab.

export const SERVICE = document.documentElement.dataset.service;

// Which service a call is of, and its path.
export const PATHS = {
  me: [SERVICE, "/v1/me"],
  topics: ["queue", "/v1/namespaces/{ns}/topics"],
  items: ["queue", "/v1/namespaces/{ns}/items"],
  item: ["queue", "/v1/namespaces/{ns}/items/{item_id}"],
  itemStates: ["queue", "/v1/namespaces/{ns}/items/states"],
  attempts: ["queue", "/v1/namespaces/{ns}/items/{item_id}/attempts"],
  logs: ["queue", "/v1/namespaces/{ns}/items/{item_id}/logs"],
  cancelItems: ["queue", "/v1/namespaces/{ns}/cancel"],
  reviveItems: ["queue", "/v1/namespaces/{ns}/revive"],
  why: ["queue", "/v1/namespaces/{ns}/why"],
  dagWhy: ["dag", "/v1/namespaces/{ns}/dags/{dag}/why"],
  workers: ["queue", "/v1/namespaces/{ns}/workers"],
  pauseTopic: ["queue", "/v1/namespaces/{ns}/topics/pause"],
  resumeTopic: ["queue", "/v1/namespaces/{ns}/topics/resume"],
  dead: ["queue", "/v1/namespaces/{ns}/dead"],
  operations: ["queue", "/v1/namespaces/{ns}/operations"],
  cancelOperation: ["queue", "/v1/namespaces/{ns}/operations/{operation}/cancel"],
  namespaces: ["queue", "/v1/namespaces"],
  namespace: ["queue", "/v1/namespaces/{ns}"],
  queueShards: ["queue", "/v1/shards"],
  queueShard: ["queue", "/v1/shards/{shard}"],
  queueInspection: ["queue", "/v1/shards/{shard}/inspection"],
  dagInspection: ["dag", "/v1/shards/{shard}/inspection"],
  queueHistory: ["queue", "/v1/history"],
  dags: ["dag", "/v1/namespaces/{ns}/dags"],
  dag: ["dag", "/v1/namespaces/{ns}/dags/{dag}"],
  externals: ["dag", "/v1/namespaces/{ns}/externals"],
  graph: ["dag", "/v1/namespaces/{ns}/dags/{dag}/graph"],
  nodes: ["dag", "/v1/namespaces/{ns}/dags/{dag}/nodes"],
  node: ["dag", "/v1/namespaces/{ns}/dags/{dag}/node"],
  frontier: ["dag", "/v1/namespaces/{ns}/dags/{dag}/frontier"],
  timeline: ["dag", "/v1/namespaces/{ns}/dags/{dag}/timeline"],
  events: ["dag", "/v1/namespaces/{ns}/dags/{dag}/events"],
  releaseDag: ["dag", "/v1/namespaces/{ns}/dags/{dag}/release"],
  closeDag: ["dag", "/v1/namespaces/{ns}/dags/{dag}/close"],
  pauseDag: ["dag", "/v1/namespaces/{ns}/dags/{dag}/pause"],
  resumeDag: ["dag", "/v1/namespaces/{ns}/dags/{dag}/resume"],
  cancelDag: ["dag", "/v1/namespaces/{ns}/dags/{dag}/cancel"],
  retryDag: ["dag", "/v1/namespaces/{ns}/dags/{dag}/retry"],
  skipNodes: ["dag", "/v1/namespaces/{ns}/dags/{dag}/skip"],
  cancelNodes: ["dag", "/v1/namespaces/{ns}/dags/{dag}/nodes/cancel"],
  resolve: ["dag", "/v1/namespaces/{ns}/dags/{dag}/resolve"],
  timelines: ["dag", "/v1/namespaces/{ns}/dags/{dag}/timelines"],
  runOfDag: ["dag", "/v1/namespaces/{ns}/dags/{dag}/run"],
  runHistory: ["dag", "/v1/namespaces/{ns}/dags/{dag}/history"],
  runs: ["dag", "/v1/namespaces/{ns}/workflows"],
  run: ["dag", "/v1/namespaces/{ns}/workflows/{workflow}"],
  signalRun: ["dag", "/v1/namespaces/{ns}/workflows/{workflow}/signals"],
  pauseRun: ["dag", "/v1/namespaces/{ns}/workflows/{workflow}/pause"],
  resumeRun: ["dag", "/v1/namespaces/{ns}/workflows/{workflow}/resume"],
  resetRun: ["dag", "/v1/namespaces/{ns}/workflows/{workflow}/reset"],
  cancelRun: ["dag", "/v1/namespaces/{ns}/workflows/{workflow}/cancel"],
  terminateRun: ["dag", "/v1/namespaces/{ns}/workflows/{workflow}/terminate"],
  schedules: ["dag", "/v1/namespaces/{ns}/schedules"],
  pauseSchedule: ["dag", "/v1/namespaces/{ns}/schedules/{schedule}/pause"],
  resumeSchedule: ["dag", "/v1/namespaces/{ns}/schedules/{schedule}/resume"],
  triggerSchedule: ["dag", "/v1/namespaces/{ns}/schedules/{schedule}/trigger"],
  queueAudit: ["queue", "/v1/audit"],
  dagAudit: ["dag", "/v1/audit"],
  dagShards: ["dag", "/v1/shards"],
  queueCommands: ["queue", "/v1/shard-commands"],
  dagCommands: ["dag", "/v1/shard-commands"],
  commandQueueShard: ["queue", "/v1/shards/{shard}/commands"],
  commandDagShard: ["dag", "/v1/shards/{shard}/commands"],
  dagHistory: ["dag", "/v1/history"],
};

const ROOT = location.pathname.replace(/\/ui\/?$/, "");
const KEY = "headgate-token";

export const token = () => sessionStorage.getItem(KEY) || "";
export const setToken = (text) => (text ? sessionStorage.setItem(KEY, text) : sessionStorage.removeItem(KEY));

export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `HTTP ${status}`);
    this.status = status;
    this.code = problem.code;
    this.outcome = problem.outcome;
  }
}

async function get([service, path], names, query = {}, options = {}) {
  const target = path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(names[name]));
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  const headers = { ...(token() ? { authorization: `Bearer ${token()}` } : {}), ...options.headers };
  const base = service === SERVICE ? ROOT : `${ROOT}/ui/${service}`;
  const answer = await fetch(`${base}${target}${asked.size ? `?${asked}` : ""}`, { ...options, headers });
  if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => ({})));
  return answer;
}

const ANSWER_MS = 30_000; // what is only looked at is asked for again after so long

export async function ask(path, names = {}, query = {}) {
  const found = await get(path, names, query, { signal: AbortSignal.timeout(ANSWER_MS) }).then((answer) => answer.json()).catch((error) => {
    throw error.name === "TimeoutError" ? new TypeError("no answer from the network in time") : error;
  });
  for (const shard of found.away || []) unheard.add(`${path[0] === "dag" ? "DAG" : "queue"} shard ${shard}`);
  return found;
}

// Shards that did not answer for lists of the page that is being drawn: what is there is missing.
const unheard = new Set();

export const missing = () => [...unheard].sort();
export const forgetMissing = () => unheard.clear();

// Changes something; `method` is POST unless it is said.
export async function send(path, names, body = {}, method = "POST") {
  return (await get(path, names, {}, { method, body: JSON.stringify(body), headers: { "content-type": "application/json", "x-headgate-page": "1" } })).json();
}

// What of several calls succeeded; what a service refused, or did not answer, is `null` and a line in `lost`.
export async function several(calls) {
  const lost = [];
  const found = await Promise.all(calls.map((call) => call.catch((error) => {
    if (!(error instanceof Refused) && !(error instanceof TypeError)) throw error;
    if (error.status === 401) throw error;
    const line = error instanceof Refused ? error.message : "The service does not answer; trying again.";
    if (!lost.includes(line)) lost.push(line);
    return null;
  })));
  return { found, lost };
}

// A list whole, up to a size that is still looked at.
export async function all(path, names = {}, query = {}, most = 10_000) {
  const found = [];
  for (let cursor = null; found.length < most;) {
    const page = await ask(path, names, { ...query, limit: 1000, cursor });
    found.push(...page.items);
    cursor = page.next_cursor;
    if (!cursor) break;
  }
  return found;
}

let known = null;

// What the reader's token allows.
export async function me() {
  const mark = token();
  if (known?.mark !== mark) known = { mark, ...(await ask(PATHS.me)) };
  return known;
}

export const forgetMe = () => { known = null; };

// How long a range of history the service can tell, in seconds.
export const reach = () => known?.history_s_max ?? 0;

// Whether a verb is shown at all; the service decides anyway.
export const can = (scope) => Boolean(known?.scopes.includes(scope));

const change = "visibilitychange";
const visible = () => new Promise((done) => {
  const look = () => { if (!document.hidden) { document.removeEventListener(change, look); done(); } };
  document.addEventListener(change, look);
  look();
});

// Every event after `after`, in order, until the DAG's end; a stream that is cut is gone on with. A page that nobody
// sees has no stream: browsers open six connections to a service, for all of its pages together.
export async function follow(names, after, signal, tell) {
  let last = after;
  for (let pause = 500; !signal.aborted; pause = Math.min(pause * 2, 8000)) {
    await visible();
    const stream = new AbortController();
    const cut = () => { if (document.hidden || signal.aborted) stream.abort(); };
    document.addEventListener(change, cut);
    signal.addEventListener("abort", cut);
    try {
      const answer = await get(PATHS.events, names, { after: last }, { signal: stream.signal });
      if (answer.status === 204) return;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        text += part.value;
        const blocks = text.split("\n\n");
        text = blocks.pop();
        const events = blocks.map((block) => block.split("\n").find((line) => line.startsWith("data:")))
          .filter(Boolean).map((line) => JSON.parse(line.slice(5)));
        if (events.length) { last = events.at(-1).id; pause = 500; tell(events); }
      }
    } catch (error) {
      if (error instanceof Refused && error.status < 500 && error.status !== 429) return;
    } finally {
      document.removeEventListener(change, cut);
      signal.removeEventListener("abort", cut);
    }
    if (signal.aborted) return;
    await new Promise((done) => setTimeout(done, pause));
  }
}
