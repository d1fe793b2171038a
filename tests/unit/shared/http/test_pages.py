"""The pages of the services: what policy they are served with, and that they ask for what there is."""

import gzip
import hashlib
import json
import re

import httpx
import pytest
from fastapi import FastAPI

from services.dag.app import create_app as create_dag_app
from services.dag.settings import DagSettings
from services.local.stack import ROOT
from services.queue.app import create_app as create_queue_app
from services.queue.settings import QueueSettings
from shared.admission.delay import LoopLag
from shared.http.edge import install
from shared.http.pages import add_pages
from shared.settings import EdgeSettings

FOLDER = ROOT / "shared" / "http" / "page"
FILES = {path.name: path.read_text() for path in FOLDER.iterdir()}

UPLOT = "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"


@pytest.fixture
def client() -> httpx.AsyncClient:
    async def ready() -> dict[str, str]:
        return {}

    app = FastAPI()
    install(app, EdgeSettings(), LoopLag(1.0), ready=ready)
    add_pages(app, "dag")
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


async def test_the_root_leads_to_a_page_whose_parts_are_all_served(client: httpx.AsyncClient) -> None:
    root = await client.get("/")
    assert (root.status_code, root.headers["location"]) == (307, "ui")
    page = await client.get("/ui")
    assert page.status_code == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    assert 'data-service="dag"' in page.text
    parts = set(re.findall(r'(?:href|src)="(ui/[^"]+)"', page.text))
    parts |= {
        f"ui/{name}"
        for text in FILES.values()
        for name in re.findall(r'(?:from |Worker\()"(?:\./|ui/)([^"]+)"', text)
    }
    parts.add("ui/uplot.LICENSE")
    assert parts == {f"ui/{name}" for name in FILES if name != "index.html"}
    for part in parts:
        answer = await client.get(f"/{part}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].partition(";")[0] in ("text/javascript", "text/css", "text/plain")
        assert "default-src 'none'" in answer.headers["content-security-policy"]


async def test_a_run_has_an_address_of_its_own_that_leads_to_its_page(client: httpx.AsyncClient) -> None:
    for asked, place in (("order-17", "/runs/order-17"), ("a%3Ab?namespace=shop", "shop/runs/a%3Ab")):
        answer = await client.get(f"/ui/workflows/{asked}")
        assert (answer.status_code, answer.headers["location"]) == (307, f"../../ui#/{place}")


@pytest.mark.parametrize("name", ["index.html", "..%2Fpages.py", "%2e%2e/pages.py", "nothing.js"])
async def test_nothing_but_the_parts_is_served(client: httpx.AsyncClient, name: str) -> None:
    answer = await client.get(f"/ui/{name}")
    assert answer.status_code == 404 and answer.json()["code"] == "not_found"


@pytest.mark.parametrize("service", ["queue", "dag"])
async def test_each_service_shows_its_own_pages_and_keeps_them_out_of_its_contract(service: str) -> None:
    nowhere = "postgresql://postgres@127.0.0.1:1/none#1"  # nothing connects before the lifespan begins
    made = {
        "queue": lambda: create_queue_app(QueueSettings(shards=nowhere)),
        "dag": lambda: create_dag_app(DagSettings(shards=nowhere)),
    }
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(made[service]()), base_url="http://localhost"
    ) as client:
        assert f'data-service="{service}"' in (await client.get("/ui")).text
        assert not [
            path for path in (await client.get("/openapi.json")).json()["paths"] if "ui" in path.split("/")
        ]


def test_pages_ask_for_paths_that_the_services_have() -> None:
    known = {
        path
        for service in ("queue", "dag")
        for path in json.loads((ROOT / "docs" / "openapi" / f"{service}.json").read_text())["paths"]
    }
    asked = set(re.findall(r'"(/v1/[^"]*)"', FILES["api.js"]))
    assert len(asked) > 10
    assert asked - known == set()
    assert [name for name, text in FILES.items() if name != "api.js" and "/v1/" in text] == []


def test_pages_load_nothing_from_elsewhere_and_make_no_markup_of_text() -> None:
    for name, text in FILES.items():
        if name.startswith("uplot."):
            continue
        assert set(re.findall(r"https?://[^'\"\s]+", text)) <= {"http://www.w3.org/2000/svg"}, name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), name


async def test_parts_come_compressed_and_once(client: httpx.AsyncClient) -> None:
    first = await client.get("/ui/page.js", headers={"accept-encoding": "gzip"})
    assert first.headers["content-encoding"] == "gzip" and first.text == FILES["page.js"]
    again = await client.get("/ui/page.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    plain = await client.get("/ui/page.js", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers and plain.text == FILES["page.js"]


def test_all_files_of_the_site_fit_a_slow_line() -> None:
    assert sum(len(gzip.compress(text.encode(), 9)) for text in FILES.values()) < 150_000


def test_the_charts_are_the_published_library_and_one_line_of_ours() -> None:
    """uPlot 1.6.32 of the npm registry, `dist/uPlot.iife.min.js`."""
    text = FILES["uplot.js"].removesuffix("\nexport default uPlot;\n")
    assert hashlib.sha256(text.encode()).hexdigest() == UPLOT
    assert "MIT" in FILES["uplot.LICENSE"]
