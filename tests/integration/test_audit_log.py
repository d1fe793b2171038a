"""What operators did is kept, by both services, and listed: who, what, to what, how many, from where."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from shared.console.audit_log import SQL, AuditLog
from shared.console.routes import _END
from shared.errors import ShardUnavailable
from shared.http.access import make_token
from shared.ids import new_id
from tests.support import apps
from tests.support.apps import Service
from tests.support.bounded import steps
from tests.support.console import site
from tests.support.databases import Database

NS = "/v1/namespaces/default"


async def listed(service: Service, **query: Any) -> list[dict[str, Any]]:
    answer = await service.client.get("/v1/audit", params=query)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def test_operators_calls_are_kept_and_those_of_programs_are_not(queue_service: Service) -> None:
    post = queue_service.client.post
    await post(f"{NS}/enqueue", json={"items": [{"topic": "mail"}] * 3})
    await post(f"{NS}/dequeue", json={"topics": [{"topic": "mail", "count": 1}]})
    await post(f"{NS}/topics/pause", json={"topic": "mail"})
    await post(f"{NS}/operations", json={"kind": "cancel", "filter": {"topic": "mail"}, "dry_run": True})
    await post(f"{NS}/operations", json={"kind": "cancel", "filter": {"topic": "mail", "state": "ready"}})
    await queue_service.client.put(NS, json={"items_max": 5})
    await post(f"{NS}/topics/purge", json={"topic": ""})
    found = await listed(queue_service)
    assert [(each["verb"], each["target"], each["changed"]) for each in found[1:]] == [
        ("cancel operation", found[1]["target"], 2),
        ("pause topic", "mail", None),
    ]
    assert found[0]["verb"] == "set quotas" and found[0]["detail"] == '{"items_max":5}'
    assert {(each["who"], each["origin"], each["namespace"]) for each in found} == {
        ("anybody", "127.0.0.1", "default")
    }


async def test_verbs_of_dags_and_what_only_pages_are_named_for(dag_service: Service) -> None:
    post = dag_service.client.post
    made = await post(
        f"{NS}/dags", json={"hold": True, "nodes": [{"key": "a", "topic": "t"}, {"key": "b", "topic": "t"}]}
    )
    dag = made.json()["id"]
    await post(f"{NS}/dags/{dag}/release", json={})
    await post(f"{NS}/dags/{dag}/pause", json={}, headers={"x-headgate-page": "1"})
    await post(f"{NS}/dags/{dag}/close", json={}, headers={"x-headgate-page": "1"})
    await post(f"{NS}/dags/{dag}/nodes/cancel", json={"nodes": ["a", "b"]})
    await post(f"{NS}/dags/nothing/cancel", json={})
    found = await listed(dag_service)
    assert [(each["verb"], each["target"], each["changed"]) for each in found] == [
        ("nodes cancel DAG", dag, 2),
        ("close DAG", dag, None),
        ("pause DAG", dag, None),
    ]


async def test_limits_runs_of_workflows_and_the_mark_of_exports_are_kept_too(
    queue_service: Service, dag_service: Service
) -> None:
    await queue_service.client.put(f"{NS}/topics/limits", json={"topic": "mail", "concurrency": 2})
    await queue_service.client.post(f"{NS}/enqueue", json={"items": [{"topic": "mail"}] * 3})
    await queue_service.client.post(f"{NS}/topics/purge", json={"topic": "mail"})
    found = await listed(queue_service)
    assert [(each["verb"], each["target"], each["changed"]) for each in found] == [
        ("purge topic", "mail", 3),
        ("limit topic", "mail", None),
    ]
    await dag_service.client.post(f"{NS}/workflows", json={"type": "t", "id": "w"})
    for verb in ("pause", "resume", "cancel", "terminate"):
        assert (await dag_service.client.post(f"{NS}/workflows/w/{verb}", json={})).status_code == 202
    await dag_service.client.put(f"{NS}/exports/mark", json={"until": "2026-01-01T00:00:00Z"})
    spec = {"spec": {"interval_s": 3600}, "action": {"item": {"topic": "t"}}}
    await dag_service.client.put(f"{NS}/schedules/s", json=spec)
    back = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T02:00:00Z"}
    await dag_service.client.post(f"{NS}/schedules/s/backfill", json=back)
    found = await listed(dag_service)
    assert [(each["verb"], each["target"], each["changed"]) for each in found] == [
        ("backfill schedule", "s", 2),
        ("set schedule", "s", None),
        ("mark as exported", "", None),
        *((f"{verb} workflow", "w", None) for verb in ("terminate", "cancel", "resume", "pause")),
    ]


async def test_what_was_asked_is_kept_whatever_fills_the_body(queue_service: Service) -> None:
    body = b" " * 2_000_000 + b'{"topic": "mail"}'
    headers = {"content-type": "application/json"}
    answer = await queue_service.client.post(f"{NS}/topics/purge", content=body, headers=headers)
    assert answer.status_code == 200
    [found] = await listed(queue_service)
    assert (found["target"], found["detail"]) == ("mail", '{"topic":"mail"}')


async def test_a_call_of_which_nobody_knows_whether_it_was_done_is_kept(
    queue_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = queue_service.app.app.state.process.topics

    async def lost(*_: Any) -> Any:
        raise ShardUnavailable("shards [1] did not answer", outcome="unknown")

    async def refused(*_: Any) -> Any:
        raise ShardUnavailable("shards [1] did not answer")

    for answer in (lost, refused):
        monkeypatch.setattr(topics, "pause", answer)
        assert (await queue_service.client.post(f"{NS}/topics/pause", json={"topic": "mail"})).status_code == 503
    [found] = await listed(queue_service)
    assert (found["verb"], found["target"]) == ("pause topic (outcome unknown)", "mail")


async def test_the_end_that_a_shard_did_not_take_is_written_when_it_is_back(
    queue_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server restarts between a deed and the end of its entry."""
    app = queue_service.app.app
    shard = next(iter(app.state.process.shards))
    fetch = shard.pool.fetch

    async def restarts(statement: Any, **values: Any) -> Any:
        if statement.name in ("end_audit_entry", "drop_audit_entry"):
            raise ShardUnavailable("it does not answer", outcome="unknown")
        return await fetch(statement, **values)

    await queue_service.client.post(f"{NS}/enqueue", json={"items": [{"topic": "mail"}] * 3})
    monkeypatch.setattr(shard.pool, "fetch", restarts)
    for topic in ("mail", ""):
        await queue_service.client.post(f"{NS}/topics/purge", json={"topic": topic})
    assert [each["verb"] for each in await listed(queue_service)] == ["purge topic (outcome unknown)"] * 2
    assert await app.state.watch.audit_log.settle() == 0
    monkeypatch.setattr(shard.pool, "fetch", fetch)
    await app.state.watch.audit_log.settle()
    [found] = await listed(queue_service)
    assert (found["verb"], found["target"], found["changed"]) == ("purge topic", "mail", 3)


