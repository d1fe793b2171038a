"""A queue shard by itself: every item in one place, every place with an item, counts as the rows are."""

from __future__ import annotations

from typing import Final

from audit.finding import Finding
from audit.reading import CHUNK_ROWS, FINDINGS_MAX, SQL, Reader, Tick, silent

NO_ID: Final = "00000000-0000-0000-0000-000000000000"


async def check(shard: Reader, tick: Tick = silent) -> list[Finding]:
    """What is wrong with a queue shard, all of it as of one moment; at most about FINDINGS_MAX.

    Keeps the ids of leased items in memory, about 100 bytes each: there is no index to ask for them.
    """
    found: list[Finding] = []
    schema = shard.address.schema
    async with shard.snapshot():
        for row in await shard.fetch(SQL.wrong_counts):
            off = {name: row[name] for name in ("ready", "delayed", "leased", "disabled", "dead", "bytes")}
            found.append(
                Finding("counts_wrong", schema, f"{row['namespace']}:{row['topic']}", {"off": off, **dict(row)})
            )
        for row in await shard.fetch(SQL.empty_places, rows_max=FINDINGS_MAX):
            found.append(Finding("place_empty", schema, row["id"], {"place": row["place"]}))
        leased = {row["id"]: row["leases"] for row in await shard.fetch(SQL.leased_ids)}
        after = NO_ID
        while page := await shard.fetch(SQL.items_page, after_id=after, rows_max=CHUNK_ROWS):
            after = page[-1]["id"]
            tick(len(page))
            for row in page:
                places = row["places"] + leased.get(row["id"], 0)
                if places != 1:
                    kind = "item_twice" if places else "item_nowhere"
                    found.append(Finding(kind, schema, row["id"]))
            if len(found) >= FINDINGS_MAX:
                break
    return found
