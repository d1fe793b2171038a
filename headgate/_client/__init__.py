"""The clients of both services, for coroutines and for threads.

The blocking modules are made from the async ones by `tests/unit/headgate/unasync.py`; change those. A client
keeps connections and no other state.

async_client, client: what a program makes; async_sender, sender: what the parts below need of it; async_handle,
handle: one DAG; async_events, events: following one; async_values, values: values that its jobs share;
async_workflows, workflows: runs of workflows; async_schedules, schedules; async_limits, limits: limits of
topics; async_logs, logs: what jobs log; async_workers, workers: the workers at work; async_reasons, reasons: why
something does not go on; settings: where the services are, by the environment.
"""
