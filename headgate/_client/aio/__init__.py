"""The client for coroutines; the one for threads is made from it.

client: what a program makes; sender: what the parts below need of it; handle: one DAG; events: following one;
values: values that its jobs share; workflows: runs of workflows; schedules; limits: limits of topics; logs: what
jobs log; workers: the workers at work; reasons: why something does not go on.
"""
