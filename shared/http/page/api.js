// Asks the service that this page came from. The token, where one is needed, lives as long as the tab.

export const PATHS = {
  topics: "/v1/namespaces/{ns}/topics",
  items: "/v1/namespaces/{ns}/items",
  dead: "/v1/namespaces/{ns}/dead",
  operations: "/v1/namespaces/{ns}/operations",
  namespaces: "/v1/namespaces",
  shards: "/v1/shards",
  dags: "/v1/namespaces/{ns}/dags",
  dag: "/v1/namespaces/{ns}/dags/{dag}",
  graph: "/v1/namespaces/{ns}/dags/{dag}/graph",
  nodes: "/v1/namespaces/{ns}/dags/{dag}/nodes",
  node: "/v1/namespaces/{ns}/dags/{dag}/node",
  frontier: "/v1/namespaces/{ns}/dags/{dag}/frontier",
  timeline: "/v1/namespaces/{ns}/dags/{dag}/timeline",
  events: "/v1/namespaces/{ns}/dags/{dag}/events",
};

const ROOT = location.pathname.replace(/\/ui\/?$/, "");
const KEY = "headgate-token";

export const token = () => sessionStorage.getItem(KEY) || "";
export const setToken = (text) => (text ? sessionStorage.setItem(KEY, text) : sessionStorage.removeItem(KEY));

export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `HTTP ${status}`);
    this.status = status;
  }
}

async function get(path, names, query, options = {}) {
  const target = path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(names[name]));
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  const headers = token() ? { authorization: `Bearer ${token()}` } : {};
  const answer = await fetch(`${ROOT}${target}${asked.size ? `?${asked}` : ""}`, { headers, ...options });
  if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => ({})));
  return answer;
}

export async function ask(path, names = {}, query = {}) {
  return (await get(path, names, query)).json();
}

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
