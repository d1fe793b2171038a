"""Who gets a connection: by urgency, then by arrival; the last ones are kept for what is urgent."""

import asyncio

import pytest

from shared.admission import connection_priority
from shared.admission.connection_priority import ConnectionLine, Urgency, urgency


async def wait_for(place: ConnectionLine, level: Urgency, served: list[Urgency]) -> None:
    with urgency(level):
        await place.enter(30)
    served.append(level)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def take(place: ConnectionLine, level: Urgency) -> int:
    with urgency(level):
        count = 0
        while place.try_enter():
            count += 1
    return count


@pytest.mark.parametrize(("size", "limits"), [(6, [6, 5, 4, 3]), (2, [2, 1, 1, 1]), (1, [1, 1, 1, 1])])
def test_each_level_leaves_one_place_more_to_those_above(size: int, limits: list[int]) -> None:
    for level, limit in zip(Urgency, limits, strict=True):
        assert take(ConnectionLine(size), level) == limit


def test_lists_and_enqueues_together_leave_places_for_acks() -> None:
    place = ConnectionLine(6)
    assert take(place, Urgency.LIST) == 3
    assert take(place, Urgency.ENQUEUE) == 1
    assert take(place, Urgency.DEQUEUE) == 1
    assert take(place, Urgency.SETTLE) == 1


async def test_a_place_goes_to_the_most_urgent_then_to_the_first() -> None:
    place = ConnectionLine(1)
    assert place.try_enter()
    served: list[Urgency] = []
    order = [Urgency.LIST, Urgency.ENQUEUE, Urgency.SETTLE, Urgency.DEQUEUE, Urgency.SETTLE]
    tasks = []
    for level in order:
        tasks.append(asyncio.create_task(wait_for(place, level, served)))
        await settle()
    assert place.waiting == 5
    for _ in order:
        place.leave()
        await settle()
    await asyncio.gather(*tasks)
    assert served == sorted(order)
    place.leave()
    assert (place.taken, place.waiting) == (0, 0)


async def test_who_comes_later_does_not_pass_who_waits() -> None:
    place = ConnectionLine(2)
    assert take(place, Urgency.SETTLE) == 2
    served: list[Urgency] = []
    waiting = asyncio.create_task(wait_for(place, Urgency.SETTLE, served))
    await settle()
    place.leave()
    with urgency(Urgency.SETTLE):
        assert not place.try_enter()
    await waiting


async def test_a_wait_ends_in_time_and_leaves_nothing_behind() -> None:
    place = ConnectionLine(1)
    assert place.try_enter()
    with pytest.raises(TimeoutError):
        await place.enter(0)
    place.leave()
    assert (place.taken, place.waiting) == (0, 0)
    assert place.try_enter()


async def test_a_caller_that_goes_just_as_its_place_comes_gives_it_back() -> None:
    place = ConnectionLine(1)
    assert place.try_enter()
    served: list[Urgency] = []
    task = asyncio.create_task(wait_for(place, Urgency.SETTLE, served))
    await settle()
    place.leave()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (served, place.taken) == ([], 0)


async def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_priority, "WAITING_MAX", 2)
    place = ConnectionLine(1)
    assert place.try_enter()
    tasks = [asyncio.create_task(wait_for(place, Urgency.SETTLE, [])) for _ in range(2)]
    await settle()
    with pytest.raises(TimeoutError):
        await place.enter(30)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