async def test_how_many_an_operation_has_changed_is_told_when_it_has_ended(
    database: Database, redis_url: str
) -> None:
    """And not how many it had changed when it was answered."""
    async with apps.queue_service(
        database, redis_url, operation_patience_s=0.0, chunk_items_max=2, operation_poll_s=3600.0
    ) as service:
        post, process = service.client.post, service.app.app.state.process
        items = [{"topic": topic, "id": new_id(0)} for topic in ("mail", "video") for _ in range(9)]
        assert (await post(f"{NS}/enqueue", json={"items": items})).status_code == 201
        body = {"kind": "purge", "filter": {"topic": "video"}}
        assert (await post(f"{NS}/operations", json=body)).status_code == 202
        assert (await post(f"{NS}/topics/purge", json={"topic": "mail"})).json()["operation"]["state"] == "running"
        audit_log = service.app.app.state.watch.audit_log
        assert await audit_log.settle() == 0
        assert [each["changed"] for each in await listed(service)] == [None, None]
        for store in [store for store in process.stores.values() for _ in range(20)]:
            await process.operations.step(store)
        await audit_log.settle()
        assert [each["changed"] for each in await listed(service)] == [9, 9]


async def test_an_entry_whose_answer_was_lost_is_not_there_twice(
    queue_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = queue_service.app.app
    shard = next(iter(app.state.process.shards))
    fetch = shard.pool.fetch

    async def loses(statement: Any, **values: Any) -> Any:
        answer = await fetch(statement, **values)
        if statement.name == "begin_audit_entry":
            raise ShardUnavailable("it did not answer", outcome="unknown")
        return answer

    monkeypatch.setattr(shard.pool, "fetch", loses)
    await queue_service.client.post(f"{NS}/topics/pause", json={"topic": "mail"})
    assert [each["verb"] for each in await listed(queue_service)] == ["pause topic"]
    await app.state.watch.audit_log.settle()
    assert await fetch(SQL.audit_entries, before=_END, before_id=0, namespace=None, limit=9) == []


async def test_what_is_kept_before_a_call_is_checked_is_bounded(
    queue_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []

    async def begin(_self: Any, _call: str, entry: dict[str, str]) -> None:
        seen.append(entry)

    monkeypatch.setattr(AuditLog, "begin", begin)
    post = queue_service.client.post
    assert (await post(f"{NS}/topics/purge", json={"topic": "x" * 500_000})).status_code == 422
    assert (await post(f"{NS}/operations", json={"kind": "x" * 500_000})).status_code == 422
    assert len(seen) == 2 and max(len(text) for entry in seen for text in entry.values()) == 1_000


async def test_a_call_with_a_nul_is_no_error_of_the_service(queue_service: Service, dag_service: Service) -> None:
    """Postgres takes none, and a caller cannot fill the log of errors with what is refused anyway."""
    calls = [
        (dag_service, "POST", f"{NS}/dags/%00/cancel", {}),
        (dag_service, "POST", "/v1/namespaces/%00/dags/x/retry", {}),
        (dag_service, "PUT", f"{NS}/schedules/%00", {}),
        (dag_service, "DELETE", f"{NS}/schedules/%00", None),
        (dag_service, "POST", f"{NS}/workflows/%00/cancel", {}),
        (dag_service, "PUT", "/v1/namespaces/%00", {}),
        (queue_service, "PUT", "/v1/namespaces/%00", {}),
        (queue_service, "POST", f"{NS}/topics/purge", {"topic": "a\0"}),
        (queue_service, "POST", f"{NS}/operations", {"kind": "\0"}),
        (queue_service, "POST", f"{NS}/operations/%00/cancel", {}),
        (queue_service, "POST", "/v1/shards/%00/commands", {"do": "drain"}),
    ]
    for service, method, path, body in calls:
        with capture_logs() as lines:
            answer = await service.client.request(method, path, json=body)
        assert 400 <= answer.status_code < 500, path
        assert [line for line in lines if line["log_level"] == "error"] == [], path
    assert await listed(queue_service) == await listed(dag_service) == []


async def test_the_same_call_once_more_is_the_same_entry(queue_service: Service, dag_service: Service) -> None:
    given = new_id(0)
    await queue_service.client.post(f"{NS}/enqueue", json={"items": [{"topic": "mail"}] * 3})
    body = {"kind": "cancel", "filter": {"topic": "mail"}, "id": given}
    for _ in range(2):
        assert (await queue_service.client.post(f"{NS}/operations", json=body)).status_code == 200
    assert (await queue_service.client.post("/v1/namespaces/a/operations", json=body)).status_code >= 400
    [found] = await listed(queue_service)
    assert (found["verb"], found["target"], found["changed"]) == ("cancel operation", given, 3)
    spec = {"spec": {"interval_s": 3600}, "action": {"item": {"topic": "t"}}}
    await dag_service.client.put(f"{NS}/schedules/s", json=spec)
    for _ in range(2):
        triggered = {"request_id": "6f6e9b5c-1f0c-4b8e-8d3e-2b1f6a7c9d10"}
        assert (await dag_service.client.post(f"{NS}/schedules/s/trigger", json=triggered)).status_code < 300
    assert (await dag_service.client.delete(f"{NS}/schedules/s")).status_code < 300
    assert [each["verb"] for each in await listed(dag_service)] == [
        "delete schedule",
        "trigger schedule",
        "set schedule",
    ]


@pytest.mark.parametrize("verb", ["pause", "resume", "move", "cancel", "terminate"])
async def test_a_verb_of_a_run_once_more_is_the_same_entry(dag_service: Service, verb: str) -> None:
    await dag_service.client.post(f"{NS}/workflows", json={"type": "t", "id": "w"})
    body = {"id": "once", **({"version": "2"} if verb == "move" else {})}
    for _ in range(2):
        answer = await dag_service.client.post(f"{NS}/workflows/w/{verb}", json=body)
        assert answer.status_code == 202, answer.text
    assert [each["verb"] for each in await listed(dag_service)] == [f"{verb} workflow"]


async def test_other_verbs_of_a_run_under_one_id_are_entries_of_their_own(dag_service: Service) -> None:
    """Each of them is done."""
    await dag_service.client.post(f"{NS}/workflows", json={"type": "t", "id": "w"})
    for version in ("2", "3", "2"):
        answer = await dag_service.client.post(f"{NS}/workflows/w/move", json={"id": "x", "version": version})
        assert answer.json()["version"] == version
    found = [each["detail"] for each in await listed(dag_service)]
    assert found == ['{"id":"x","version":"3"}', '{"id":"x","version":"2"}']


async def test_why_a_run_was_paused_is_kept(dag_service: Service) -> None:
    await dag_service.client.post(f"{NS}/workflows", json={"type": "t", "id": "w"})
    answer = await dag_service.client.post(f"{NS}/workflows/w/pause", json={"reason": "moving house"})
    assert (answer.status_code, answer.json()["paused"]) == (202, True)
    [found] = await listed(dag_service)
    assert (found["verb"], found["detail"]) == ("pause workflow", '{"reason":"moving house"}')


@pytest.mark.parametrize("first", ["refused", "done"])
async def test_a_call_that_came_twice_at_once_is_kept_if_one_of_them_was_done(
    queue_service: Service, first: str
) -> None:
    """Its caller had waited for the first no longer, which was refused while the second was done."""
    entries = queue_service.app.app.state.watch.audit_log
    names = ("namespace", "who", "verb", "target", "origin", "detail")
    call, said = str(uuid4()), dict.fromkeys(names, "default")
    one, other = await entries.begin(call, said), await entries.begin(call, said)
    assert (one.is_known, other.is_known) == (False, True)
    if first == "done":
        await entries.end(other, "mail", 3)
    await entries.drop(one)
    if first == "refused":
        await entries.end(other, "mail", 3)
    [found] = await listed(queue_service)
    assert (found["verb"], found["target"], found["changed"]) == ("default", "mail", 3)


async def test_an_operation_sent_again_with_the_id_of_its_answer_is_the_same_entry(
    queue_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of its shards was away when it was begun."""
    post = queue_service.client.post
    shard = next(iter(queue_service.app.app.state.process.shards))
    fetch = shard.pool.fetch

    async def away(statement: Any, **values: Any) -> Any:
        if "audit" in statement.name:
            raise ShardUnavailable("it does not answer")
        return await fetch(statement, **values)

    for is_away in (False, True):
        for verb, body in (
            ("operations", {"kind": "purge", "filter": {"topic": "mail"}}),
            ("topics/purge", {"topic": "mail"}),
        ):
            await post(f"{NS}/enqueue", json={"items": [{"topic": "mail"}] * 3})
            before = len(await listed(queue_service))
            with monkeypatch.context() as meanwhile:
                if is_away:
                    meanwhile.setattr(shard.pool, "fetch", away)
                begun = (await post(f"{NS}/{verb}", json=body)).json()
            again = {"kind": "purge", "filter": {"topic": "mail"}, "id": begun.get("operation", begun)["id"]}
            assert (await post(f"{NS}/operations", json=again)).json()["changed"] == 3
            found = await listed(queue_service)
            assert len(found) == before + 1 and found[0]["changed"] == 3


async def test_how_many_is_told_though_the_first_end_was_left(
    queue_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operation that goes on, whose shard went away before it was answered, ends before that is made up for."""
    audit_log = queue_service.app.app.state.watch.audit_log
    shard = next(iter(queue_service.app.app.state.process.shards))
    entry = {"namespace": "default", "who": "w", "verb": "v", "target": "", "origin": "", "detail": ""}
    begun = await audit_log.begin(str(uuid4()), entry)
    fetch = shard.pool.fetch

    async def away(statement: Any, **values: Any) -> Any:
        raise ShardUnavailable("it does not answer", outcome="unknown")

    async def ended(*_: Any) -> dict[str, Any]:
        return {"state": "done", "changed": 7}

    monkeypatch.setattr(shard.pool, "fetch", away)
    await audit_log.goes_on(begun, "t", "default", "an operation", str(uuid4()))
    monkeypatch.setattr(shard.pool, "fetch", fetch)
    monkeypatch.setattr(audit_log, "_operation", ended)
    for _ in range(2):
        await audit_log.settle()
        assert [each["changed"] for each in await listed(queue_service)] == [7]


async def test_pages_of_the_list_go_on_over_shards_and_equal_times(queue_service: Service) -> None:
    shards = list(queue_service.app.app.state.process.shards)
    for n, shard in enumerate([shards[0], shards[1], shards[0], shards[2], shards[1]]):
        await shard.pool.transaction(_insert(n))
    seen: list[str] = []
    cursor = None
    for _ in steps():
        answer = (
            await queue_service.client.get(
                "/v1/audit", params={"limit": 2, **({"cursor": cursor} if cursor else {})}
            )
        ).json()
        seen += [each["target"] for each in answer["items"]]
        cursor = answer["next_cursor"]
        if cursor is None:
            break
    assert sorted(seen) == ["0", "1", "2", "3", "4"]


def _insert(n: int) -> Any:
    async def work(transaction: Any) -> None:
        await transaction._connection.execute(
            "INSERT INTO audit_entry (at, namespace, who, verb, target, origin, detail)"
            f" VALUES ('2026-01-01Z', 'default', 'w', 'v', '{n}', 'o', '')"
        )

    return work


async def test_a_first_shard_that_is_away_loses_no_entry(
    queue_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = queue_service.app.app
    shard = next(iter(app.state.process.shards))
    fetch = shard.pool.fetch

    async def away(statement: Any, **values: Any) -> Any:
        if "audit" in statement.name:
            raise ShardUnavailable("it does not answer")
        return await fetch(statement, **values)

    monkeypatch.setattr(shard.pool, "fetch", away)
    await queue_service.client.post(f"{NS}/topics/pause", json={"topic": "mail"})
    assert [each["verb"] for each in await listed(queue_service)] == ["pause topic"]
    assert (await queue_service.client.get("/v1/audit")).json()["away"] == [shard.number]


async def test_what_is_older_than_its_time_goes(database: Database, redis_url: str) -> None:
    async with apps.queue_service(database, redis_url, audit_retention_s=0) as service:
        for topic in ("a", "b"):
            await service.client.post(f"{NS}/topics/pause", json={"topic": topic})
        assert len(await listed(service)) <= 1


async def test_a_token_is_named_by_its_id_and_sees_its_own_namespaces(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    admin, line = make_token(["*"], ["admin", "ops"], None)
    some, other = make_token(["a"], ["ops"], None)
    file = tmp_path / "tokens.jsonl"
    file.write_text(f"{line}\n{other}\n")
    async with site(database, redis_url, HEADGATE_TOKENS_FILE=file) as made:
        headers = {"authorization": f"Bearer {admin}"}
        await made.queue.client.put("/v1/namespaces/a", json={}, headers=headers)
        # through the other service, as from its pages
        relayed = "/ui/queue/v1/namespaces/a/topics/pause"
        answer = await made.dag.client.post(relayed, json={"topic": "t"}, headers=headers)
        assert answer.status_code == 200
        get = made.queue.client.get
        mine = {"authorization": f"Bearer {some}"}
        found = (await get("/v1/audit", params={"namespace": "a"}, headers=mine)).json()["items"]
        assert [each["who"] for each in found] == [admin.split("_")[1]] * 2
        assert found[0]["origin"] == "127.0.0.1 for 127.0.0.1"
        assert (await get("/v1/audit", headers=mine)).status_code == 422
        assert (await get("/v1/audit", params={"namespace": "b"}, headers=mine)).status_code == 404
        assert (await get("/v1/audit", params={"cursor": "x"}, headers=headers)).status_code == 422


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b"[" * 20_000,
        b"{",
        b'{"kind": 5}',
        b'{"topic": "a\\u0000b"}',
        b'{"topic": ["a"], "id": {"b": 1}}',
        b'{"kind": "cancel", "filter": {"topic": "\\ud800"}}',
    ],
)
@pytest.mark.parametrize("path", ["topics/pause", "operations"])
async def test_a_body_that_says_nothing_is_refused_as_without_a_log(
    queue_service: Service, path: str, body: bytes
) -> None:
    """An entry begins before anybody has checked what it is of."""
    json = {"content-type": "application/json"}
    answer = await queue_service.client.post(f"{NS}/{path}", content=body, headers=json)
    assert answer.status_code in (400, 422), answer.text
    assert await listed(queue_service) == []
