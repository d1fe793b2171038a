"""Bodies that no verb may take, for the tests of bad input."""

from typing import Any

VERBS = ("enqueue", "dequeue", "ack", "nack", "extend", "revive", "cancel")
TOPIC_VERBS = ("topics/pause", "topics/resume", "topics/purge", "topics/redrive")
SETTLING = ("ack", "nack", "extend")
POSTS = VERBS + TOPIC_VERBS
TOKEN = "00000000-0000-4000-8000-000000000000"

GOOD: dict[str, dict[str, Any]] = {
    "enqueue": {"items": [{"topic": "t"}]},
    "dequeue": {"topics": [{"topic": "t", "count": 1}]},
    "ack": {"items": [{"id": "x", "lease_token": TOKEN}]},
    "nack": {"items": [{"id": "x", "lease_token": TOKEN}]},
    "extend": {"items": [{"id": "x", "lease_token": TOKEN}]},
    "revive": {"items": [{"id": "x"}]},
    "cancel": {"ids": ["x"]},
    **{verb: {"topic": "t"} for verb in TOPIC_VERBS},
}

# No JSON, or JSON that two readers would read differently: 400.
NOT_JSON: dict[str, bytes] = {
    "B14 broken": b'{"items": [',
    "B14 no value": b" ",
    "B14 single quotes": b"{'items': []}",
    "B14 trailing comma": b'{"items": [{"topic": "t"},]}',
    "B14 trailing garbage": b'{"items": [{"topic": "t"}]} x',
    "B14 two values": b'{"items": [{"topic": "t"}]}{}',
    "B14 byte order mark": b'\xef\xbb\xbf{"items": [{"topic": "t"}]}',
    "B14 comment": b'{"items": [{"topic": "t"}]} // x',
    "B14 control character": b'{"items": [{"topic": "t\x01"}]}',
    "B17 NaN": b'{"items": [{"topic": "t", "payload": NaN}], "a": NaN}',
    "B17 Infinity": b'{"items": [{"topic": "t", "payload": -Infinity}], "a": Infinity}',
    "B17 1e400": b'{"items": [{"topic": "t", "payload": 1e400}], "a": 1e400}',
    "B18 5000 digits": b'{"items": [{"topic": "t", "payload": ' + b"7" * 5000 + b'}], "a": ' + b"7" * 5000 + b"}",
    "B18 leading zero": b'{"items": [{"topic": "t", "priority": 007}]}',
    "B20 not UTF-8": b'{"items": [{"topic": "t", "payload": "\xff\xfe"}]}',
    "B20 overlong": b'{"items": [{"topic": "t", "payload": "\xc0\xaf"}]}',
    "B20 UTF-16": '{"items": [{"topic": "t"}]}'.encode("utf-16"),
    "B20 UTF-16 without mark": '{"items": [{"topic": "t"}]}'.encode("utf-16-le"),
    "B20 surrogate bytes": b'{"items": [{"topic": "t", "payload": "\xed\xa0\x80"}]}',
}

DUPLICATES: dict[str, bytes] = {
    "top": b'{"items": [{"topic": "t"}], "items": [{"topic": "u"}]}',
    "element": b'{"items": [{"topic": "t", "topic": "u"}]}',
    "payload": b'{"items": [{"topic": "t", "payload": {"a": 1, "a": 1}}]}',
    "escaped": b'{"items": [{"topic": "t", "payload": {"a": 1, "\\u0061": 2}}]}',
    "far apart": b'{"items": [{"topic": "t", "payload": {"a": 1, "b": [{"a": 2}], "a": 3}}]}',
}

LATER_THAN_ALLOWED = "2099-01-01T00:00:00Z"

