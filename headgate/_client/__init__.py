"""The clients of both services: for coroutines in `aio`, for threads in `blocking`, with the same modules in each.

The blocking modules are made from the async ones by `tests/unit/headgate/unasync.py`; change those. A client
keeps connections and no other state. settings: where the services are, by the environment.
"""
