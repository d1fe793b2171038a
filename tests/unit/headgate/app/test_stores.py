"""Stores of large values: files, and a server that speaks S3's protocol and checks signatures by itself."""

import hashlib
import hmac
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote

import httpx
import pytest

from headgate import FileStore, S3Store

SECRET = "secret"


class Bucket(BaseHTTPRequestHandler):
    """As much of S3 as the store uses. It computes each signature anew from the request as it came."""

    objects: ClassVar[dict[str, bytes]] = {}
    failures: ClassVar[list[int]] = []

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self._is_well(body):
            self.objects[unquote(self.path)] = body
            self._answer(200, b"")

    def do_GET(self) -> None:
        if self._is_well(b""):
            found = self.objects.get(unquote(self.path))
            self._answer(404, b"<Error/>") if found is None else self._answer(200, found)

    def _is_well(self, body: bytes) -> bool:
        if self.failures:
            self._answer(self.failures.pop(0), b"")
            return False
        fields = dict(
            part.strip().split("=", 1) for part in self.headers["authorization"].split(" ", 1)[1].split(",")
        )
        _, day, region, service, last = fields["Credential"].split("/")
        names = fields["SignedHeaders"].split(";")
        digest = hashlib.sha256(body).hexdigest()
        lines = [self.command, self.path, "", *(f"{name}:{self.headers[name]}" for name in names), ""]
        request = "\n".join([*lines, ";".join(names), digest])
        scope = f"{day}/{region}/{service}/{last}"
        told = hashlib.sha256(request.encode()).hexdigest()
        text = "\n".join(["AWS4-HMAC-SHA256", self.headers["x-amz-date"], scope, told])
        key = b"AWS4" + SECRET.encode()
        for part in (day, region, service, last, text):
            key = hmac.new(key, part.encode(), "sha256").digest()
        well = key.hex() == fields["Signature"] and digest == self.headers["x-amz-content-sha256"]
        if not well:
            self._answer(403, b"SignatureDoesNotMatch")
        return well

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    Bucket.objects, Bucket.failures = {}, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_bucket_keeps_values_for_those_who_sign(endpoint: str) -> None:
    store = S3Store("big", endpoint=endpoint, access_key="me", secret_key=SECRET, prefix="jobs/")
    store.put("media/a b", b"\x00value")
    assert store.get("media/a b") == b"\x00value"
    assert list(Bucket.objects) == ["/big/jobs/media/a b"]
    with pytest.raises(KeyError):
        store.get("media/none")
    store.close()
    stranger = S3Store("big", endpoint=endpoint, access_key="me", secret_key="wrong")
    with pytest.raises(OSError, match="403: SignatureDoesNotMatch"):
        stranger.get("media/a b")
    stranger.close()


def test_a_store_that_is_away_for_a_moment_is_asked_again(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate._app.stores.time.sleep", lambda _: None)
    store = S3Store("big", endpoint=endpoint, access_key="me", secret_key=SECRET)
    Bucket.failures += [503, 500]
    store.put("a", b"1")
    Bucket.failures += [503, 503, 503]
    with pytest.raises(OSError, match="cannot be used"):
        store.get("a")
    store.close()

    def unreachable(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no")

    away = S3Store("b", access_key="a", secret_key="b", transport=httpx.MockTransport(unreachable))
    with pytest.raises(OSError, match="cannot be used: no"):
        away.get("a")
    away.close()


def test_a_bucket_needs_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    with pytest.raises(ValueError, match="give S3Store access_key"):
        S3Store("b", access_key="only")


def test_files_keep_values_whole(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("media/a", b"1")
    store.put("media/a", b"1")
    assert store.get("media/a") == b"1"
    assert [path.name for path in (tmp_path / "media").iterdir()] == ["a"]
    for key in ("media/b", "../a", "media//a", "/etc/passwd"):
        with pytest.raises(KeyError):
            store.get(key)
