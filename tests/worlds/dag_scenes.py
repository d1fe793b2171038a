"""Scenes of DAGs that expand: children come, and are adopted, beside what has ended and is retried."""

from itertools import pairwise
from random import Random
from typing import Any

from tests.worlds.faults import is_inside
from tests.worlds.registry import verb
from tests.worlds.scenes import scene


@verb(1, is_inside, since=8)
async def expand_beside_the_ended(world: Any, rng: Random) -> None:
    """What waited for a node and has ended waits for the node's children, too, once it is retried."""
    async with scene(world, rng) as play:
        by_external = rng.random() < 0.5
        m, child = play.spec(), play.spec()
        above = m["key"]
        w = play.spec(above, trigger="all_done", **({"external": ["x"]} if by_external else {}))
        waiter = w["key"]
        await play.create(m, w)
        if by_external:
            await play.steer("resolve", external=[{"node": waiter, "name": "x", "failed": True}])
        else:
            await play.fail(above)
            await play.ack(waiter)
            await play.retry("nodes", above)
        await play.expand(above, child)
        await play.retry("from", waiter)
        if by_external:
            await play.steer("resolve", external=[{"node": waiter, "name": "x", "data": "again"}])
        await play.ack(above)
        await play.waits(waiter, child["key"])


@verb(1, is_inside, since=8)
async def adopt_who_has_expanded(world: Any, rng: Random) -> None:
    """A child that is adopted brings its own children, however deep: what waits for the node waits for them."""
    async with scene(world, rng) as play:
        m, line = play.spec(), [play.spec() for _ in range(rng.choice((2, 2, 3)))]
        above = m["key"]
        waiter = play.spec(above, trigger=rng.choice(("all_succeeded", "all_done", "none_failed")))
        await play.create(m, waiter, line[0])
        for one, child in pairwise(line):
            await play.expand(one["key"], child)
        ended = rng.randint(0, len(line) - 1)  # before they are adopted
        for one in line[:ended]:
            await play.ack(one["key"])
        await play.expand(above, line[0])
        for one in (m, *line[ended:-1]):
            await play.ack(one["key"])
        await play.waits(waiter["key"], line[-1]["key"])
