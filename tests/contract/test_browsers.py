"""What a foreign web page in the browser of somebody on this machine may do: change nothing, and learn nothing.

The services here have no tokens file and no shard that answers: what gets past the door is a 503, not a 403.
"""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.dag.app import create_app as dag_app
from services.dag.settings import DagSettings
from services.queue.app import create_app as queue_app
from services.queue.settings import QueueSettings
from shared.errors import CrossSite, ServiceError, UnknownHost, UnsupportedMedia
from shared.http.browsers import BrowserGuard

ROOT = Path(__file__).resolve().parents[2]
SHARDS = "postgresql://nobody@127.0.0.1:1/none#1"
QUEUE = queue_app(QueueSettings(shards=SHARDS))
DAG = dag_app(DagSettings(shards=SHARDS))
# The ways in: over ASGI, and for hot verbs the short one.
APPS: dict[str, list[Any]] = {"queue": [QUEUE, QUEUE.app], "dag": [DAG, DAG.state.hot]}
PROBES = ("/livez", "/readyz")
FORM = "application/x-www-form-urlencoded"


def described(service: str) -> list[tuple[str, str]]:
    paths = json.loads((ROOT / "docs" / "openapi" / f"{service}.json").read_text())["paths"]
    return [(method, path) for path, methods in paths.items() for method in methods]


EVERY = [(service, method, path) for service in APPS for method, path in described(service)]
CHANGING = [row for row in EVERY if row[1] != "get"]


async def answers(service: str, method: str, path: str, headers: dict[str, str]) -> list[httpx.Response]:
    """What each way in answers to a request without a body."""
    url = re.sub(r"\{[a-z_]+\}", "default", path)
    found = []
    for app in APPS[service]:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
            found.append(await client.request(method.upper(), url, headers=headers))
    return found


async def test_a_name_that_is_not_the_services_is_answered_by_no_call() -> None:
    for service, method, path in EVERY:
        for answer in await answers(service, method, path, {"Host": "rebind.example:8080"}):
            if path in PROBES:
                assert answer.status_code != 403, path
                continue
            assert answer.status_code == 403, (method, path, answer.text)
            assert answer.headers["content-type"] == "application/problem+json"
            assert (answer.json()["code"], answer.json()["outcome"]) == ("unknown_host", "none")
            assert "rebind" not in answer.text


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
async def test_another_sites_page_changes_nothing(headers: dict[str, str]) -> None:
    for service, method, path in CHANGING:
        for answer in await answers(service, method, path, headers):
            assert (answer.status_code, answer.json()["code"]) == (403, "cross_site"), (method, path, answer.text)


@pytest.mark.parametrize(
    "headers", [{"Content-Type": FORM}, {"Content-Type": "text/plain"}, {"Sec-Fetch-Site": "none"}]
)
async def test_an_empty_body_has_a_media_type_too(headers: dict[str, str]) -> None:
    for service, method, path in CHANGING:
        for answer in await answers(service, method, path, headers):
            told = (answer.status_code, answer.json()["code"])
            assert told == (415, "unsupported_media_type"), (method, path, answer.text)


def judged(
    method: str = "POST", path: str = "/v1/x", *, names: str = "", tokens: bool = False, **fields: str
) -> Any:
    """The error that the guard raises at a head, or None."""
    settings = QueueSettings(HEADGATE_HOST_NAMES=names, HEADGATE_TOKENS_FILE="/tokens" if tokens else None)
    headers = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in fields.items()]
    try:
        BrowserGuard(settings).check(method, path, headers)
    except ServiceError as error:
        return type(error)
    return None


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:8080",
        "localhost.:1",
        "127.0.0.1",
        "127.8.9.1:80",
        "[::1]",
        "[::1]:8080",
        "Queue:80",
        "10.0.0.7",
    ],
)
def test_hosts_that_are_the_services(host: str) -> None:
    assert judged(names="queue, 10.0.0.7", host=host) is None


@pytest.mark.parametrize(
    "host",
    [
        "",
        "rebind.example",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "evil.example@localhost",
        "localhost@evil.example",
        "localhost/",
        "localhost:x",
        "localhost,evil.example",
        "[::1",
        "::1",
        "10.0.0.8",
        "0.0.0.0",
        "2130706433",
        "0x7f.1",
        "queue\u00ad",
        "queue.example",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_hosts_that_are_not(host: str, method: str) -> None:
    assert judged(method, names="queue,10.0.0.7", host=host) is UnknownHost


def test_of_two_hosts_each_is_judged() -> None:
    guard = BrowserGuard(QueueSettings())
    with pytest.raises(UnknownHost):
        guard.check("GET", "/v1/x", [(b"host", b"localhost"), (b"host", b"evil.example")])
    with pytest.raises(UnknownHost):
        guard.check("GET", "/v1/x", [(b"host", b"evil.example"), (b"host", b"localhost")])


def test_the_address_that_a_service_listens_on_is_its_name() -> None:
    assert BrowserGuard(QueueSettings(host="10.1.2.3")).knows(b"10.1.2.3:8080")
    for everywhere in ("0.0.0.0", "::"):
        assert not BrowserGuard(QueueSettings(host=everywhere)).knows(everywhere.encode())


def test_a_name_asked_by_again_is_judged_alike_and_few_are_remembered() -> None:
    guard = BrowserGuard(QueueSettings())
    for _ in range(2):
        assert guard.knows(b"localhost:8080")
        assert not guard.knows(b"evil.example")
    assert all(guard.knows(b"localhost:%d" % port) for port in range(1, 1_000))
    assert guard._asked.isdisjoint({b"evil.example"})
    assert len(guard._asked) == 100


JSON = {"content_type": "application/json"}


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8080", "http://localhost:8080"),
        ("localhost", "http://localhost:80"),
        ("localhost", "https://LOCALHOST"),
        ("queue", "https://queue"),
        ("queue", "https://queue:8443"),
        ("localhost:8080", "https://queue"),
    ],
)
def test_the_services_own_pages_may_ask(host: str, origin: str) -> None:
    for site in ({}, {"sec_fetch_site": "same-origin"}):
        assert judged(names="queue", host=host, origin=origin, **site, **JSON) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:3000"},
        {"origin": "http://127.0.0.1:8080"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://localhost:8080/"},
        {"origin": "http://localhost:8080@evil.example"},
        {"origin": "https://localhost:x"},
        {"origin": "http://evil.example", "sec_fetch_site": "same-origin"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "same-site", "origin": "http://localhost:8080"},
    ],
)
def test_pages_of_others_may_not(fields: dict[str, str]) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "BREW"):
        assert judged(method, host="localhost:8080", **fields, **JSON) is CrossSite
        assert judged(method, host="localhost:8080", tokens=True, **fields, **JSON) is None
    assert judged("GET", host="localhost:8080", **fields) is None


def test_programs_may_leave_out_what_only_browsers_send() -> None:
    assert judged(host="localhost") is None
    assert judged(host="localhost", **JSON) is None
    assert judged(host="localhost", content_type=FORM) is UnsupportedMedia
    assert judged(host="localhost", origin="http://localhost") is UnsupportedMedia


def test_with_a_tokens_file_any_name_is_answered() -> None:
    assert judged(tokens=True, host="rebind.example", **JSON) is None
    assert judged(tokens=True, host="rebind.example", content_type=FORM) is UnsupportedMedia
