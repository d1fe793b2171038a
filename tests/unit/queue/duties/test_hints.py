"""What processes tell each other of what became ready: at once where somebody waits, else now and then."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from services.queue.dispatch.announcements import Announcer
from services.queue.dispatch.demand import Asked
from services.queue.duties import hints
from services.queue.duties.hints import ASKED_S, Hearer, Messenger
from services.queue.model import Key
from tests.support.clocks import ManualClock

POLL_S = 1.0
NOBODY = "redis://127.0.0.1:1/0"


class Told:
    """Takes what a messenger hears."""

    def __init__(self) -> None:
        self.hints: list[tuple[str, str, int, list[Key]]] = []
        self.asked = Asked(ManualClock(), Announcer())

    def hinted(self, namespace: str, topic: str, shard: int, read: Any) -> None:
        self.hints.append((namespace, topic, shard, list(read())))


class Process:
    """One that speaks when it is told to."""

    def __init__(self, clock: ManualClock) -> None:
        self.told = Told()
        self.messenger = Messenger(NOBODY, "test", clock, poll_s=POLL_S)
        self.heard = Hearer(self.told, self.messenger).heard  # type: ignore[arg-type]

    def say(self, *others: "Process") -> dict[tuple[str, str], int]:
        """Send the next message to others: how many keys of each topic it holds."""
        message = self.messenger.message()
        for other in others:
            other.heard(message)
        return {(namespace, topic): len(keys) for namespace, topic, _, keys in msgspec.msgpack.decode(message)[1]}

    def wants(self) -> list[tuple[str, str]]:
        return list(map(tuple, msgspec.msgpack.decode(self.messenger.message())[2]))


def keys(count: int = 1) -> list[Key]:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return [Key(0, at, f"item-{n}") for n in range(count)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def pair(clock: ManualClock) -> tuple[Process, Process]:
    return Process(clock), Process(clock)


async def test_what_nobody_waits_for_is_gathered_and_what_somebody_waits_for_is_not(
    pair: tuple[Process, Process],
) -> None:
    one, other = pair
    other.messenger.want("ns", "waited")
    other.say(one)
    for topic in ("waited", "idle", "idle"):
        one.messenger.tell("ns", topic, 0, keys())
    assert one.messenger._news.is_set()
    assert one.say(other) == {("ns", "waited"): 1}
    one.messenger.send_unwanted()
    assert one.say(other) == {("ns", "idle"): 2}
    assert [(topic, found) for _, topic, _, found in other.told.hints] == [
        ("waited", keys()),
        ("idle", keys() * 2),
    ]


async def test_what_is_gathered_goes_out_by_itself(
    pair: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[tuple[float, Any]] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda s, call: timers.append((s, call)))
    one, _ = pair
    for _ in range(2):
        one.messenger.tell("ns", "t", 0, keys())
    [(after_s, send)] = timers
    assert after_s == hints.UNWANTED_S
    assert not one.messenger._news.is_set()
    send()
    assert one.messenger._news.is_set()
    assert one.say() == {("ns", "t"): 2}
    one.messenger.tell("ns", "t", 0, keys())
    assert len(timers) == 2
    one.say()
    one.messenger.send_unwanted()
    one.say()
    one.messenger._news.clear()
    one.messenger.send_unwanted()
    assert not one.messenger._news.is_set(), "there is nothing to send"


async def test_a_want_that_comes_behind_the_items_brings_them_at_once(pair: tuple[Process, Process]) -> None:
    one, other = pair
    one.messenger.tell("ns", "t", 0, keys())
    other.messenger.want("ns", "t")
    other.say(one)
    assert one.say(other) == {("ns", "t"): 1}


async def test_wants_are_said_once_a_poll_and_hold_for_three(
    pair: tuple[Process, Process], clock: ManualClock
) -> None:
    one, other = pair
    for _ in range(2):
        other.messenger.want("ns", "t")
        other.messenger.want("ns", "u")
    assert other.wants() == [("ns", "t"), ("ns", "u")]
    other.messenger.want("ns", "t")
    assert other.wants() == []
    clock.advance(POLL_S)
    other.messenger.want("ns", "t")
    other.say(one)
    clock.advance(hints.WANTED_POLLS * POLL_S)
    one.messenger.tell("ns", "t", 0, keys())
    assert one.say() == {("ns", "t"): 1}
    clock.advance(0.001)
    one.messenger.tell("ns", "t", 0, keys())
    assert one.say() == {}


async def test_wants_over_what_a_message_holds_are_said_in_the_next(pair: tuple[Process, Process]) -> None:
    one, _ = pair
    for n in range(hints.TOPICS_MAX + 1):
        one.messenger.want("ns", f"t{n}")
    one.messenger._news.clear()
    assert len(one.wants()) == hints.TOPICS_MAX
    assert one.messenger._news.is_set()
    assert one.wants() == [("ns", f"t{hints.TOPICS_MAX}")]


async def test_wants_and_hints_of_others_are_kept_up_to_their_limits(
    pair: tuple[Process, Process], clock: ManualClock
) -> None:
    one, _ = pair
    topics = [("ns", f"t{n}") for n in range(hints.WANTED_MAX + 1)]
    one.heard(msgspec.msgpack.encode(["other", [], topics]))
    assert len(one.messenger._wanted_until_s) == hints.WANTED_MAX
    clock.advance(hints.WANTED_POLLS * POLL_S + 0.001)
    one.heard(msgspec.msgpack.encode(["other", [], topics[-1:]]))
    assert list(one.messenger._wanted_until_s) == topics[-1:], "what nobody wants any more makes room"

    one.messenger.tell(*topics[-1], 0, keys(hints.KEYS_PER_TOPIC_MAX - 1))
    one.messenger.tell(*topics[-1], 0, keys(2))
    assert one.say() == {topics[-1]: hints.KEYS_PER_TOPIC_MAX}
    for n in range(hints.TOPICS_MAX + 1):
        one.messenger.tell("ns", f"t{n}", 0, keys())
    one.messenger.send_unwanted()
    assert len(one.say()) == hints.TOPICS_MAX


async def test_what_is_asked_for_is_said_now_and_then_and_heard(
    pair: tuple[Process, Process], clock: ManualClock
) -> None:
    one, other = pair
    other.told.asked = Asked(clock, Announcer())
    clock.advance(100)
    one.messenger.ask("ns", "t")
    one.say(other)
    assert (other.told.asked.unasked_s("ns", "t"), other.told.asked.unasked_s("ns", "u")) == (0, 100)
    clock.advance(ASKED_S - 1)
    one.messenger.ask("ns", "t")
    assert not msgspec.msgpack.decode(one.messenger.message())[4]
    clock.advance(1)
    one.messenger.ask("ns", "t")
    assert msgspec.msgpack.decode(one.messenger.message())[4] == [["ns", "t"]]


async def test_who_says_no_wants_is_understood(pair: tuple[Process, Process]) -> None:
    one, _ = pair
    one.heard(msgspec.msgpack.encode(["older", [["ns", "t", 0, []]]]))
    assert one.told.hints == [("ns", "t", 0, [])]


async def test_while_nobody_listens_nothing_is_remembered_until_somebody_speaks(
    pair: tuple[Process, Process], clock: ManualClock
) -> None:
    one, other = pair

    def news() -> None:
        one.messenger.tell("ns", "t", 0, keys())
        one.messenger.want("ns", "t")

    one.messenger._probed_s = clock.monotonic_s()  # and nobody heard it
    clock.advance(hints.PROBE_S - 0.001)
    news()
    assert not one.messenger._unwanted and one.wants() == []
    clock.advance(0.001)
    news()
    assert one.messenger._unwanted and one.wants() == [("ns", "t")], "these are the next probe"
    one.messenger.send_unwanted()
    one.say()

    one.messenger._probed_s = clock.monotonic_s()
    news()
    assert not one.messenger._unwanted
    other.say(one)
    news()
    assert one.messenger._unwanted
