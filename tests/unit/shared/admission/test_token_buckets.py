"""Shared token buckets: the bound over hosts, with a real Valkey and a clock that the test moves."""

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.local.valkey import Valkey, ValkeySettings
from shared.admission.token_buckets import AHEAD_S, ALONE_S, Buckets, Rate
from shared.redis import connect
from tests.support.clocks import ManualClock
from tests.support.ports import free_port

_RUN = secrets.token_hex(4)
_keys = itertools.count()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hosts(redis_url: str, clock: ManualClock) -> AsyncIterator[list[Buckets]]:
    made = [
        Buckets(f"test{next(_keys)}", connect(redis_url), clock, shared_now=clock.monotonic_s) for _ in range(2)
    ]
    made[1]._prefix = made[0]._prefix
    yield made
    for host in made:
        await host.close()


def key() -> str:
    """Never given before, also on a server that stays."""
    return f"ns{_RUN}-{next(_keys)}"


async def test_a_clock_that_goes_back_takes_no_tokens_away(hosts: list[Buckets], clock: ManualClock) -> None:
    name, rate = key(), Rate.per_minute(60)
    assert (await hosts[0].take(name, rate, 10)).tokens == 10
    clock.advance(-30)
    assert (await hosts[1].take(name, rate, 50)).tokens == 50


async def test_a_minutes_worth_at_once_and_not_one_more(hosts: list[Buckets]) -> None:
    name, rate = key(), Rate.per_minute(5)
    assert (await hosts[0].take(name, rate, 5)).tokens == 5
    refused = await hosts[0].take(name, rate, 1)
    assert refused.tokens == 0
    assert 11 < refused.retry_after_s <= 12


async def test_a_call_gets_what_is_left(hosts: list[Buckets]) -> None:
    name, rate = key(), Rate.per_minute(5)
    assert (await hosts[0].take(name, rate, 8)).tokens == 5


async def test_hosts_share_one_bucket(hosts: list[Buckets], clock: ManualClock) -> None:
    name, rate = key(), Rate.per_minute(60)
    taken = [(await hosts[n % 2].take(name, rate, 10)).tokens for n in range(8)]
    assert sum(taken) == 60
    clock.advance(3)
    assert sum([(await host.take(name, rate, 10)).tokens for host in hosts]) == 3


async def test_an_empty_bucket_is_asked_again_only_when_it_has_some(
    hosts: list[Buckets], clock: ManualClock
) -> None:
    name, rate = key(), Rate.per_minute(60)
    await hosts[0].take(name, rate, 60)
    await hosts[0].take(name, rate, 1)
    asked = 0

    async def count(*_args: object, **_more: object) -> float:
        nonlocal asked
        asked += 1
        return 0.0

    hosts[0]._lease = count  # type: ignore[method-assign]
    for _ in range(20):
        assert (await hosts[0].take(name, rate, 1)).tokens == 0
    assert asked == 0
    clock.advance(1.1)
    await hosts[0].take(name, rate, 1)
    assert asked == 1


async def test_a_quota_that_was_raised_counts_at_once(hosts: list[Buckets]) -> None:
    name = key()
    assert (await hosts[0].take(name, Rate.per_minute(0), 5)).tokens == 0
    assert (await hosts[0].take(name, Rate.per_minute(0), 5)).retry_after_s <= 60
    assert (await hosts[0].take(name, Rate.per_minute(600), 5)).tokens == 0, "nothing was saved up"


async def test_a_quota_that_was_lowered_leaves_no_more_than_its_burst(hosts: list[Buckets]) -> None:
    name = key()
    await hosts[0].take(name, Rate.per_minute(6000), 1)
    assert (await hosts[0].take(name, Rate.per_minute(3), 100)).tokens <= 3


STEPS = st.lists(
    st.tuples(st.sampled_from([0, 1]), st.integers(1, 40), st.floats(0, 5, allow_nan=False)),
    min_size=1,
    max_size=25,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(per_minute=st.integers(1, 1200), steps=STEPS)
async def test_no_window_holds_more_than_rate_burst_and_slices(
    redis_url: str, per_minute: int, steps: list[tuple[int, int, float]]
) -> None:
    clock = ManualClock()
    name, rate = key(), Rate.per_minute(per_minute)
    hosts = [Buckets("bound", connect(redis_url), clock, shared_now=clock.monotonic_s) for _ in range(2)]
    accepted: list[tuple[float, int]] = []
    try:
        for host, wanted, pause_s in steps:
            accepted.append((clock.now_s, (await hosts[host].take(name, rate, wanted)).tokens))
            clock.advance(pause_s)
    finally:
        await asyncio.gather(*(host.close() for host in hosts))
    slack = len(hosts) * (AHEAD_S * rate.rate_s + 1)
    for i, (begun_s, _) in enumerate(accepted):
        total = 0
        for ended_s, count in accepted[i:]:
            total += count
            assert total <= rate.rate_s * (ended_s - begun_s) + rate.burst + slack


async def test_without_redis_each_host_has_a_bucket_of_its_own(clock: ManualClock) -> None:
    host, rate = Buckets("alone", None, clock), Rate.per_minute(60)
    assert (await host.take("ns", rate, 100)).tokens == 60
    assert (await host.take("ns", rate, 1)).tokens == 0
    clock.advance(2)
    assert (await host.take("ns", rate, 10)).tokens == 2


async def test_redis_lost_and_back(clock: ManualClock, tmp_path_factory: pytest.TempPathFactory) -> None:
    """While it is away the rate goes on, without a new burst; afterwards the bucket is shared again."""
    server = Valkey(ValkeySettings(port=free_port(), run_dir=tmp_path_factory.mktemp("valkey")))
    await server.start()
    host, rate = Buckets("lost", connect(server.url), clock, shared_now=clock.monotonic_s), Rate.per_minute(60)
    try:
        assert (await host.take("ns", rate, 60)).tokens == 60
        await server.stop()
        clock.advance(10)
        during = 0
        for _ in range(100):
            during += (await host.take("ns", rate, 5)).tokens
            clock.advance(0.1)
        assert 10 <= during <= 12, "the rate of ten seconds, and what a host may save up"

        await server.start()
        clock.advance(ALONE_S)
        assert (await host.take("ns", rate, 100)).tokens >= 50, "a server without its data has a full bucket"
        assert (await host.take("ns", rate, 100)).tokens == 0
    finally:
        await host.close()
        await server.stop()
