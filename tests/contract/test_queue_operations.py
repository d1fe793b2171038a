"""Many items at once: purge, redrive and cancel by filter, their previews and progress."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headgate import wire
from headgate._ids import new_id
from services.queue.operations import bulk
from services.queue.store.names import SQL
from tests.contract.test_queue_topics import one_in_each_state, pages
from tests.support.queue_host import Api, QueueHost


def tighten(host: QueueHost, **limits: Any) -> None:
    for name, value in limits.items():
        object.__setattr__(host.settings, name, value)


async def begin(api: Api, kind: str, /, **wanted: Any) -> dict[str, Any]:
    """An operation that is taken, as the call answers."""
    answer = await api.post("operations", {"kind": kind, "filter": wanted})
    assert answer.status_code in (200, 202), answer.text
    found: dict[str, Any] = answer.json()
    assert (answer.status_code == 202) == (found["state"] == "running")
    wire.Operation.model_validate(found)
    return found


async def preview(api: Api, kind: str, /, **wanted: Any) -> dict[str, Any]:
    answer = await api.post("operations", {"kind": kind, "filter": wanted, "dry_run": True})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    wire.OperationPreview.model_validate(found)
    return found


async def go_on(host: QueueHost) -> int:
    """What the loops do, to the end; how many chunks that was."""
    chunks = 0
    for store in host.stores.values():
        while await host.process.operations.step(store):
            chunks += 1
            assert chunks < 200
    return chunks


async def die(api: Api, error: str, topic: str = "t", **fields: Any) -> str:
    item_id = await api.enqueue_one(topic, priority=-5, **fields)
    [leased] = await api.dequeue(topic)
    assert leased["id"] == item_id
    assert await api.nack(leased, final=True, error=error) == ["dead"]
    return item_id


async def states(api: Api, *ids: str) -> list[str]:
    return [await api.state(item_id) for item_id in ids]


# -- what is meant ------------------------------------------------------------------------------------------


async def test_purge_takes_every_state_and_cancel_leaves_the_dead(api: Api) -> None:
    ids = await one_in_each_state(api)
    cancelled = await begin(api, "cancel", topic="t")
    assert (cancelled["state"], cancelled["changed"]) == ("done", 4)
    assert await states(api, *ids.values()) == ["dead", *["gone"] * 4]
    assert await api.cancel(ids["ready"]) == ["already_cancelled"]

    assert (await begin(api, "purge", topic="t"))["changed"] == 1
    assert await api.topic("t") == {}


@pytest.mark.parametrize("state", ["ready", "delayed", "leased", "disabled", "dead"])
async def test_a_filter_by_state_leaves_the_other_states(api: Api, state: str) -> None:
    ids = await one_in_each_state(api)
    done = await begin(api, "purge", topic="t", state=state)

    assert (done["total"], done["scanned"], done["changed"], done["skipped"]) == (1, 1, 1, 0)
    assert await states(api, *ids.values()) == ["gone" if name == state else name for name in ids]
    row = await api.topic("t")
    assert {name: row[name] for name in ids} == {name: int(name != state) for name in ids}


async def test_a_filter_by_priority_time_and_metadata(api: Api) -> None:
    async def one(**fields: Any) -> str:
        return await api.enqueue_one("t", **fields)

    low, high = await one(priority=3), await one(priority=7)
    tagged = await one(metadata={"campaign": 7, "who": "ada"})
    other = await one(metadata={"campaign": True})
    await api.clock.advance(100)
    noon = datetime.now(UTC) + timedelta(seconds=50)
    late = await one(priority=5)

    def found(sample: dict[str, Any]) -> set[str]:
        assert sample["exact"] is True
        assert sample["matched"] == len(sample["sample"])
        return set(sample["sample"])

    assert found(await preview(api, "cancel", priority_min=3)) == {low, high, late}
    assert found(await preview(api, "cancel", priority_min=4, priority_max=7)) == {high, late}
    assert found(await preview(api, "cancel", priority_max=-1)) == set()
    assert found(await preview(api, "cancel", metadata={"campaign": 7})) == {tagged}
    assert found(await preview(api, "cancel", metadata={"campaign": 7, "who": "eve"})) == set()
    assert found(await preview(api, "cancel", metadata={"campaign": 1})) == set()
    assert found(await preview(api, "cancel", enqueued_after=noon.isoformat())) == {late}
    assert found(await preview(api, "cancel", topic="t", enqueued_before=noon.isoformat())) == {
        low,
        high,
        tagged,
        other,
    }
    assert (await begin(api, "cancel", metadata={"campaign": 7}))["changed"] == 1
    assert await states(api, tagged, other) == ["gone", "ready"]


async def test_without_a_topic_every_topic_of_the_namespace_is_meant_and_no_other_namespace(api: Api) -> None:
    other = Api(api.host)
    mine = [await api.enqueue_one(topic, priority=1) for topic in ("t", "u", "v")]
    theirs = await other.enqueue_one("t", priority=1)
    dead = await die(other, "x", "u")

    assert (await begin(api, "cancel", priority_min=1))["changed"] == 3
    assert (await begin(api, "redrive"))["changed"] == 0
    assert await states(api, *mine) == ["gone"] * 3
    assert await states(other, theirs, dead) == ["ready", "dead"]


async def test_a_dags_items_are_left_alone_and_counted(api: Api) -> None:
    item_id = await api.as_dag_service().enqueue_one(
        "t", ack_topic="_dag:a", ack_context={"dag": "d"}, id=api.new_id(0)
    )
    await api.enqueue_one("t")

    assert (await preview(api, "purge", topic="t"))["matched"] == 1
    done = await begin(api, "purge", topic="t")
    assert (done["total"], done["scanned"], done["changed"], done["skipped"]) == (2, 2, 1, 1)
    assert (await begin(api, "cancel", priority_min=0))["skipped"] == 1
    await api.nack(await api.dequeue_one("t"), final=True, error="e")
    for kind in ("redrive", "purge"):
        done = await begin(api, kind, topic="t", error="e")
        assert (done["changed"], done["skipped"]) == (0, 1)
    assert await api.state(item_id) == "dead"


async def test_an_unknown_topic_or_namespace_holds_nothing(api: Api) -> None:
    for wanted in ({"topic": "never-seen"}, {"priority_min": 0}):
        done = await begin(api, "purge", **wanted)
        assert (done["state"], done["changed"], done["total"]) == ("done", 0, 0)
        assert (await preview(api, "purge", **wanted))["exact"] is True


async def test_a_purge_in_bulk_tells_completions_as_single_cancels_do(api: Api) -> None:
    ids = [await api.enqueue_one("t", ack_topic="told", ack_context={"n": n}) for n in range(3)]
    dead = await die(api, "e", ack_topic="told")
    assert [part["outcome"] for part in await api.completions("told")] == ["dead"]
    await begin(api, "purge", topic="t")

    told = await api.completions("told")
    assert {(part["id"], part["outcome"]) for part in told} == {(item_id, "cancelled") for item_id in ids}
    assert await api.state(dead) == "gone"


async def test_a_redriven_item_runs_with_fresh_attempts_and_ends_once_more(api: Api) -> None:
    item_id = await die(api, "no luck", ack_topic="told", max_attempts=2, id=api.new_id(0))
    [first] = await api.completions("told")
    assert (await begin(api, "redrive", topic="t"))["changed"] == 1
    assert (await begin(api, "redrive", topic="t"))["changed"] == 0

    leased = await api.dequeue_one("t")
    assert (leased["id"], leased["attempt"]) == (item_id, 1)
    assert await api.ack(leased) == ["acked"]
    [second] = await api.completions("told")
    assert (first["outcome"], second["outcome"]) == ("dead", "acked")
    assert (await begin(api, "purge", topic="t"))["changed"] == 0
    assert await api.completions("told") == []


# -- how it goes on -----------------------------------------------------------------------------------------


async def test_a_large_operation_is_answered_half_way_and_goes_on(own_api: Api) -> None:
    tighten(own_api.host, chunk_items_max=10, operation_rows_max=10, operation_patience_s=0.0)
    await own_api.enqueue(*({"topic": "t", "affinity": str(n)} for n in range(57)))
    answer = await own_api.post("topics/purge", {"topic": "t"})

    assert answer.status_code == 200
    assert answer.json()["topic"] == "t"
    assert answer.json()["items"] == 20  # one chunk a shard
    assert answer.json()["operation"]["state"] == "running"
    path = f"operations/{answer.json()['operation']['id']}"
    seen = (await own_api.get(path)).json()
    assert (seen["state"], seen["total"], seen["changed"], seen["finished_at"]) == ("running", 57, 20, None)
    assert {part["state"] for part in seen["shards"]} == {"running"}
    late = await own_api.enqueue_one("t")
    await go_on(own_api.host)
    seen = (await own_api.get(path)).json()
    assert (seen["state"], seen["scanned"], seen["changed"]) == ("done", 57, 57)
    assert datetime.fromisoformat(seen["finished_at"]) >= datetime.fromisoformat(seen["requested_at"])
    assert await own_api.state(late) == "ready", "it came later"
    assert await go_on(own_api.host) == 0


async def test_a_redrive_takes_nobody_who_dies_later(own_api: Api) -> None:
    tighten(own_api.host, chunk_items_max=2, operation_rows_max=2, operation_patience_s=0.0)
    for n in range(5):
        await die(own_api, str(n), id=own_api.new_id(0))
    begun = await begin(own_api, "redrive", topic="t")
    again = (await own_api.dequeue("t"))[0]
    await own_api.nack(again, final=True, error="again")
    await go_on(own_api.host)

    assert (await own_api.get(f"operations/{begun['id']}")).json()["changed"] == 5
    assert (await own_api.topic("t"))["dead"] == 1
    assert await own_api.state(again["id"]) == "dead"


async def test_operations_take_turns(own_api: Api) -> None:
    tighten(own_api.host, chunk_items_max=5, operation_rows_max=5, operation_patience_s=0.0)
    for topic in ("large", "small"):
        await own_api.enqueue(*({"topic": topic, "id": own_api.new_id(0)} for _ in range(100)))
    large = await begin(own_api, "purge", topic="large")
    small = await begin(own_api, "purge", topic="small")
    for _ in range(6):
        await own_api.host.process.operations.step(own_api.host.stores[0])

    changed = [(await own_api.get(f"operations/{made['id']}")).json()["changed"] for made in (large, small)]
    assert changed == [20, 20]


async def test_a_cancelled_operation_does_no_more(own_api: Api) -> None:
    tighten(own_api.host, chunk_items_max=5, operation_rows_max=5, operation_patience_s=0.0)
    await own_api.enqueue(*({"topic": "t", "affinity": str(n)} for n in range(40)))
    begun = await begin(own_api, "purge", topic="t")
    path = f"operations/{begun['id']}"
    for _ in range(2):
        answer = await own_api.post(f"{path}/cancel", {})
        assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
    assert await go_on(own_api.host) == 0

    assert (await own_api.get(path)).json()["changed"] == begun["changed"] == 10
    assert (await own_api.topic("t"))["ready"] == 30
    done = await begin(own_api, "purge", topic="never-seen")
    assert (await own_api.post(f"operations/{done['id']}/cancel", {})).json()["state"] == "done"


async def test_an_item_that_cannot_be_changed_holds_up_no_other(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await own_api.enqueue_one("t", id=own_api.new_id(0), ack_topic="told") for _ in range(5)]
    bad = ids[2]
    end = bulk._end

    async def refuse(tx: Any, wanted: Any, part: list[str]) -> Any:
        if bad in part:
            await tx.fetch(SQL.lock_operation, id="not a uuid")
        return await end(tx, wanted, part)

    monkeypatch.setattr(bulk, "_end", refuse)
    done = await begin(own_api, "purge", topic="t")

    assert (done["state"], done["changed"], done["skipped"]) == ("done", 4, 1)
    assert await own_api.state(bad) == "ready"
    assert len(await own_api.completions("told")) == 4


async def test_a_small_topic_beside_a_large_one_is_not_looked_for_in_all_of_it(own_api: Api) -> None:
    tighten(own_api.host, page_scan_max=10, operation_patience_s=0.0)
    await own_api.enqueue(*({"topic": "large", "id": own_api.new_id(0)} for _ in range(200)))
    for _ in range(3):
        await own_api.enqueue_one("small", id=own_api.new_id(0))
    done = await begin(own_api, "purge", topic="small")

    assert (done["state"], done["changed"]) == ("done", 3)
    assert (await own_api.topic("large"))["ready"] == 200


async def test_a_rare_item_is_found_behind_a_long_scan(own_api: Api) -> None:
    tighten(own_api.host, page_scan_max=10, operation_rows_max=3)
    await own_api.enqueue(*({"topic": "t", "id": own_api.new_id(0)} for _ in range(60)))
    rare = await own_api.enqueue_one("t", id=own_api.new_id(0), priority=9)
    done = await begin(own_api, "cancel", priority_min=9)

    assert (done["state"], done["scanned"], done["changed"]) == ("done", 61, 1)
    assert await own_api.state(rare) == "gone"


# -- preview ------------------------------------------------------------------------------------------------


async def test_a_preview_changes_nothing(api: Api) -> None:
    ids = await one_in_each_state(api)
    seen = await preview(api, "purge", topic="t")

    assert (seen["matched"], seen["exact"], seen["dry_run"]) == (5, True, True)
    assert set(seen["sample"]) == set(ids.values())
    assert await states(api, *ids.values()) == list(ids)
    assert await pages(api, "operations") == [[]]


async def test_a_preview_shows_some_ids_and_counts_all_or_says_that_it_did_not(own_api: Api) -> None:
    await own_api.enqueue(*({"topic": "t", "affinity": str(n)} for n in range(90)))
    seen = await preview(own_api, "cancel", topic="t", priority_min=0)
    assert (seen["matched"], len(seen["sample"]), seen["exact"]) == (90, bulk.SAMPLE_IDS, True)

    tighten(own_api.host, operation_rows_max=5, operation_patience_s=0.0)
    seen = await preview(own_api, "cancel", topic="t", priority_min=0)
    assert (seen["matched"], seen["exact"]) == (10, False)


# -- the list, limits, who may ------------------------------------------------------------------------------


async def test_operations_are_listed_newest_first_and_paged(own_api: Api) -> None:
    made = [(await begin(own_api, "purge", topic=f"t{n}"))["id"] for n in range(5)]
    found = await pages(own_api, "operations", limit=2)

    assert [entry["id"] for page in found for entry in page] == made[::-1]
    assert [len(page) for page in found] == [2, 2, 1]
    [one] = (await own_api.get("operations", limit=1)).json()["items"]
    assert one == (await own_api.get(f"operations/{made[-1]}")).json()
    assert one["filter"] == {"topic": "t4"}


async def test_another_tenants_operation_is_not_there(api: Api) -> None:
    begun = await begin(api, "purge", topic="t")
    other = Api(api.host)
    for answer in (
        await other.get(f"operations/{begun['id']}"),
        await other.post(f"operations/{begun['id']}/cancel", {}),
        await api.get("operations/x"),
        await api.get(f"operations/{new_id(0)}"),
        await api.get(f"operations/{new_id(4000)}"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert await pages(other, "operations") == [[]]


async def test_running_operations_are_limited_for_each_namespace(own_api: Api) -> None:
    tighten(
        own_api.host, operations_running_max=2, chunk_items_max=1, operation_rows_max=1, operation_patience_s=0.0
    )
    await own_api.enqueue(*({"topic": "t", "id": own_api.new_id(0)} for _ in range(9)))
    first, _ = [await begin(own_api, "cancel", topic="t", priority_min=n) for n in (0, -1)]
    answer = await own_api.post("topics/purge", {"topic": "t"})

    assert (answer.status_code, answer.json()["code"]) == (429, "operation_limit")
    assert await own_api.host.count("operation") == 2 * 2, "nothing was written"
    assert (await Api(own_api.host).post("topics/purge", {"topic": "t"})).status_code == 200
    await own_api.post(f"operations/{first['id']}/cancel", {})
    assert (await own_api.post("topics/purge", {"topic": "t"})).status_code == 200


async def test_operations_are_dropped_a_while_after_their_end(own_api: Api) -> None:
    tighten(own_api.host, chunk_items_max=1, operation_rows_max=1, operation_patience_s=0.0)
    done = await begin(own_api, "purge", topic="never-seen")
    await own_api.enqueue(*({"topic": "t", "id": own_api.new_id(0)} for _ in range(5)))
    running = await begin(own_api, "purge", topic="t")
    tighten(own_api.host, chunk_items_max=100)
    await own_api.clock.advance(own_api.host.settings.operation_retention_s - 60)
    await own_api.host.retain()
    assert (await own_api.get(f"operations/{done['id']}")).status_code == 200
    await own_api.clock.advance(120)
    await own_api.host.retain()

    assert (await own_api.get(f"operations/{done['id']}")).status_code == 404
    assert (await own_api.get(f"operations/{running['id']}")).json()["state"] == "running"


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "/kind"),
    ({"kind": "burn", "filter": {"topic": "t"}}, "/kind"),
    ({"kind": "purge"}, "/filter"),
    ({"kind": "cancel", "filter": {}}, "/filter"),
    ({"kind": "cancel", "filter": {"topic": None}}, "/filter"),
    ({"kind": "purge", "filter": {"topic": "a b"}}, "/filter/topic"),
    ({"kind": "purge", "filter": {"topics": "t"}}, "/filter/topics"),
    ({"kind": "purge", "filter": {"topic": "t", "state": "acked"}}, "/filter/state"),
    ({"kind": "redrive", "filter": {"topic": "t", "state": "ready"}}, "/filter/state"),
    ({"kind": "cancel", "filter": {"topic": "t", "state": "dead"}}, "/filter/state"),
    ({"kind": "purge", "filter": {"priority_min": 2**31}}, "/filter/priority_min"),
    ({"kind": "purge", "filter": {"priority_min": "1"}}, "/filter/priority_min"),
    ({"kind": "purge", "filter": {"priority_min": 2, "priority_max": 1}}, "/filter/priority_min"),
    ({"kind": "purge", "filter": {"enqueued_before": "yesterday"}}, "/filter/enqueued_before"),
    ({"kind": "purge", "filter": {"enqueued_before": "2030-01-01T00:00:00"}}, "/filter/enqueued_before"),
    (
        {
            "kind": "purge",
            "filter": {"enqueued_after": "2020-01-02T00:00:00Z", "enqueued_before": "2020-01-01T00:00:00Z"},
        },
        "/filter/enqueued_after",
    ),
    ({"kind": "purge", "filter": {"metadata": 7}}, "/filter/metadata"),
    ({"kind": "purge", "filter": {"metadata": {"a": "\u0000"}}}, "/filter/metadata"),
    ({"kind": "purge", "filter": {"metadata": {"a": "x" * 1017}}}, "/filter/metadata"),
    ({"kind": "purge", "filter": {"error": "a\u0000"}}, "/filter/error"),
    ({"kind": "purge", "filter": {"error": "x" * 8193}}, "/filter/error"),
    ({"kind": "purge", "filter": {"topic": "t"}, "dry_run": 1}, "/dry_run"),
    ({"kind": "purge", "filter": [], "dry_run": True}, "/filter"),
]


@pytest.mark.parametrize(("body", "pointer"), BAD)
async def test_what_cannot_be_meant_is_refused(api: Api, body: dict[str, Any], pointer: str) -> None:
    answer = await api.post("operations", body)

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), answer.text
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


@pytest.mark.parametrize(
    "wanted",
    [
        {"metadata": {"a": "x" * 1016}},
        {"error": "x" * 8192},
        {"error": "\ud800".encode("utf-16", "surrogatepass").decode("utf-16", "replace")},
        {"priority_min": -(2**31), "priority_max": 2**31 - 1},
        {"enqueued_before": "0001-01-01T00:00:00Z"},
        {"topic": "t" * 128, "state": "dead"},
    ],
)
async def test_filters_at_their_limits_are_taken(api: Api, wanted: dict[str, Any]) -> None:
    assert (await begin(api, "purge", **wanted))["state"] == "done"


async def test_operations_and_the_systems_names(api: Api) -> None:
    for kind in ("purge", "redrive", "cancel"):
        answer = await api.post("operations", {"kind": kind, "filter": {"topic": "_x"}})
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert (await Api(api.host, "_dag").get("operations")).status_code == 403
    assert (await Api(api.host, "_dag").get("dead")).status_code == 403


@pytest.mark.parametrize("path", ["operations", "dead"])
@pytest.mark.parametrize(
    "query", [{"limit": 0}, {"limit": 1001}, {"cursor": "x"}, {"cursor": "AAAA"}, {"cursor": "é"}]
)
async def test_lists_out_of_shape_are_refused(api: Api, path: str, query: dict[str, Any]) -> None:
    answer = await api.get(path, **query)

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), answer.text


async def test_an_operation_whose_answer_was_lost_is_one_operation(api: Api) -> None:
    for _ in range(3):
        await api.enqueue_one("t")
    wanted = {"id": api.new_id(1), "kind": "purge", "filter": {"topic": "t"}}
    first = (await api.post("operations", wanted)).json()
    assert (first["id"], first["changed"]) == (wanted["id"], 3)
    await api.enqueue_one("t")
    again = await api.post("operations", wanted)
    assert (again.status_code, again.json()["changed"]) == (200, 3), "what came since is not touched"
    assert [one["id"] for one in (await api.get("operations")).json()["items"]] == [wanted["id"]]
    other = await api.post("operations", {**wanted, "filter": {"topic": "u"}})
    assert (other.status_code, other.json()["code"], other.json()["outcome"]) == (409, "operation_exists", "none")


async def test_an_id_of_another_namespaces_operation_is_taken(api: Api) -> None:
    wanted = {"id": api.new_id(1), "kind": "purge", "filter": {"topic": "t"}}
    await api.enqueue_one("t")
    await api.post("operations", wanted)
    other = Api(api.host, "beside")
    await other.enqueue_one("t")

    answer = await other.post("operations", wanted)

    assert (answer.status_code, answer.json()["code"], answer.json()["outcome"]) == (
        409,
        "operation_exists",
        "none",
    )
    assert (await other.get(f"operations/{wanted['id']}")).status_code == 404
    assert (await other.get("operations")).json()["items"] == []


async def test_two_calls_for_one_operation_at_once_begin_it_once(api: Api) -> None:
    await api.enqueue_one("t")
    wanted = {"id": api.new_id(0), "kind": "purge", "filter": {"topic": "t"}}
    answers = await asyncio.gather(*(api.post("operations", wanted) for _ in range(5)))
    assert {answer.json()["id"] for answer in answers} == {wanted["id"]}
    assert [one["changed"] for one in (await api.get("operations")).json()["items"]] == [1]


async def test_an_operation_that_is_forgotten_does_not_begin_again(own_api: Api) -> None:
    """Nor does one of an id that no clock has come to, or that names no shard."""
    for wrong in (own_api.new_id(0, age_s=3600), own_api.new_id(0, age_s=-3600), own_api.new_id(9)):
        answer = await own_api.post("operations", {"id": wrong, "kind": "purge", "filter": {"topic": "t"}})
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["pointer"] == "/id"
    assert (await own_api.get("operations")).json()["items"] == []
