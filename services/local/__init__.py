"""Headgate on one machine: real Postgres, real Valkey and both services, as child processes of one launcher.

`python -m services.local` runs everything. The parts serve the tests, the demo and the benchmarks too:

- `postgres.Postgres` and `valkey.Valkey`: one server each, `start()` and `stop()`;
- `stack.Stack`: servers, migrations and both services, kept alive until it is left;
- `process.Child`: a child process that cannot outlive its launcher unnoticed;
- `supervisor` starts a child again when it dies; `account` says as which user a server runs;
- `datadir` is what is remembered between runs, `ports` finds free ones;
- `settings.LocalSettings`: what the environment says.

Nothing here runs in production: there the services and the servers are started by whatever runs everything else.
"""
