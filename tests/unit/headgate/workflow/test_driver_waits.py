"""The driver of a worker whose turns wait for events: one delivery, many turns, until the run is parked."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headgate import Workflow
from headgate.testing import replay
from headgate.workflow.driving.driver import Driver
from headgate.workflow.local.memory import MemoryRun
from tests.support.workflow_service import Service, driver_of


async def two_calls(wf: Workflow) -> list[Any]:
    return [await wf.call("work", number) for number in range(2)]


class Slots:
    """What a worker knows of a run that waits."""

    def __init__(self) -> None:
        self.resting = 0
        self.rested = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.resting += 1
        try:
            yield
        finally:
            self.resting -= 1
            self.rested += 1


def waiting_driver(service: Service, **settings: Any) -> Driver:
    return driver_of(service, two_calls, turn_wait_s=1.0, **settings)


async def test_one_delivery_goes_on_with_what_comes_while_it_waits() -> None:
    service, slots = Service(MemoryRun("order")), Slots()
    driver = waiting_driver(service)
    working = asyncio.create_task(driver.work("order", service.run.lease, slots))
    for number in (1, 2):
        await service.waiting.wait()
        assert slots.resting == 1
        assert service.run.is_awake
        service.run.finish(f"work#{number}", output=number)
        service.waiting.clear()
        service.tell()
    await working
    assert (service.run.output, service.run.generation) == ([1, 2], 1)
    assert (slots.resting, len(service.turns)) == (0, 3)
    assert service.read_from == [0], "one history is read for all of it"
    replay(service.run.events(), two_calls)


async def test_a_run_that_has_waited_in_vain_is_parked_and_its_core_kept() -> None:
    service = Service(MemoryRun("order"))
    driver = waiting_driver(service)
    working = asyncio.create_task(driver.work("order", service.run.lease))
    await service.waiting.wait()
    service.tell(waits=False)
    await working
    assert service.run.parked
    assert len(driver.cores) == 1


async def test_a_worker_that_stops_parks_what_waits_at_once_and_waits_no_more() -> None:
    """The same turn is sent again, and changes nothing but that."""
    service = Service(MemoryRun("order"))
    driver = waiting_driver(service)
    working = asyncio.create_task(driver.work("order", service.run.lease))
    await service.waiting.wait()
    driver.leave()
    await working
    assert service.run.parked
    assert [(turn.turn, turn.wait_s) for turn in service.turns] == [(1, 1.0), (1, 0.0)]
    assert [event.key for event in service.run.events()] == ["", "work#1"]
    service.run.finish("work#1", output=1)
    await driver.work("order", service.run.lease)
    assert service.run.parked
    assert service.turns[-1].wait_s == 0


async def test_a_worker_whose_lease_is_lost_sends_nothing_more() -> None:
    service = Service(MemoryRun("order"))
    driver = waiting_driver(service)
    working = asyncio.create_task(driver.work("order", service.run.lease))
    await service.waiting.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    driver.leave()
    assert len(service.turns) == 1
    assert not service.run.parked


async def test_no_more_runs_wait_than_a_worker_may_hold() -> None:
    service = Service(MemoryRun("order"))
    driver = waiting_driver(service, awake_max=0)
    await driver.work("order", service.run.lease)
    assert service.run.parked
    assert [turn.wait_s for turn in service.turns] == [0]
