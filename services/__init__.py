"""The deployed services. Run them as modules: `python -m services.queue`, `python -m services.dag`.

`local` runs both, and their servers, on one machine. Never run a file below this package by path and never make it
the working directory: `queue` would shadow the standard library's module of that name.
"""
