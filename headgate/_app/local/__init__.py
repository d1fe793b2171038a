"""`app.testing()`: both services in memory, for tests of an app. Nothing outlives the process.

in_process: what `testing()` answers, with its clock; services: the calls of both services, and who works; dag: one
DAG, its states and triggers; waiting: items, topic by topic; gate: limits and throttles; logs: what jobs log.
"""
