"""What programs do with every DAG goes below the framework when it is asked for plainly, and answers the same."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from shared.http.access import make_token
from tests.support.apps import DAG_TOKEN, Service, dag_service, queue_service
from tests.support.databases import Databases

PLAIN = "application/json"
# The same to every reader, and not what the short way takes without a look.
ROUTED = "application/json; charset=utf-8"
NODES = [{"key": "a", "topic": "t"}, {"key": "b", "topic": "t", "upstream": ["a"], "external": ["x"]}]
UNKNOWN = "01890000-0000-7000-8000-000000000000"
_EDGE = {"date", "server", "content-length"}
READER, READER_LINE = make_token(["default"], ["consume"], None)
WRITER, WRITER_LINE = make_token(["default"], ["enqueue"], None)


@pytest.fixture(scope="module")
async def service(
    databases: Databases, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Service]:
    """Both services over sockets; callers need tokens. `taken` counts what went the short way."""
    tokens = tmp_path_factory.mktemp("tokens") / "tokens.json"
    tokens.write_text(f"{READER_LINE}\n{WRITER_LINE}\n")
    database = await databases.create(queue_shards=1, dag_shards=1)
    async with (
        queue_service(database, redis_url) as queue,
        dag_service(database, redis_url, queue.url, HEADGATE_TOKENS_FILE=tokens) as made,
    ):
        yield made
    await databases.drop(database)


@pytest.fixture
def taken(service: Service, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The verbs that went the short way."""
    names: list[str] = []
    answer = service.app.state.hot.answer

    async def counted(target: Any, *rest: Any) -> Any:
        names.append(target.name)
        return await answer(target, *rest)

    monkeypatch.setattr(service.app.state.hot, "answer", counted)
    return names


async def post(
    service: Service, path: str, body: Any, media: str, token: str | None = WRITER, ns: str = "default"
) -> httpx.Response:
    headers = {"Content-Type": media} | ({"Authorization": f"Bearer {token}"} if token else {})
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await service.client.post(f"/v1/namespaces/{ns}/dags{path}", content=content, headers=headers)


async def wait(service: Service, dag: str, query: str, token: str | None = WRITER) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return await service.client.get(f"/v1/namespaces/default/dags/{dag}/wait{query}", headers=headers)


def same(one: httpx.Response, other: httpx.Response, *but: str) -> None:
    """Two answers that differ in nothing but these members of their bodies."""
    assert one.status_code == other.status_code, (one.text, other.text)
    # What uvicorn adds by itself; the services switch it off.
    heads = [
        {name: value for name, value in answer.headers.items() if name not in _EDGE} for answer in (one, other)
    ]
    assert heads[0] == heads[1]
    first, second = one.json(), other.json()
    for name in but:
        assert first.pop(name) != second.pop(name)
    assert first == second


async def test_whole_life_by_either_way(service: Service, taken: list[str]) -> None:
    found = []
    for media in (PLAIN, ROUTED):
        made = await post(service, "", {"nodes": NODES, "hold": True, "metadata": {"n": [1, 2.5]}}, media)
        dag = made.json()["id"]
        calls = [
            await post(service, f"/{dag}/nodes", {"nodes": [{"key": "c", "topic": "t"}]}, media),
            await post(
                service, f"/{dag}/dependencies", {"dependencies": [{"upstream": "b", "downstream": "c"}]}, media
            ),
            await post(service, f"/{dag}/resolve", {"external": [{"node": "b", "name": "x"}]}, media),
            await wait(service, dag, "?timeout_s=0" if media == PLAIN else "?timeout_s=0&"),
        ]
        found.append((made, calls))

    [(plain, plain_calls), (routed, routed_calls)] = found
    assert plain.status_code == 201
    same(plain, routed, "id", "created_at")
    for number, (one, other) in enumerate(zip(plain_calls, routed_calls, strict=True)):
        if number == 0:
            ids = [answer.json()["nodes"][0]["item_id"] for answer in (one, other)]
            assert ids[0] != ids[1] and one.text.replace(ids[0], ids[1]) == other.text
        else:
            same(one, other, *(("id", "created_at") if number == 3 else ()))
    short = ["dags", *(f"dags/{{dag}}/{verb}" for verb in ("nodes", "dependencies", "resolve", "wait"))]
    assert taken == short


