"""What is sent to the services, without I/O.

Called by `_client`, `_worker`, `_app`, `_cli` and `headgate.importing`; it keeps nothing, so a crash leaves
nothing.

verbs: each verb of both services once, as data, and the calls made from them; run_verbs: those of workflows;
elements: what goes into and comes out of the queue's batches; flows: work of several calls, as generators that
both clients drive; dag: a DAG before the service knows of it; schedule_body: a schedule as the service takes it.
"""
