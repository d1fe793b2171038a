"""Quotas of one process are exact, however its calls and its looks at the shards fall."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from services.queue.model import PlainItem, Result
from services.queue.quotas import Quota, Quotas, Tenant, Use
from shared.admission.token_buckets import Buckets, Rate, Taken
from tests.support.clocks import ManualClock


class SlowBuckets:
    """Gives what is asked for, once it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def take(self, key: str, rate: Rate, wanted: int) -> Taken:
        await self.go.wait()
        return Taken(wanted, 0.0)


async def stored(items: Sequence[Any]) -> list[Result]:
    return [Result("id", "enqueued") for _ in items]


def tenant_of(quota: Quota) -> Tenant:
    tenant = Tenant("ns", ManualClock())
    tenant.quota = quota
    return tenant


async def test_calls_that_wait_for_the_bucket_at_once_share_the_room() -> None:
    buckets = SlowBuckets()
    quotas = Quotas({}, cast(Buckets, buckets), ManualClock())
    tenant = tenant_of(Quota(enqueues_per_minute=100, items_max=3))
    calls = [asyncio.ensure_future(quotas.enqueue(tenant, [PlainItem("t")] * 2, stored)) for _ in range(3)]
    await asyncio.sleep(0)
    buckets.go.set()

    statuses = [result.status for results, _ in await asyncio.gather(*calls) for result in results]
    assert statuses.count("enqueued") == 3
    assert tenant.use() == Use(items=3, bytes=3 * len(b"null"))


def test_what_is_on_its_way_while_the_shards_are_looked_at_counts() -> None:
    tenant = tenant_of(Quota(items_max=3))
    tenant.gain(Use(items=3))
    # The look began before the commit, and did not see it.
    tenant.read(Use(), tenant.marked())
    assert tenant.use().items == 3
    tenant.gained(Use(items=3), Use(items=1))
    assert tenant.use().items == 2
    tenant.read(Use(items=2), tenant.marked())
    assert tenant.use().items == 2


def test_what_a_look_may_have_seen_go_is_not_taken_off_twice() -> None:
    """An ack over several shards is told of once the last has answered; a look may have come in between."""
    tenant = tenant_of(Quota(in_flight_max=20))
    tenant.read(Use(leased=20), tenant.marked())
    looks = tenant.looks
    tenant.read(Use(leased=2), tenant.marked())
    tenant.gain(Use(leased=18))
    tenant.gained(Use(leased=18), Use())
    tenant.gave_back(Use(leased=20), looks)
    assert tenant.room(20) == 0
    looks = tenant.looks
    tenant.gave_back(Use(leased=5), looks)
    assert tenant.room(20) == 5, "no look has seen these go"