async def test_a_plain_dag_by_either_way(service: Service, taken: list[str]) -> None:
    """Also when its key is taken, and its nodes are named again."""
    nodes = [
        {"key": "a", "topic": "t", "payload": {"b": 1, "a": 2}},
        {"key": "b", "topic": "t", "upstream": ["a"]},
    ]
    made, known = [
        [await post(service, "", {"nodes": nodes, "key": key}, media) for media, key in ways]
        for ways in (((PLAIN, "one"), (ROUTED, "other")), ((ROUTED, "one"), (PLAIN, "other")))
    ]
    same(*made, "id", "created_at", "key")
    assert [answer.status_code for answer in (*made, *known)] == [201, 201, 200, 200]
    ids = [answer.json()["id"] for answer in made]
    assert [answer.json()["id"] for answer in known] == ids
    again = [await post(service, f"/{dag}/nodes", {"nodes": nodes}, ROUTED) for dag in ids]
    assert [answer.status_code for answer in again] == [201, 201]
    changed = [nodes[0] | {"payload": {"b": 1, "a": 3}}]
    same(*[await post(service, f"/{dag}/nodes", {"nodes": changed}, ROUTED) for dag in ids])
    assert taken == ["dags", "dags"]


@pytest.mark.parametrize("path", ["", f"/{UNKNOWN}/nodes", f"/{UNKNOWN}/dependencies", f"/{UNKNOWN}/resolve"])
@pytest.mark.parametrize(
    ("body", "token", "ns"),
    [
        (b"{", WRITER, "default"),
        (b'{"nodes": [{"key": "n", "topic": "t"}], "nodes": 1}', WRITER, "default"),
        ({"nodes": [{"key": "", "topic": "t"}]}, WRITER, "default"),
        ({"nodes": [{"key": "n", "topic": "_t"}]}, WRITER, "default"),
        ({"nodes": [{"key": "n", "topic": "t", "upstream": ["n"]}]}, WRITER, "default"),
        ({"dependencies": [{"upstream": "x", "downstream": "y"}]}, WRITER, "default"),
        ({"external": [{"node": "x", "name": "y", "data": "z" * 65_536}]}, WRITER, "default"),
        (b"{", None, "default"),
        (b"{", "nobody's", "default"),
        (b"{", READER, "default"),
        (b"{", WRITER, "others"),
        (b"{", DAG_TOKEN, "a" * 65),
        (b"", WRITER, "default"),
    ],
    ids=lambda part: "-" if isinstance(part, str) else str(part)[:30],
)
async def test_refusals_are_the_same(
    service: Service, taken: list[str], path: str, body: Any, token: str | None, ns: str
) -> None:
    plain, routed = [await post(service, path, body, media, token, ns) for media in (PLAIN, ROUTED)]

    assert plain.status_code >= 400 or (path == "" and body == b"")
    same(plain, routed, *(("id", "created_at") if plain.status_code == 201 else ()))
    assert len(taken) == 1


@pytest.mark.parametrize("token", [WRITER, READER, None, "nobody's"], ids=["writer", "reader", "none", "unknown"])
@pytest.mark.parametrize("dag", [UNKNOWN, "x", "7" * 300])
async def test_waits_are_refused_the_same(service: Service, taken: list[str], dag: str, token: str | None) -> None:
    same(await wait(service, dag, "?timeout_s=1.5", token), await wait(service, dag, "?timeout_s=1.5&", token))
    assert taken == ["dags/{dag}/wait"]


@pytest.mark.parametrize(
    "query",
    ["?timeout_s=31", "?timeout_s=30.1", "?timeout_s=-1", "?timeout_s=", "?timeout_s=.", "?timeout_s=1.2.3"],
)
async def test_what_the_short_way_cannot_judge_is_judged_by_the_route(
    service: Service, taken: list[str], query: str
) -> None:
    answer = await wait(service, UNKNOWN, query)

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert taken == []


async def test_other_methods_and_paths_stay_with_the_routes(service: Service, taken: list[str]) -> None:
    headers = {"Authorization": f"Bearer {WRITER}"}
    base = "/v1/namespaces/default/dags"
    statuses = [
        (await service.client.request(method, path, headers=headers)).status_code
        for method, path in (
            ("GET", base),
            ("GET", f"{base}/{UNKNOWN}/nodes"),
            ("POST", f"{base}/{UNKNOWN}/wait"),
            ("PUT", base),
            ("POST", f"{base}/{UNKNOWN}/pause"),
            ("POST", f"{base}//nodes"),
            ("GET", f"{base}//wait"),
        )
    ]

    assert statuses == [200, 404, 405, 405, 404, 404, 404]
    assert taken == []


async def test_requests_are_measured_under_the_documented_path(service: Service, taken: list[str]) -> None:
    for query in ("?timeout_s=0", "?timeout_s=0&"):
        await wait(service, UNKNOWN, query)

    text = (await service.client.get("/metrics")).text
    [line] = [
        line
        for line in text.splitlines()
        if line.startswith("headgate_http_request_seconds_count")
        and "/dags/{dag}/wait" in line
        and 'status="404"' in line
    ]
    assert 'route="/v1/namespaces/{ns}/dags/{dag}/wait"' in line and 'method="GET"' in line
