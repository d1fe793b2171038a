"""Input that must be refused: with the right status and code, nothing written, and never a 500.

The numbers are those of the bad-input matrix in docs/errors.md. Where the API answers per element
instead of refusing the call, the test of that verb shows it.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.contract.bad_bodies import BAD_ITEMS, DUPLICATES, GOOD, NOT_JSON, POSTS, SETTLING, TOKEN, VERBS
from tests.support.queue_host import Api

JSON = "application/json"
TABLES = ("item", "ready", "deferred", "parked", "lease", "ended", "dedup")


@pytest.fixture
async def untouched(api: Api) -> AsyncIterator[Api]:
    """An API whose tables must hold as many rows after the test as before."""
    before = await api.host.counts(*TABLES)
    yield api
    assert await api.host.counts(*TABLES) == before


async def send(
    api: Api, verb: str, body: bytes, content_type: str | None = JSON, **headers: str
) -> httpx.Response:
    if content_type is not None:
        headers["Content-Type"] = content_type
    path = f"/v1/namespaces/{api.namespace}/{verb}"
    return await api.host.client.post(path, content=body, headers=headers)


def refused(answer: httpx.Response, status: int, code: str, pointer: str | None = None) -> None:
    """The answer is a problem of that status and code, and says that nothing was done."""
    assert answer.status_code == status, (answer.request.url, answer.request.content[:300], answer.text)
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["code"] == code, (answer.request.url, answer.request.content[:300], problem)
    assert problem["status"] == status
    assert problem["outcome"] == "none"
    assert {"type", "title", "detail"} <= problem.keys()
    assert all(set(error) == {"pointer", "detail"} for error in problem.get("errors", []))
    if pointer is not None:
        assert pointer in [error["pointer"] for error in problem["errors"]], problem


@pytest.mark.parametrize("verb", POSTS)
async def test_b13_an_absent_body_is_an_empty_object(untouched: Api, verb: str) -> None:
    for content_type in (None, JSON):
        answer = await send(untouched, verb, b"", content_type)
        refused(answer, 422, "invalid", "/" + next(iter(GOOD[verb])))


@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON.keys())
async def test_b14_to_b20_what_is_not_json(untouched: Api, body: bytes) -> None:
    for verb in POSTS:
        answer = await send(untouched, verb, body)

        refused(answer, 400, "not_json")
        assert "NaN" not in answer.text


@pytest.mark.parametrize("depth", [33, 900, 20_000])
async def test_b15_b16_nesting_over_the_limit(untouched: Api, depth: int) -> None:
    for verb in POSTS:
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
            value = opening * depth + b"1" + closing * depth
            refused(await send(untouched, verb, b'{"items": [{"payload": ' + value + b"}]}"), 400, "too_deep")
        refused(await send(untouched, verb, b"[" * depth), 400, "too_deep")


async def test_b16_nesting_at_the_limit_and_brackets_in_strings(api: Api) -> None:
    inner = 32 - 3
    deep: Any = "[[[" + "{" * 100 + '"]]\\'
    for _ in range(inner):
        deep = [deep]
    await api.enqueue_one("t", payload=deep)

    assert (await api.dequeue_one("t"))["payload"] == deep
    refused(await api.post("enqueue", {"items": [{"topic": "t", "payload": [deep]}]}), 400, "too_deep")


@pytest.mark.parametrize("body", DUPLICATES.values(), ids=DUPLICATES.keys())
async def test_b19_a_name_twice(untouched: Api, body: bytes) -> None:
    for verb in POSTS:
        refused(await send(untouched, verb, body), 400, "duplicate_name")


@pytest.mark.parametrize("text", [r"\ud800", r"\udc00x", r"\ud800\ud800", r"a\udfff"])
async def test_b21_half_of_a_surrogate_pair(untouched: Api, text: str) -> None:
    for verb in POSTS:
        for body in (
            f'{{"items": [{{"topic": "{text}"}}]}}',
            f'{{"items": [{{"topic": "t", "payload": {{"{text}": 1}}}}]}}',
        ):
            refused(await send(untouched, verb, body.encode()), 422, "invalid")


async def test_b21_whole_surrogate_pairs_are_characters(api: Api) -> None:
    answer = await send(api, "enqueue", rb'{"items": [{"topic": "t", "payload": "\ud83d\ude00"}]}')

    assert answer.status_code == 201
    assert (await api.dequeue_one("t"))["payload"] == "\U0001f600"


@pytest.mark.parametrize("verb", POSTS)
async def test_b23_unknown_fields(untouched: Api, verb: str) -> None:
    body = {**GOOD[verb], "extra": 1}
    refused(await untouched.post(verb, body), 422, "invalid", "/extra")
    for name, value in GOOD[verb].items():
        if isinstance(value, list) and isinstance(value[0], dict):
            body = {name: [value[0], {**value[0], "extra": 1}]}
            refused(await untouched.post(verb, body), 422, "invalid", f"/{name}/1/extra")


@pytest.mark.parametrize("verb", POSTS)
async def test_a_body_that_is_no_object(untouched: Api, verb: str) -> None:
    for body in (b"[]", b"7", b'"x"', b"null", b"true", b'[{"topic": "t"}]'):
        refused(await send(untouched, verb, body), 422, "invalid")


@pytest.mark.parametrize("verb", POSTS)
async def test_fields_of_another_type(untouched: Api, verb: str) -> None:
    last: list[object] = [{}] if verb == "cancel" else [{}, 7]
    for value in (None, {}, "x", 7, True, [None], [7], [[]], [True], last):
        for name in GOOD[verb]:
            if isinstance(value, str) and name == "topic":
                continue
            refused(await untouched.post(verb, {name: value}), 422, "invalid")


async def test_b22_to_b27_b46_to_b48_items_out_of_shape(untouched: Api) -> None:
    """The whole call is refused, also what stood before the bad element."""
    for fields, pointer in BAD_ITEMS:
        body = {"items": [{"topic": "t", "id": untouched.new_id(0)}, {"topic": "t", **fields}]}

        refused(await untouched.post("enqueue", body), 422, "invalid", f"/items/1{pointer}")


async def test_every_fault_of_a_call_is_named_up_to_a_limit(untouched: Api) -> None:
    body = {"items": [{"topic": ""}, {"topic": "t", "priority": "x", "lease_s": 0}]}
    answer = await untouched.post("enqueue", body)
    assert [e["pointer"] for e in answer.json()["errors"]] == [
        "/items/0/topic",
        "/items/1/priority",
        "/items/1/lease_s",
    ]

    answer = await untouched.post("enqueue", {"items": [{"topic": ""}] * 1000})
    assert 1 <= len(answer.json()["errors"]) <= 100


@pytest.mark.parametrize("secret", ["s3cr3t payload", "\u2028s3cr3t", "<script>s3cr3t"])
async def test_an_answer_never_repeats_the_input(untouched: Api, secret: str) -> None:
    for fields in ({"topic": secret}, {"topic": "t", "priority": secret}, {"topic": "t", "delivery": secret}):
        answer = await untouched.post("enqueue", {"items": [fields]})
        refused(answer, 422, "invalid")
        assert "s3cr3t" not in answer.text


# -- sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", POSTS)
async def test_b28_b29_a_body_over_the_limit(untouched: Api, verb: str) -> None:
    limit = untouched.host.settings.body_bytes_max

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(limit // 2**20 + 1):
            yield b" " * 2**20

    refused(await send(untouched, verb, b" " * (limit + 1)), 413, "too_large")
    path = f"/v1/namespaces/{untouched.namespace}/{verb}"
    answer = await untouched.host.client.post(path, content=chunks(), headers={"Content-Type": JSON})
    refused(answer, 413, "too_large")


@pytest.mark.parametrize(
    ("field", "setting"),
    [
        ("payload", "payload_bytes_max"),
        ("metadata", "metadata_bytes_max"),
        ("ack_context", "ack_context_bytes_max"),
        ("inputs", "inputs_bytes_max"),
        ("headers", "headers_bytes_max"),
    ],
)
async def test_values_over_their_own_limit(api: Api, field: str, setting: str) -> None:
    limit = getattr(api.host.settings, setting)
    frame = len('{"a":""}')
    before = await api.host.count("item")
    over = {"items": [{"topic": "t"}, {"topic": "t", field: {"a": "x" * (limit - frame + 1)}}]}
    refused(await api.post("enqueue", over), 413, "too_large", f"/items/1/{field}")
    wide = {"items": [{"topic": "t", field: {"a": "é" * (limit // 2)}}]}
    refused(await api.post("enqueue", wide), 413, "too_large", f"/items/0/{field}")
    assert await api.host.count("item") == before

    assert await api.enqueue_one("t", **{field: {"a": "x" * (limit - frame)}})


@pytest.mark.parametrize("rest", ["", ',"max_attempts":3'])
async def test_values_over_their_limit_by_white_space_are_kept_without_it(api: Api, rest: str) -> None:
    limit = api.host.settings.payload_bytes_max
    body = f'{{"items":[{{"topic":"t","payload":{{"a" :{" " * limit} 1.50 , "b": "\\u0041 b"}}{rest}}}]}}'
    assert (await send(api, "enqueue", body.encode())).status_code == 201
    [row] = await api.host.rows(
        "SELECT payload FROM item JOIN namespace USING (namespace_id) WHERE name = $1", api.namespace
    )
    assert row["payload"] == '{"a":1.50,"b":"\\u0041 b"}'
    [item] = await api.dequeue("t", 1)
    held = f'"id":"{item["id"]}","lease_token":"{item["lease_token"]}"'
    output = f'{{"items":[{{{held},"output":[{" " * limit}1 ]}}]}}'
    assert (await send(api, "ack", output.encode())).json()["results"][0]["status"] == "acked"


async def test_outputs_metadata_inputs_and_errors_over_their_limit(api: Api) -> None:
    settings = api.host.settings
    await api.enqueue({"topic": "t"}, {"topic": "t"})
    first, second = [{"id": i["id"], "lease_token": i["lease_token"]} for i in await api.dequeue("t", 2)]
    disabled = await api.enqueue_one("t", disabled=True)
    calls = [
        ("ack", [first, {**second, "output": "x" * settings.output_bytes_max}], "/items/1/output", 413),
        (
            "nack",
            [first, {**second, "metadata": {"a": "x" * settings.metadata_bytes_max}}],
            "/items/1/metadata",
            413,
        ),
        (
            "revive",
            [{"id": disabled}, {"id": "x", "inputs": "x" * settings.inputs_bytes_max}],
            "/items/1/inputs",
            413,
        ),
        ("nack", [first, {**second, "error": "x" * 100_000}], "/items/1/error", 422),
    ]
    for verb, items, pointer, status in calls:
        answer = await api.post(verb, {"items": items})
        refused(answer, status, "too_large" if status == 413 else "invalid", pointer)
    assert await api.state(first["id"]) == "leased"
    assert await api.state(disabled) == "disabled"


# -- media types --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", POSTS)
async def test_b30_encoded_bodies(untouched: Api, verb: str) -> None:
    body = json.dumps(GOOD[verb]).encode()
    for encoding in ("gzip", "br", "deflate", "gzip, gzip", "zstd", "x"):
        answer = await send(untouched, verb, body, **{"Content-Encoding": encoding})

        refused(answer, 415, "unsupported_media_type")


async def test_b31_what_looks_compressed_is_a_string(api: Api) -> None:
    text = "H4sIAAAAAAAA/+3BAQ0AAADCoPdPbQ8HFAAAAAAAAAAAAAAAAAAAAAA\u001f\u008b"
    await api.enqueue_one("t", payload=text)

    assert (await api.dequeue_one("t"))["payload"] == text


OTHER_MEDIA_TYPES = (
    None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/json",
    "application/json; charset=utf-16", "application/json; charset=latin-1", "application/jsonx",
)  # fmt: skip


@pytest.mark.parametrize("verb", POSTS)
async def test_b32_other_media_types(untouched: Api, verb: str) -> None:
    body = json.dumps(GOOD[verb]).encode()
    for content_type in OTHER_MEDIA_TYPES:
        refused(await send(untouched, verb, body, content_type), 415, "unsupported_media_type")


@pytest.mark.parametrize("verb", POSTS)
async def test_b14_b32_what_is_not_json_and_has_no_media_type_is_not_json(untouched: Api, verb: str) -> None:
    refused(await send(untouched, verb, b"{", None), 400, "not_json")


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json;charset=utf-8",
        "application/json; charset=UTF-8",
        "APPLICATION/JSON",
        "application/vnd.x+json",
    ],
)
async def test_b32_json_by_its_other_names(api: Api, content_type: str) -> None:
    assert (await send(api, "enqueue", b'{"items": [{"topic": "t"}]}', content_type)).status_code == 201
    assert (await send(api, "topics/pause", b'{"topic": "t"}', content_type)).status_code == 200


@pytest.mark.parametrize("verb", VERBS)
async def test_b33_b42_accept_and_range_are_ignored(api: Api, verb: str) -> None:
    headers = {"Accept": "image/png", "Range": "bytes=0-0,1-1"}
    answer = await send(api, verb, json.dumps(GOOD[verb]).encode(), **headers)

    assert answer.status_code == (201 if verb == "enqueue" else 200)
    assert answer.headers["content-type"] == JSON


# -- batches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
async def test_b43_batches_of_no_or_too_many_elements(untouched: Api, verb: str) -> None:
    [(name, [element])] = GOOD[verb].items()
    for length in (0, 1001, 5000):
        refused(await untouched.post(verb, {name: [element] * length}), 422, "invalid", f"/{name}")


@pytest.mark.parametrize("verb", SETTLING)
async def test_b43_one_bad_element_refuses_the_call(api: Api, verb: str) -> None:
    await api.enqueue_one("t")
    leased = await api.dequeue_one("t")
    good = {"id": leased["id"], "lease_token": leased["lease_token"]}
    for bad in ({"id": leased["id"]}, {"lease_token": TOKEN}, {**good, "id": 7}, {**good, "lease_token": None}):
        refused(await api.post(verb, {"items": [good, bad]}), 422, "invalid")

    assert await api.state(leased["id"]) == "leased"


async def test_b44_one_id_twice_in_one_call(api: Api) -> None:
    await api.enqueue(*({"topic": "t"} for _ in range(3)))
    first, second, third = await api.dequeue("t", 3)

    assert await api.ack(first, first) == ["acked", "already_acked"]
    assert await api.nack(second, second) == ["requeued", "lease_lost"]
    assert await api.extend(third, third) == ["extended"] * 2
    assert await api.cancel(third["id"], third["id"]) == ["cancelled", "already_cancelled"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        *(
            ({"topics": [{"topic": "t", "count": count}]}, "/topics/0/count")
            for count in (0, -1, 1001, 10**9, 2**70)
        ),
        *(({"topics": [{"topic": "t", "count": count}]}, "/topics/0/count") for count in ("1", 1.0, True, None)),
        *(({"topics": [{"topic": t}]}, "/topics/0/topic") for t in ("", "a b", "\u0000", "x" * 129, 7)),
        ({"topics": [{"topic": "t"}], "wait_s": 31}, "/wait_s"),
        ({"topics": [{"topic": "t"}], "wait_s": -1}, "/wait_s"),
        ({"topics": [{"topic": "t"}], "wait_s": "1"}, "/wait_s"),
        ({"topics": [{"topic": "t"}], "wait_s": True}, "/wait_s"),
        ({"topics": [{"topic": "t"}], "lease_s": 0.5}, "/lease_s"),
        ({"topics": [{"topic": "t"}], "lease_s": 43_201}, "/lease_s"),
        ({"topics": [{"topic": "t"}], "worker": ""}, "/worker"),
        ({"topics": [{"topic": "t"}], "worker": "x" * 201}, "/worker"),
        ({"topics": [{"topic": "t"}], "worker": "a\u0000"}, "/worker"),
        ({"topics": [{"topic": "t", "count": 600}, {"topic": "u", "count": 600}]}, "/topics"),
    ],
)
async def test_b45_dequeues_out_of_shape(untouched: Api, body: dict[str, Any], pointer: str) -> None:
    answer = await untouched.post("dequeue", body)

    refused(answer, 422, "invalid")
    assert any(pointer.startswith(e["pointer"]) for e in answer.json()["errors"]), answer.json()


@pytest.mark.parametrize(
    ("verb", "fields", "pointer"),
    [
        *(("extend", {"lease_s": value}, "lease_s") for value in (0, 0.5, -1, 43_201, "9", True, 1e300)),
        *(("nack", {"delay_s": value}, "delay_s") for value in (-1, 1e12, "9", True)),
        *(("nack", {"metadata": value}, "metadata") for value in ([], 7, {"a": "\u0000"}, "x")),
        *(("nack", {"error": value}, "error") for value in (7, {"a": 1}, "a\u0000", True)),
        *(("nack", {"final": value}, "final") for value in (1, "true", None)),
        *(("nack", {"costs_attempt": value}, "costs_attempt") for value in (0, "false", None)),
    ],
)
async def test_b46_b52_settling_out_of_range(api: Api, verb: str, fields: dict[str, Any], pointer: str) -> None:
    await api.enqueue_one("t")
    leased = await api.dequeue_one("t")
    item = {"id": leased["id"], "lease_token": leased["lease_token"]}

    refused(await api.post(verb, {"items": [item, {**item, **fields}]}), 422, "invalid", f"/items/1/{pointer}")
    assert await api.state(leased["id"]) == "leased"


@pytest.mark.parametrize(
    "body",
    [{"in_flight_max": -1}, {"in_flight_max": "7"}, {"enqueues_per_minute": 1.5}, {"enqueues_per_minute": 2**70},
     {"in_flight_max": True}, {"quota": 7}, [], "x"],
)  # fmt: skip
async def test_namespaces_out_of_shape(untouched: Api, body: Any) -> None:
    answer = await untouched.host.client.put(f"/v1/namespaces/{untouched.namespace}", json=body)

    refused(answer, 422, "invalid")
    assert await untouched.host.count("namespace", f"name = '{untouched.namespace}'") == 0


@pytest.mark.parametrize("name", ["%2E", "%2E%2E"])
async def test_a_namespace_that_paths_cannot_carry_is_refused(untouched: Api, name: str) -> None:
    for verb, body in (("enqueue", {"items": [{"topic": "t"}]}), ("dequeue", {"topics": {"t": 1}})):
        answer = await untouched.host.client.post(f"/v1/namespaces/{name}/{verb}", json=body)

        refused(answer, 422, "invalid")
    assert await untouched.host.count("namespace", "name IN ('.', '..')") == 0


async def test_values_that_databases_dislike_are_kept_as_they_are(api: Api) -> None:
    values = [
        "x'; DROP TABLE item;--",
        "$1",
        "%s",
        "\\",
        "\\x00",
        "\\u0000",
        "\r\n\x1b[31m",
        "\u2028",
        "\ufeff",
        "\uffff",
    ]
    for value in values:
        await api.enqueue_one(
            "t", payload=value, metadata={value: value}, ack_topic="done", ack_context={"v": value}
        )

    for leased in await api.dequeue("t", 99):
        value = leased["payload"]
        assert leased["metadata"] == {value: value}
        await api.results(
            "ack", {"items": [{"id": leased["id"], "lease_token": leased["lease_token"], "output": value}]}
        )
    told = await api.completions("done")
    assert sorted(part["output"] for part in told) == sorted(values)
    assert all(part["ack_context"] == {"v": part["output"]} for part in told)


async def test_a_nul_in_a_payload_an_input_or_an_output_is_kept(api: Api) -> None:
    for value in ("\u0000", {"a\u0000": ["\u0000b"]}, "\\u0000\u0000"):
        await api.enqueue_one("t", payload=value, inputs=value, ack_topic="done")
        leased = await api.dequeue_one("t")
        assert (leased["payload"], leased["inputs"]) == (value, value)
        assert (await api.item(leased["id"]))["payload"] == value
        assert await api.ack(leased, output=value) == ["acked"]
        assert [part["output"] for part in await api.completions("done")] == [value]
