"""Where arguments and results are kept that are too large for the services.

A value is kept under the hash of its bytes, so the same value again takes no more room, and a job that is run
again writes what it wrote before. Nothing is ever deleted here: let the store drop what is older than results
are kept.
"""

import contextlib
import hashlib
import hmac
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

import httpx

# Before each try.
_PAUSES_S: Final = (0.0, 0.2, 1.0)


class Store(Protocol):
    """Keeps bytes by key. Called in threads, of callers and of workers."""

    def put(self, key: str, value: bytes) -> None:
        """Keep a value. It may be there already."""

    def get(self, key: str) -> bytes:
        """The value. Raises KeyError where there is none."""
        raise NotImplementedError


class FileStore:
    """Files in a directory that callers and workers share."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)

    def put(self, key: str, value: bytes) -> None:
        path = self._path(key)
        if path.exists():
            os.utime(path)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".part-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(value)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise

    def get(self, key: str) -> bytes:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            raise KeyError(key) from None

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if any(part in ("", ".", "..") or os.sep in part for part in parts):
            raise KeyError(key)
        return self._directory.joinpath(*parts)


class S3Store:
    """Objects in a bucket of a service that speaks S3's protocol.

    What is not given comes from `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID` and
    `AWS_SECRET_ACCESS_KEY`. Requests are signed with Signature Version 4, the bucket is in the path. Have a
    lifecycle rule of the bucket drop what is old.
    """

    def __init__(
        self,
        bucket: str,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        prefix: str = "",
        timeout_s: float = 20.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._region = region or os.environ.get("AWS_REGION") or "us-east-1"
        url = endpoint or os.environ.get("AWS_ENDPOINT_URL") or f"https://s3.{self._region}.amazonaws.com"
        self._url = f"{url.rstrip('/')}/{quote(bucket)}/{quote(prefix)}"
        self._access_key = access_key or os.environ.get("AWS_ACCESS_KEY_ID") or ""
        self._secret_key = secret_key or os.environ.get("AWS_SECRET_ACCESS_KEY") or ""
        if not (self._access_key and self._secret_key):
            raise ValueError(
                "give S3Store access_key and secret_key, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        self._http = httpx.Client(timeout=timeout_s, transport=transport)

    def put(self, key: str, value: bytes) -> None:
        self._send("PUT", key, value)

    def get(self, key: str) -> bytes:
        return self._send("GET", key, b"").content

    def close(self) -> None:
        self._http.close()

    def _send(self, method: str, key: str, body: bytes) -> httpx.Response:
        url = httpx.URL(f"{self._url}{quote(key)}")
        failure: Exception | None = None
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            try:
                response = self._http.request(method, url, content=body, headers=self._signed(method, url, body))
            except httpx.TransportError as error:
                failure = error
                continue
            if response.status_code == 404:
                raise KeyError(key)
            if response.is_success:
                return response
            failure = OSError(f"{method} {url} answered {response.status_code}: {response.text[:200]}")
            if response.status_code < 500 and response.status_code != 429:
                break
        raise OSError(f"the store cannot be used: {failure}") from failure

    def _signed(self, method: str, url: httpx.URL, body: bytes, now: datetime | None = None) -> dict[str, str]:
        """The headers of a request with its signature."""
        at = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
        digest = hashlib.sha256(body).hexdigest()
        headers = {"host": url.netloc.decode(), "x-amz-content-sha256": digest, "x-amz-date": at}
        names = ";".join(sorted(headers))
        fields = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        request = f"{method}\n{url.raw_path.decode()}\n\n{fields}\n{names}\n{digest}"
        scope = f"{at[:8]}/{self._region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        key = f"AWS4{self._secret_key}".encode()
        for part in (at[:8], self._region, "s3", "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self._access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
        return headers
