"""The documentation as a site: built without a warning, its links lead somewhere, nobody is asked for anything."""

import functools
import html
import http.server
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from playwright.async_api import Browser

from services.local.stack import ROOT
from tests.support.console import faults
from tests.support.docs_site import write


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, made anew."""
    folder = tmp_path_factory.mktemp("docs")
    write(folder / "docs")
    settings = (ROOT / "zensical.toml").read_text().replace('"build/', '"')
    (folder / "zensical.toml").write_text(settings)
    built = subprocess.run(
        [Path(sys.executable).parent / "zensical", "build", "--strict"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert built.returncode == 0 and "No issues found" in built.stdout + built.stderr, built.stdout + built.stderr
    return folder / "site"


class Links:
    """What a page leads to or loads, and where one can be led to within it."""

    def __init__(self, page: Path) -> None:
        text = page.read_text()
        self.to = {
            html.unescape(link)
            for link in re.findall(r'<(?:a|img|script|link)\b[^>]*? (?:href|src)="?([^"\s>]+)', text)
        }
        self.anchors = {html.unescape(name) for name in re.findall(r' (?:id|name)="?([^"\s>]+)', text)}


def test_every_link_leads_somewhere(built: Path) -> None:
    pages = {path.relative_to(built).as_posix(): Links(path) for path in built.rglob("*.html")}
    assert len(pages) > 100
    lost = []
    for name, page in pages.items():
        for link in page.to:
            if name == "404.html" or re.match(r"(https?|mailto|javascript|data):", link):
                continue
            found = urlsplit(urljoin(f"http://site/{name}", link))
            path, anchor = unquote(found.path).removeprefix("/"), unquote(found.fragment)
            path = path + "index.html" if path.endswith("/") or not path else path
            there = path in pages or (built / path).is_file()
            if not there or (anchor and path in pages and anchor not in pages[path].anchors):
                lost.append(f"{name}: {link}")
    assert lost == []


def test_every_page_of_the_repository_that_is_told_of_is_on_the_site(built: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        place = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert (built / place.replace("README.html", "index.html")).is_file(), place
    reference = (built / "reference" / "rest-dag.html").read_text()
    assert "/v1/namespaces/{ns}/dags/{dag}/retry" in reference and 'id="problem"' in reference
    python = (built / "reference" / "python.html").read_text()
    assert "Worker.task" in python and "OverQuota" in python


def test_programs_of_others_stand_beside_the_same_one_of_headgate(built: Path) -> None:
    page = (built / "coming-from.html").read_text()
    pairs = page.split('<div class="grid">')[1:]
    assert len(pairs) == 6
    assert all("headgate" in pair and pair.count("<pre") >= 2 for pair in pairs)


def test_a_runbook_is_found_by_search_and_code_is_not(built: Path) -> None:
    found = json.loads((built / "search.json").read_text())
    places = [item["location"] for item in found["items"]]
    assert "operations.html#headgateshardaway" in places
    assert not [place for place in places if ".py." in place]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Says nothing of what it serves."""

    def log_message(self, *_told: object) -> None:
        pass


@pytest.fixture
def address(built: Path) -> Iterator[str]:
    """The site as any web server shows it."""
    handler = functools.partial(Quiet, directory=built)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_is_read_without_asking_anybody_else(
    address: str, browser: Browser, scheme: Literal["light", "dark"]
) -> None:
    context = await browser.new_context(viewport={"width": 1280, "height": 860}, color_scheme=scheme)
    page = await context.new_page()
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: said.append(str(error)))
    for name in ("pictures.html", "production.html", "operations.html"):
        await page.goto(f"{address}/{name}")
        assert await faults(page, "serious", "critical") == [], name
    assert said == []
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    await context.close()
