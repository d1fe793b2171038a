"""`make demo`: two real graphs on a private stack, and proof of what happened.

- `stage`: the stack and the worker processes, on a temporary directory and free ports;
- `worker`: what a worker process runs;
- `trace`: every process writes down when it sent, got and acked what;
- `measure`: what the traces say: order, once-ness, latencies, the longest path;
- `screen`: the progress bar and the table.
"""
