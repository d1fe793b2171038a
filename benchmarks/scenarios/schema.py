"""What decided the queue's tables: each design beside its alternative, at several backlogs, direct SQL."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from benchmarks.bench import Bench
from benchmarks.cost import Cost
from benchmarks.direct import DirectShard
from benchmarks.outcome import Outcome
from benchmarks.schema import variants as v
from benchmarks.schema.variants import Site, Variant
from benchmarks.spread import ratios
from shared.postgres.session import PINNED

CONNECTIONS = 4
SWEEP_INTERVAL_S = 0.1
FILL_ITEMS = 100_000
STATEMENT_TIMEOUT = "8s"  # the service's

METHOD = """\
Statements called over asyncpg on 4 connections, batches of 100, payload 128 bytes, durable; no service
runs. A cycle enqueues 100 items behind the backlog and claims and acks the next 100. Every variant has a
schema of its own, one topic, and its own backlog; one schema's leases end after 2 s and are swept as the
reaper does. In every round each variant runs for one slice, in an order that rotates; ratios are taken
within rounds. `snapshot held` is the largest backlog with one REPEATABLE READ transaction open from before
the first slice to after the last. The schemas of `pinned plans` and `default planner` were analysed while
empty and never again (autovacuum off); all others have autovacuum as migrated. CPU is that of Postgres,
autovacuum included; WAL is all that was written, full pages included. Claim time includes peeks. Statements
have the service's timeout of 8 s."""

PAIRS = (
    (v.HEAD, v.STATE),
    (v.KEYS, v.HEAD),
    (v.ROWS, v.KEYS),
    (v.ROWS_TENS, v.KEYS_TENS),
    (v.REMEMBERED, v.PLAIN),
    (v.DEFAULT_PLANS, v.PINNED_PLANS),
)
BARE = (v.STATE, v.HEAD, v.KEYS, v.ROWS, v.KEYS_TENS, v.ROWS_TENS)
ALL = (*BARE, v.PLAIN, v.REMEMBERED, v.PINNED_PLANS, v.DEFAULT_PLANS)
HELD = (v.STATE, v.HEAD, v.KEYS)


@dataclass
class Measures:
    """What one variant did under one condition, a value per round."""

    items_per_s: list[float] = field(default_factory=list)
    postgres_us_per_item: list[float] = field(default_factory=list)
    wal_bytes_per_item: list[float] = field(default_factory=list)
    claim_us_per_item: list[float] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)

    def note(self) -> str:
        """Costs as medians in words."""
        costs = (self.postgres_us_per_item, self.wal_bytes_per_item, self.claim_us_per_item)
        postgres_us, wal_bytes, claim_us = (statistics.median(values) for values in costs)
        words = f"Postgres {postgres_us:.1f} us, WAL {wal_bytes:.0f} B, claim {claim_us:.1f} us an item"
        ended = sum(self.timeouts)
        return f"{words}; {ended:.0f} statements ended by their timeout" if ended else words


async def run(bench: Bench) -> Outcome:
    """Measure all variants at every backlog, then some with a snapshot held."""
    outcome = Outcome("schema", METHOD)
    plan = bench.plan
    backlogs = plan.backlogs_or(0, 1_000_000)
    bench.progress.begin("schema", plan.rounds * (len(ALL) * len(backlogs) + len(HELD)))
    async with AsyncExitStack() as stack:
        sites = {variant.name: await stack.enter_async_context(_site(bench, variant)) for variant in ALL}
        admin = await stack.enter_async_context(_admin(bench))
        filled = 0
        for backlog in backlogs:
            await _fill(bench, sites, filled, backlog)
            filled = backlog
            await _condition(bench, outcome, f"backlog {backlog:,}", ALL, sites, admin)
        async with _held_snapshot(bench):
            await _condition(bench, outcome, f"backlog {filled:,}, snapshot held", HELD, sites, admin)
    return outcome


async def _condition(
    bench: Bench,
    outcome: Outcome,
    condition: str,
    chosen: Sequence[Variant],
    sites: dict[str, Site],
    admin: Any,
) -> None:
    measures = {variant.name: Measures() for variant in chosen}
    for variant in chosen:
        await bench.warm_up(variant.cycles(sites[variant.name]))
    for turn in range(bench.plan.rounds):
        shift = turn % len(chosen)
        for variant in [*chosen[shift:], *chosen[:shift]]:
            found = measures[variant.name]
            await _measure(bench, outcome, variant, sites[variant.name], admin, found)
            bench.progress.step(f"{condition}  {variant.name}: {found.items_per_s[-1]:,.0f} items/s")
    for variant in chosen:
        found = measures[variant.name]
        outcome.add(f"{condition}: {variant.name}", "items/s", found.items_per_s, found.note())
        outcome.details.setdefault(condition, {})[variant.name] = {
            name: [round(value, 1) for value in values] for name, values in found.__dict__.items()
        }
    for one, other in PAIRS:
        if one in chosen and other in chosen:
            rate = ratios(measures[one.name].items_per_s, measures[other.name].items_per_s)
            cpu = ratios(measures[one.name].postgres_us_per_item, measures[other.name].postgres_us_per_item)
            what = f"{condition}: {one.name} / {other.name}"
            verdict = ", no clear difference" if rate.straddles_one else ""
            outcome.add(what, "ratio", rate.values, f"Postgres CPU an item {cpu.median:.2f}{verdict}")


