"""Workers: items taken, handlers run on them, and their ends told to the service.

Called by programs (`Worker`), by `_app.worker` and by `headgate dag run`. A worker that is killed leaves leases,
which expire; each job of theirs then has its next attempt.

worker: the worker; task: the handler of a topic and what runs of it; job: an item in a handler's hands;
verdicts: how handlers end, as the service is told;
attempts: which failure is the last; deciders: runs of workflows on a worker; dequeues: asks for items;
leases: keeps leases while handlers run; settler: tells how jobs ended; presence: says that the worker is there;
ends: how a worker's tasks end, and its process beside one that does not; metrics: its own, for Prometheus;
job_logs: what jobs log; program_log: what the worker says to the logging of its program;
virtual_loop: where handlers run in tests;
bridge: a client of the other kind; signals: SIGTERM and SIGINT; supervisor: workers in processes of their own.
"""
