"""Passes calls of the pages on to the other service, so that both are one site for a browser.

`/ui/dag/v1/...` of the queue service is `/v1/...` of the DAG service, and `/ui/queue/v1/...` the other way
round. The caller's token goes along, and nothing else that could stand for somebody; which of the two
answers makes no difference to what is allowed. What a page of another origin may not do is judged before, as
for every call here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import unquote

import httpx

from shared.errors import Invalid, NotFound, Unavailable

_PASSED: Final = ("authorization", "content-type", "accept", "last-event-id", "x-headgate-page")
_ANSWERED: Final = ("content-type", "retry-after", "www-authenticate", "allow", "cache-control")
# Streams of events stand open; what a browser asks at once is no more than six.
_AT_ONCE_MAX: Final = 200
_TIMEOUT: Final = httpx.Timeout(connect=2.0, read=60.0, write=30.0, pool=2.0)


class OtherServiceAway(Unavailable):
    """The other service does not answer; what it was asked for may have happened, unless it was not reached."""

    code = "other_service_away"
    title = "The other service does not answer"


class RelayedAnswer:
    """What the other service has said; its body is read as it comes."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers = {name: response.headers[name] for name in _ANSWERED if name in response.headers}
        self._response = response

    async def body(self) -> AsyncIterator[bytes]:
        """Its parts, as they come."""
        try:
            async for part in self._response.aiter_bytes():
                yield part
        except httpx.HTTPError:
            return  # the browser sees that it was cut
        finally:
            await self._response.aclose()


class ServiceRelay:
    """The way to the other service; `url` is None where it was not named."""

    def __init__(self, service: str, url: str | None) -> None:
        self.service = service
        self.url = url
        self._client: httpx.AsyncClient | None = None

    async def ask(
        self, method: str, path: str, query: str, headers: dict[str, str], body: bytes, client: str
    ) -> RelayedAnswer:
        """Pass on one call.

        Raises:
            NotFound: there is no such path, or the other service was not named.
            OtherServiceAway: it does not answer.
        """
        if self.url is None:
            variable = f"HEADGATE_{self.service.upper()}_URL"
            raise NotFound(f"this process was not told where the {self.service} service is: set {variable}")
        segments = unquote(path).split("/")
        if not path.startswith("/v1/") or "." in segments or ".." in segments:
            raise NotFound("only calls of `/v1` are passed on")
        if self._client is None:
            limits = httpx.Limits(max_connections=_AT_ONCE_MAX, max_keepalive_connections=20)
            self._client = httpx.AsyncClient(timeout=_TIMEOUT, limits=limits, trust_env=False)
        passed: dict[str, str] = {name: headers[name] for name in _PASSED if name in headers}
        passed |= {"accept-encoding": "identity", "x-forwarded-for": client}
        target = self.url.rstrip("/") + path + (f"?{query}" if query else "")
        try:
            request = self._client.build_request(method, target, headers=passed, content=body or None)
            return RelayedAnswer(await self._client.send(request, stream=True))
        except httpx.InvalidURL as error:
            raise Invalid("the address cannot be passed on") from error
        except httpx.HTTPError as error:
            reached = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
            raise OtherServiceAway(
                f"the {self.service} service at {self.url} does not answer",
                outcome="unknown" if reached and method != "GET" else "none",
                retry_after_s=1.0,
            ) from error

    async def close(self) -> None:
        """Close its connections."""
        if self._client is not None:
            await self._client.aclose()
