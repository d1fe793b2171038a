"""What `--help` shows below the options: examples, forms of files, exit codes."""

from typing import Final

EXAMPLES: Final = """\
examples:
  headgate up                                         run the services on this machine
  headgate enqueue mail '{"to": "ada@example.org"}'   put an item into topic mail
  headgate dequeue mail --wait 10 -o json             lease one, with its lease token
  headgate ack ID LEASE_TOKEN                         done: it is never delivered again
  headgate topics                                     what is waiting where
  headgate dead                                       what died, by error
  headgate watch --every 5 shards                     how the shards are, every five seconds
  headgate redrive --topic mail                       put dead items back
  headgate quotas set shop --in-flight-max 200        what a namespace may use
  headgate dag submit graph.json --watch              submit a DAG and follow it
  headgate dag run build.json --slots 4               run a DAG of shell commands here
  headgate dag explain ID                             why it is not done yet
  headgate worker media:app --processes 4             run an app's functions
  headgate logs ID --follow                           what a job, or a flow, logs

environment:
  HEADGATE_QUEUE_URL   the queue service (http://127.0.0.1:8080)
  HEADGATE_DAG_URL     the DAG service (http://127.0.0.1:8081)
  HEADGATE_NAMESPACE   whose items and DAGs (default)
  HEADGATE_TOKEN       what the services know you by, where they ask for it

exit codes:
  0 ok, 1 failure, 2 usage, 3 not found, 4 conflict, 5 unavailable
"""

DAGS: Final = """\
examples:
  headgate dag run build.json                    run a DAG of shell commands here
  headgate dag submit graph.json --watch         submit one for workers elsewhere, and follow it
  headgate dag list --state failed
  headgate dag explain ID                        what it waits for, since when, and for how long yet
  headgate dag externals                         what all of them wait for that somebody has to resolve
  headgate dag resolve ID publish approval       the event that node publish waits for
  headgate dag add ID more.json                  more nodes, while it runs
  headgate dag retry ID                          what failed, and what did not run because of it

What a FILE holds: `headgate dag submit --help`.
"""

SPEC: Final = """\
FILE holds JSON, like
  {"name": "nightly",
   "nodes": [{"key": "fetch", "topic": "etl", "payload": {"day": "2030-01-31"}},
             {"key": "clean", "topic": "etl", "upstream": ["fetch"]}],
   "dependencies": [{"upstream": "fetch", "downstream": "clean"}]}
Give it a "key" and the same file makes one DAG, however often it is submitted.
"""

RUN: Final = """\
FILE is as for submit, and a node may have `run`, a shell command:
  {"nodes": [{"key": "compile", "run": "make"},
             {"key": "test", "run": "make test", "upstream": ["compile"]}]}
The commands run on this machine. A node with `topic` and without `run` is left to other
workers. An exit code other than 0 fails the node, after `max_attempts` (here 1 by default).
The end of what a command writes is its output. It is over when its shell is; what it leaves in
the background runs on until the DAG has ended, and is then ended too. Ctrl-C and SIGTERM end the
commands and cancel the DAG.
"""


EXPORT: Final = """\
A line for each DAG, one for each of its nodes, and one that says the DAG is whole:
  {"dag": {...}}
  {"node": {..., "item": {...}}}
  {"end": "<dag id>", "finished_at": "..."}
DAGs come in the order of their ends; those of the last minutes are left for the next time.
Stopped half-way, the same command goes on behind the last whole DAG; run regularly, it appends
what is new. TIME is like 2030-01-31 or 2030-01-31T12:00:00Z.
"""
