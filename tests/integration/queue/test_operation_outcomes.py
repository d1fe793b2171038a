"""What fails once an operation is begun, or stopped on one shard, is told as perhaps done."""

from typing import Any

import pytest

from services.queue.operations import bulk
from services.queue.operations.bulk import Operations
from services.queue.store import operations as store_operations
from shared.errors import ShardUnavailable
from tests.support.queue_host import Api


async def away(*_: Any, **__: Any) -> Any:
    raise ShardUnavailable("it went away")


@pytest.mark.parametrize(("where", "name"), [(Operations, "_found"), (store_operations, "set_unplaced")])
async def test_an_operation_that_was_begun_and_cannot_be_shown_is_perhaps_begun(
    own_api: Api, monkeypatch: pytest.MonkeyPatch, where: Any, name: str
) -> None:
    item = await own_api.enqueue_one("t")
    with monkeypatch.context() as patched:
        patched.setattr(where, name, away)
        answer = await own_api.post("topics/purge", {"topic": "t"})
    assert (answer.status_code, answer.json()["outcome"]) == (503, "unknown")
    for store in own_api.host.stores.values():
        await own_api.host.process.operations.step(store)
    [standing] = await own_api.results("items/states", {"ids": [item]})
    assert standing["status"] == "not_found", "it was begun"


async def test_an_operation_that_is_stopped_on_one_shard_is_perhaps_stopped(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await own_api.enqueue_one("t")
    begun = (await own_api.post("operations", {"kind": "purge", "filter": {"topic": "t"}})).json()
    stop = store_operations.stop

    async def stop_first(pool: Any, *args: Any) -> Any:
        return await (stop(pool, *args) if pool is own_api.host.stores[0].pool else away())

    monkeypatch.setattr(store_operations, "stop", stop_first)
    answer = await own_api.post(f"operations/{begun['id']}/cancel", {})
    assert (answer.status_code, answer.json()["outcome"]) == (503, "unknown")


async def test_a_preview_counts_what_answers_and_names_what_does_not(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = [(await own_api.enqueue_one("t", id=own_api.new_id(shard))) for shard in (0, 1)]
    scope_of, lost = bulk.scope_of, own_api.host.stores[1].pool

    async def scope_of_others(pool: Any, *args: Any) -> Any:
        return await (away() if pool is lost else scope_of(pool, *args))

    body = {"kind": "purge", "filter": {"topic": "t"}}
    with monkeypatch.context() as patched:
        patched.setattr(bulk, "scope_of", scope_of_others)
        seen = await own_api.post("operations", {**body, "dry_run": True})
        assert seen.status_code == 200
        found = seen.json()
        assert (found["matched"], found["sample"], found["exact"], found["away"]) == (1, [here], False, [1])
        patched.setattr(bulk, "scope_of", away)
        assert (await own_api.post("operations", {**body, "dry_run": True})).status_code == 503
    seen = (await own_api.post("operations", {**body, "dry_run": True})).json()
    assert (seen["matched"], seen["exact"], seen["away"]) == (2, True, [])
    assert set(seen["sample"]) == {here, there}
