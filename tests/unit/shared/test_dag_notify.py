"""What queue processes say of DAGs, and whether anybody hears it."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from shared import dag_notify
from shared.dag_notify import NAMES_PER_MESSAGE_MAX, NAMES_WAITING_MAX, Voice
from shared.ids import new_id


class Redis:
    """So many listen; None: Redis is gone."""

    def __init__(self, hearers: int | None) -> None:
        self.hearers = hearers
        self.said: list[list[str]] = []
        self.is_closed = False

    async def publish(self, channel: str, message: bytes) -> int:
        if self.hearers is None:
            raise RedisConnectionError
        assert channel == "here:dag:ended"
        self.said.append(dag_notify.read_ids(message))
        return self.hearers

    async def aclose(self) -> None:
        self.is_closed = True


def speaking(hearers: int | None) -> tuple[Voice, Redis]:
    made, redis = Voice(None, dag_notify.ended_channel("here")), Redis(hearers)
    made._redis = redis  # type: ignore[assignment]
    return made, redis


async def test_it_is_heard_while_somebody_listens_and_redis_is_there() -> None:
    made, redis = speaking(1)
    assert not made.is_heard, "nobody was asked yet"
    for hearers, heard in ((1, True), (0, False), (2, True), (None, False), (1, True)):
        redis.hearers = hearers
        assert await made.step() is heard
        assert made.is_heard is heard


@pytest.mark.parametrize(("count", "messages"), [(0, [0]), (1_000, [1_000]), (1_001, [1_000, 1])])
async def test_a_message_names_so_many_dags(count: int, messages: list[int]) -> None:
    made, redis = speaking(1)
    made.tell(dags := [new_id(0) for _ in range(count)])
    for _ in messages:
        await made.step()
    assert [len(said) for said in redis.said] == messages
    assert [dag for said in redis.said for dag in said] == dags
    assert max(messages) <= NAMES_PER_MESSAGE_MAX


@pytest.mark.parametrize("count", [NAMES_WAITING_MAX, NAMES_WAITING_MAX + 1])
async def test_what_is_too_much_at_once_is_left_to_the_look(count: int) -> None:
    made, redis = speaking(1)
    dags = [new_id(0) for _ in range(count)]
    made.tell(dags[:-2])
    made.tell(dags[-2:])
    await made.stop()
    assert [dag for said in redis.said for dag in said] == dags[:NAMES_WAITING_MAX]


async def test_what_is_told_again_before_it_was_said_is_said_once() -> None:
    made, redis = speaking(1)
    made.tell([dag := new_id(0), dag])
    made.tell([dag])
    await made.step()
    made.tell([dag])
    await made.step()
    assert redis.said == [[dag], [dag]]


async def test_what_is_still_to_be_said_is_said_before_the_end() -> None:
    made, redis = speaking(1)
    made.tell([dag := new_id(0)])
    await made.stop()
    assert redis.said == [[dag]]
    assert not made.is_heard


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


@pytest.mark.parametrize("count", [1, 2_500])
async def test_what_is_told_is_said_at_once(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Not with the next probe, and neither is what one message cannot name."""
    monkeypatch.setattr(dag_notify, "PROBE_S", 3_600.0)
    made, redis = speaking(1)
    made.start()
    await until(lambda: redis.said == [[]])
    for _ in range(2):
        redis.said.clear()
        made.tell(dags := [new_id(0) for _ in range(count)])
        await until(lambda: sum(map(len, redis.said)) == count)
        assert [dag for said in redis.said for dag in said] == dags
    redis.said.clear()
    await asyncio.sleep(0.01)
    assert redis.said == [], "and no more is said than there is"
    await made.stop()
    assert redis.is_closed


async def test_who_begins_or_ends_to_listen_is_noticed_without_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dag_notify, "PROBE_S", 0.001)
    made, redis = speaking(0)
    made.start()
    for hearers in (1, 0, None, 2):
        redis.hearers = hearers
        await until(lambda: made.is_heard is bool(redis.hearers))
    await made.stop()
    assert not made.is_heard
    redis.said.clear()
    await asyncio.sleep(0.01)
    assert redis.said == [], "who has stopped says nothing"


async def test_who_stops_does_not_wait_for_a_redis_that_is_gone() -> None:
    made, redis = speaking(None)
    made.tell([new_id(0)])
    await made.stop()
    assert redis.is_closed


async def test_without_redis_nothing_is_said_and_nobody_hears() -> None:
    made = Voice(None, dag_notify.ended_channel("here"))
    made.start()
    made.tell([new_id(0)])
    assert not made.is_heard
    await made.stop()


@pytest.mark.parametrize("nonsense", [b"", b"\xc1", b"[]", msgspec.msgpack.encode({"a": 1}), b"\x91\x01"])
def test_nonsense_names_no_dag(nonsense: Any) -> None:
    assert dag_notify.read_ids(nonsense) == []


def test_what_is_no_id_is_left_out() -> None:
    dag = new_id(7)
    assert dag_notify.read_ids(msgspec.msgpack.encode(["x", dag.upper(), ""])) == [dag]
