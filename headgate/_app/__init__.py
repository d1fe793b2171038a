"""Functions as jobs: `App`, its typed functions, their results, and flows of calls.

A job whose result is kept is a DAG of one node, a flow is a DAG with a node per call, and a job without a
result is a bare item. The functions run in a `Worker`, each on a topic of its own.

app: an App and what it is given; function: a decorated function and the ways to call it; typed: arguments and
results by their annotations; call: a call that has not been sent, and what it refers to; flow: calls that make
one DAG; handle: jobs and runs that have been sent; results: what a node's output stands
for; failures: exceptions on their way to the caller; running: a call in a worker; batches: many calls as one;
unserved: jobs that no worker knows; tracing: OpenTelemetry; sending: what is sent, and by which client; worker:
the worker of an app; stores: where large values are kept; schedules, cron: `@app.every`; local:
`app.testing()`; processes: what `headgate worker` runs.
"""
