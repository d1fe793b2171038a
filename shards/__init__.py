"""Changing the shard map while the services run: `python -m shards`.

Shards are added, drained and moved to other servers, and slots change their homes. Each command says what it
would do and does it with `--yes`; each may be killed at any moment and is finished by running it again. What
makes that safe is in the shards, not in the map:

- A shard that is moved is *fenced*: under a lock that waits for every open transaction its schema is renamed, so
  that no connection, old or new, finds its tables, whatever map it has. The copy is whole and has its name in one
  transaction, or is not there.
- A slot's home is written in the shards. The old home stops to answer for it in a transaction that waits for
  those that use keys; the new home begins with the keys in place.

The map's file is what the commands change last, and what the services follow. See docs/operations.md.
"""
