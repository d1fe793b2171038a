"""Mechanisms that both services need. No product policy lives here; nothing here imports a service.

http         connections, requests and answers
shards       which shards there are, and which process looks after which
postgres     connections, transactions, statements, flushes
admission    what a call meets before it is worked on
console      what operators are shown: the last hour, and what other processes know

Beside them: `clock`, `ids`, `errors`, `settings` (values), `loop`, `log`, `metrics`, `histogram`, `vital` (duties
and what they tell), `redis`, `dag_notify` (what acks did to DAGs, told over Redis), `lately` (a bounded memory),
`again` (what was refused is tried again), `crash` (points at which tests kill a process), `fallback` (a short way
that was not gone, counted), `beside` (work of large calls beside the event loop).
"""
