"""The dead by kind of error, and what is done to one kind."""

from typing import Any

from headgate import wire
from tests.contract.test_queue_operations import begin, die, preview, states, tighten
from tests.contract.test_queue_topics import pages
from tests.support.queue_host import Api


async def groups(api: Api, **query: Any) -> list[dict[str, Any]]:
    found = [group for page in await pages(api, "dead", **query) for group in page]
    for group in found:
        wire.DeadGroup.model_validate(group)
    return found


TRACEBACK = """Traceback (most recent call last):
  File "/app/worker.py", line {line}, in run
    send(job)
TimeoutError: no answer after {n} s
"""


async def test_the_dead_are_grouped_by_error(api: Api) -> None:
    timeouts = [await die(api, TRACEBACK.format(line=n, n=n * 10)) for n in range(1, 4)]
    await api.clock.advance(60)
    for n in (1, 22):
        await die(api, f"HTTP {n}: not here\nand more of it {n}")
    await die(api, "HTTP 404: not here", "u")

    found = await groups(api)
    assert [(group["topic"], group["error"], group["count"]) for group in found] == [
        ("t", "TimeoutError: no answer after <n> s", 3),
        ("t", "HTTP <n>: not here", 2),
        ("u", "HTTP <n>: not here", 1),
    ]
    assert found[0]["sample_id"] == timeouts[-1]
    assert found[0]["oldest"] < found[0]["newest"] < found[1]["oldest"]
    assert {group["topic"] for group in await groups(api, topic="u")} == {"u"}
    assert await groups(api, topic="never-seen") == []
    assert await groups(Api(api.host)) == []


async def test_a_group_is_redriven_or_purged_by_its_error(api: Api) -> None:
    timeouts = [await die(api, f"timeout after {n} s") for n in range(3)]
    other = await die(api, "disk full")
    silent = await die(api, "")
    [group] = [group for group in await groups(api) if group["count"] == 3]

    assert (await preview(api, "redrive", topic="t", error=group["error"]))["matched"] == 3
    assert (await begin(api, "redrive", topic="t", error=group["error"]))["changed"] == 3
    assert await states(api, *timeouts, other) == ["ready"] * 3 + ["dead"]
    assert (await begin(api, "purge", topic="t", error="disk full", state="dead"))["changed"] == 1
    assert await states(api, other, silent) == ["gone", "dead"]
    assert (await begin(api, "redrive", topic="t", error=""))["changed"] == 1


async def test_groups_are_read_in_bounded_parts(own_api: Api) -> None:
    for n in range(12):
        await die(own_api, f"{'x' if n % 2 else 'y'} {n}", id=own_api.new_id(n % 2))
    tighten(own_api.host, dead_scan_items_max=5)
    found = await pages(own_api, "dead")
    assert [sum(group["count"] for group in page) for page in found] == [5, 5, 2]
    assert sum(group["count"] for page in found for group in page if group["error"] == "x <n>") == 6

    tighten(own_api.host, dead_scan_items_max=10_000)
    letters = "abcdefg"
    for letter in letters:
        await die(own_api, letter, "many")
    found = await pages(own_api, "dead", topic="many", limit=3)
    assert all(len(page) <= 3 for page in found)
    assert sorted(group["error"] for page in found for group in page) == list(letters)