# (item fields, JSON pointer of the fault): 422.
BAD_ITEMS: list[tuple[dict[str, Any], str]] = [
    *(({"topic": topic}, "/topic") for topic in (
        "", "x" * 129, "a b", "a\nb", "t\n", "\u0000", "a\u0000", "é", "\U0001f600", "a\u200bb", "\u202eabc",
        "a\u0301", "á", "x'; DROP TABLE item;--", "$1", "%s", "%2e%2e/", "\\", "a:b", "a*",
        7, None, True, ["t"], {},
    )),
    *(({"priority": value}, "/priority") for value in (
        2**31, -(2**31) - 1, 2**70, True, "7", 7.0, 1.5, None, [], 1e10,
    )),
    *(({"lease_s": value}, "/lease_s") for value in (
        0, -1, 0.001, 0.999, 43_201, 10 * 365 * 86_400, 1e300, "60", True,
    )),
    *(({"delay_s": value}, "/delay_s") for value in (-1, -0.001, 1e12, 2**70, "5", False, [5])),
    *(({"ttl_s": value}, "/ttl_s") for value in (0, -1, 1e18, "5", True)),
    *(({"deliver_after": value}, "/deliver_after") for value in (
        LATER_THAN_ALLOWED, "9999-12-31T23:59:59Z", "10000-01-01T00:00:00Z", "2026-01-01T00:00:00", "2026-01-01",
        "2026-06-30T23:59:60Z", "2026-13-01T00:00:00Z", "2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z", "now", "",
        "2026-01-01T00:00:00+25:00", 1_700_000_000, "1700000000", True, "\u0662\u0660\u0662\u0666-01-01T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
    )),
    *(({"max_attempts": value}, "/max_attempts") for value in (-1, 2**31, "3", True, 1.0)),
    *(({"disabled": value}, "/disabled") for value in ("true", 1, 0, "yes", [])),
    *(({"delivery": value}, "/delivery") for value in ("exactly_once", "", 1, None, "AT_MOST_ONCE")),
    *(({"idempotency_key": value}, "/idempotency_key") for value in (
        "", "x" * 1025, "x" * 8192, "é" * 513, "😀" * 257, "a\nb", "\u0000", 7, True, "\x7f",
    )),
    *(({"affinity": value}, "/affinity") for value in ("", "x" * 1025, "é" * 513, "a\u0000", "a\nb", 7, [])),
    *(({"ack_topic": value}, "/ack_topic") for value in (
        "", "a b", ":t", "ns:", "a:b:c", ".:t", "..:t", "x" * 65 + ":t", 7, "é:t", "t\n",
    )),
    *(({"ack_context": value}, "/ack_context") for value in ([], "x", 7, True)),
    *(({"metadata": value}, "/metadata") for value in ([], "x", 7, True)),
    *(({"headers": value}, "/headers") for value in ([], "x", 7)),
    ({"headers": {"a": 1}}, "/headers/a"),
    *(({"id": value}, "/id") for value in (
        "", "x", 7, TOKEN, "01890a5d-ac96-774b-bcce-b302099af00", "01890a5dac96774bbcceb302099af000",
        "01890a5d-ac96-774b-ccce-b302099af000", " 01890a5d-ac96-774b-bcce-b302099af000", "\u0000",
        "01890a5d-ac96-774b-bcce-b302099af000\n",
    )),
    *(({"backoff": value}, "/backoff") for value in (7, "x", [], True)),
    ({"backoff": {"base_s": -1}}, "/backoff/base_s"),
    ({"backoff": {"base_s": 1, "factor": -1}}, "/backoff/factor"),
    ({"backoff": {"base_s": 1, "factor": 1e300}}, "/backoff/factor"),
    ({"backoff": {"base_s": 1, "max_s": "x"}}, "/backoff/max_s"),
    *(({"backoff": {"jitter": value}}, "/backoff/jitter") for value in (-0.1, 1.1, "0.2", True)),
    ({"backoff": {"base_s": 1, "jiter": 1}}, "/backoff/jiter"),
    *(({field: {"a": ["x\u0000"]}}, f"/{field}") for field in ("metadata", "ack_context")),
    *(({field: {"x\u0000": 1}}, f"/{field}") for field in ("metadata", "ack_context")),
    ({"headers": {"a": "\u0000"}}, "/headers"),
    ({"delay_s": 10, "ttl_s": 5}, "/ttl_s"),
    ({"delay_s": 10, "deliver_after": "2020-01-01T00:00:00Z"}, "/delay_s"),
    ({"idempotency_key": "k", "affinity": "a"}, "/idempotency_key"),
    ({"idempotency_key": "k", "id": "01890a5d-ac96-774b-bcce-b302099af000"}, "/idempotency_key"),
    ({"prioirty": 7}, "/prioirty"),
    ({"a/b~c": 7}, "/a~1b~0c"),
    ({"lease_token": TOKEN}, "/lease_token"),
]  # fmt: skip
