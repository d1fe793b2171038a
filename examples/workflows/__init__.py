"""Durable workflows, run in memory on a clock that jumps: `python -m examples.workflows.order`."""