async def _measure(
    bench: Bench, outcome: Outcome, variant: Variant, site: Site, admin: Any, found: Measures
) -> None:
    claim_s, timeouts = site.claims.seconds, site.timeouts
    async with _swept(site.shards[0]) if variant.sweeps else contextlib.nullcontext():
        wal_from = await admin.fetchval("SELECT pg_current_wal_insert_lsn()::text")
        done, busy = await bench.slice(outcome, variant.cycles(site))
        wal_bytes = await admin.fetchval(
            "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::text::pg_lsn)::float8", wal_from
        )
    # A slice in which every statement ran into its timeout counts one item, so that it can be divided by.
    items = max(1, done.items)
    cost = Cost()
    cost.add(busy, items)
    found.items_per_s.append(items / done.elapsed_s)
    found.postgres_us_per_item.append(cost.us("postgres"))
    found.wal_bytes_per_item.append(wal_bytes / items)
    found.claim_us_per_item.append((site.claims.seconds - claim_s) / items * 1e6)
    found.timeouts.append(site.timeouts - timeouts)


@asynccontextmanager
async def _swept(shard: DirectShard) -> AsyncIterator[None]:
    """The duties that run beside the cycles: leases that ran out are taken back, counts are folded."""
    stopped = asyncio.Event()

    async def duties(own: DirectShard) -> None:
        while not stopped.is_set():
            swept = 0
            with contextlib.suppress(asyncpg.QueryCanceledError):
                swept = await v.sweep(own)
                await own.row(v.FOLD, limit=10_000)
            if not swept:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), SWEEP_INTERVAL_S)

    own = await shard.again()
    task = asyncio.create_task(duties(own))
    try:
        yield
    finally:
        stopped.set()
        await task
        await own.close()


@asynccontextmanager
async def _site(bench: Bench, variant: Variant) -> AsyncIterator[Site]:
    """Connections to a variant's schema; its tables and topic are made by whoever comes first."""
    planner = {} if variant is v.DEFAULT_PLANS else PINNED
    session = {**planner, "statement_timeout": STATEMENT_TIMEOUT}
    shards = [await DirectShard.open(bench.stack, variant.shard, session) for _ in range(CONNECTIONS)]
    first = shards[0].connection
    if await first.fetchval("SELECT to_regclass('state_item') IS NULL"):
        await first.execute(v.SQL.make_backlog.text)
        await first.execute(v.SQL.make_state.text)
        if variant in (v.PINNED_PLANS, v.DEFAULT_PLANS):
            for table in ("item", "ready", "lease", "ended", "ended_old", "stat_delta", "topic", "dedup"):
                await first.execute(f"ANALYZE {table}")
                await first.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
    names = shards[0].store.names
    ref = (await names.make([v.TOPIC]))[v.TOPIC]
    assert ref.namespace_id == v.NAMESPACE_ID
    if variant in (v.PINNED_PLANS, v.DEFAULT_PLANS):
        for shard in shards:
            await v.start_idle(shard, ref.topic_id)
    try:
        yield Site(shards, ref.topic_id, v.Keys(variant.shard, ref.topic_id))
    finally:
        await asyncio.gather(*(shard.close() for shard in shards))


@asynccontextmanager
async def _admin(bench: Bench) -> AsyncIterator[Any]:
    connection = await bench.stack.connect({})
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def _held_snapshot(bench: Bench) -> AsyncIterator[None]:
    async with _admin(bench) as connection, connection.transaction(isolation="repeatable_read"):
        await connection.fetchval("SELECT txid_current()")
        yield


async def _fill(bench: Bench, sites: dict[str, Site], filled: int, backlog: int) -> None:
    """Bring every schema's backlog from `filled` to `backlog` items, and `ended` likewise; collect statistics."""
    if backlog == filled:
        return
    bench.progress.note(f"filling {v.SHARDS} schemas with {backlog - filled:,} items each")
    done: set[int] = set()
    for variant in ALL:
        if variant.shard in done:
            continue
        done.add(variant.shard)
        site = sites[variant.name]
        connection = site.shards[0].connection
        await connection.execute("SET statement_timeout = 0")
        for first in range(filled, backlog, FILL_ITEMS):
            count = min(FILL_ITEMS, backlog - first)
            block = getattr(v.SQL, variant.fill)
            await connection.execute(block.text, *block.args(topic_id=site.topic_id, first=first, count=count))
            if variant is v.REMEMBERED:
                await connection.execute(v.SQL.ended_fill.text, first, count)
        if variant not in (v.PINNED_PLANS, v.DEFAULT_PLANS):
            for table in ("item", "state_item", "ready", "ended"):
                await connection.execute(f"VACUUM (ANALYZE) {table}")
        await connection.execute("RESET statement_timeout")
