"""Sends calls: the one place that talks HTTP. Problems become exceptions here, and what is safe is sent again.

The seam is httpx's: anything with `handle_request` (or `handle_async_request`) can carry the calls, so
tests and in-process use need no socket. Requests go to the transport directly; httpx's client around it
would add cookies, redirects and authentication flows that no call here has. Where no transport is given, calls
go as bytes to the connections of `http1` and its blocking twin: httpx's requests, headers and responses
would cost more than the rest of a call (docs/adr/0033-calls-as-bytes.md).

Sent again, with full jitter and no earlier than Retry-After says: calls whose answer was `outcome: none`
and worth another try; calls for which no connection could be made; and `safe` calls also when nobody knows.
Elements of a batch that were refused for now (their shard is away, or has too much to do) are sent again in the
same way, in calls of their own. A budget shared by all calls of a client stops retries from multiplying the
load on a service that is down.
"""

import asyncio
import functools
import random
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import httpx

from headgate._backoff import ceiling_s
from headgate._calls.elements import Result
from headgate._calls.verbs import Call
from headgate._http.answer_json import decode
from headgate._http.blocking_http1 import BlockingHttp1Transport
from headgate._http.http1 import Http1Transport
from headgate._http.messages import Message, Origin, origin_of
from headgate.errors import (
    FOR_NOW,
    BadAnswer,
    ConnectionFailed,
    HeadgateError,
    TimedOut,
    Unavailable,
    from_problem,
)

T = TypeVar("T")

VERSION: Final = "0.1.0"
CONNECT_S: Final = 5.0
REFUSED: Final = Unavailable("elements of a call were refused for now", outcome="none")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently a call is sent again.

    The wait before retry n is random between 0 and `min(base_s * 2**(n - 1), delay_s_max)`. An answer that asks
    for more than `retry_after_s_max` is not waited for. Each retry takes one from the budget, each success
    gives back a fifth. `elements`: whether refused elements of a batch are sent again too. `timeouts`: whether
    calls that were not answered in time are.
    """

    attempts_max: int = 8
    base_s: float = 0.1
    delay_s_max: float = 5.0
    retry_after_s_max: float = 30.0
    budget: float = 50.0
    elements: bool = True
    timeouts: bool = True


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the services are, and the token they ask for."""

    queue_url: str
    dag_url: str
    token: str | None = None
    timeout_s: float = 20.0

    def __post_init__(self) -> None:
        for url in (self.queue_url, self.dag_url):
            if not (url.startswith(("http://", "https://")) and _leads_somewhere(url)):
                raise ValueError(f"{url!r} is no URL of a service; it should look like http://127.0.0.1:8080")
        if self.token and not (self.token.isascii() and self.token.isprintable()):
            raise ValueError("the token holds characters that no token has")


def _leads_somewhere(url: str) -> bool:
    try:
        return bool(httpx.URL(url).host)
    except httpx.InvalidURL:
        return False


class Budget:
    """How many retries all calls of a client have left."""

    def __init__(self, tokens_max: float) -> None:
        self._tokens_max = self._tokens = tokens_max

    def earn(self) -> None:
        if self._tokens < self._tokens_max:
            self._tokens = min(self._tokens_max, self._tokens + 0.2)

    def spend(self) -> bool:
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Exchange:
    """What sending needs and the event loop does not change: requests, answers, retries."""

    def __init__(self, endpoints: Endpoints, retry: RetryPolicy, rng: random.Random | None = None) -> None:
        self.endpoints = endpoints
        self.retry = retry
        self._budget = Budget(retry.budget)
        self._rng = rng or random.Random()  # noqa: S311 (jitter, not a secret)
        self._headers = [
            (b"accept", b"application/json"),
            (b"content-type", b"application/json"),
            (b"user-agent", f"headgate-python/{VERSION}".encode()),
        ]
        if endpoints.token:
            self._headers.append((b"authorization", b"Bearer " + endpoints.token.encode()))
        self._origins = {"queue": endpoints.queue_url.rstrip("/"), "dag": endpoints.dag_url.rstrip("/")}
        self._url = functools.lru_cache(maxsize=1024)(httpx.URL)
        self._ways = {service: self._way(httpx.URL(origin)) for service, origin in self._origins.items()}

    def _way(self, url: httpx.URL) -> tuple[Origin, bytes, bytes]:
        """Where a service is; what stands before each target, and behind it up to the length of the body."""
        fields = b"".join(b"%b: %b\r\n" % header for header in [(b"host", url.netloc), *self._headers])
        return origin_of(url), url.raw_path.rstrip(b"/"), b" HTTP/1.1\r\n" + fields + b"content-length: "

    def message(self, call: Call[Any]) -> Message:
        """A call as it is written to a connection."""
        origin, path, head = self._ways[call.verb.service]
        body, timeout_s = call.body or b"", self.endpoints.timeout_s
        target = call.target.encode("ascii")
        content = b"%b %b%b%b%d\r\n\r\n%b" % (call.verb.method.encode(), path, target, head, len(body), body)
        # Also before it is sent: a call that waits may have to wait for others that do.
        s_max = timeout_s + call.wait_s
        return Message(origin, content, CONNECT_S, s_max, s_max, call.wait_s > 0)

    def url(self, call: Call[Any]) -> httpx.URL:
        return self._url(self._origins[call.verb.service] + call.target)

    def request(self, call: Call[Any]) -> httpx.Request:
        url, content = self.url(call), call.body or b""
        return httpx.Request(
            call.verb.method,
            url,
            headers=[(b"host", url.netloc), *self._headers, (b"content-length", b"%d" % len(content))],
            stream=httpx.ByteStream(content),
            extensions={
                "timeout": {
                    "connect": CONNECT_S,
                    "pool": self.endpoints.timeout_s,
                    "write": self.endpoints.timeout_s,
                    "read": self.endpoints.timeout_s + call.wait_s,
                }
            },
        )

    def check(self, call: Call[Any], response: httpx.Response) -> None:
        """An answer without a result.

        Raises:
            HeadgateError: it is none, or a problem.
        """
        if response.status_code >= 400:
            raise from_problem(response.status_code, response.content, response.headers)
        if response.status_code != 204:
            detail = f"the {call.verb.service} service's answer to {call.target} makes no sense"
            raise BadAnswer(detail, status=response.status_code, outcome="unknown")

    def result(self, call: Call[T], status: int, headers: Any, content: bytes) -> T:
        """The call's result, from an answer.

        Raises:
            HeadgateError: what the answer says, or that it cannot be understood.
        """
        if status >= 400:
            raise from_problem(status, content, httpx.Headers(headers))
        try:
            if not 200 <= status < 300:
                raise ValueError(f"HTTP {status}")
            found = call.parse(content.decode() if call.text else decode(content))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            detail = f"the {call.verb.service} service's answer to {call.target} makes no sense: {error!r}"
            raise BadAnswer(detail, status=status, outcome="unknown") from None
        self._budget.earn()
        return found

    def refused(self, call: Call[Any], found: Any) -> list[int]:
        """The elements of an answered batch that may be sent again by themselves."""
        if call.parts is None or not self.retry.elements:
            return []
        return [
            at
            for at, result in enumerate(found)
            if result.status == "refused"
            and result.code in FOR_NOW
            and (result.outcome == "none" or call.safe)
            and at in call.parts.positions
        ]

    def delay_s(self, call: Call[Any], error: HeadgateError, attempt: int) -> float | None:
        """How long to wait before attempt `attempt` + 1; None: give up."""
        again = error.retryable and (call.safe or error.outcome == "none")
        if isinstance(error, TimedOut) and not self.retry.timeouts:
            again = False
        asked_s = error.retry_after_s or 0.0
        if not again or attempt >= self.retry.attempts_max or asked_s > self.retry.retry_after_s_max:
            return None
        if not self._budget.spend():
            return None
        return asked_s + self._rng.uniform(0, ceiling_s(self.retry.base_s, attempt - 1, self.retry.delay_s_max))


def part(call: Call[Any], positions: list[int]) -> Call[list[Result]]:
    """The call of some elements of a batch."""
    assert call.parts is not None
    return call.parts.call(positions)


def merge(found: Any, positions: list[int], answers: list[Result]) -> None:
    """What elements that were sent again were answered."""
    for at, answer in zip(positions, answers, strict=True):
        found[at] = answer


def spoil(found: Any, positions: list[int], error: HeadgateError) -> None:
    """Elements were sent again, and nobody knows what became of them: then nobody may say that nothing did."""
    if error.outcome == "unknown":
        for at in positions:
            found[at] = found[at]._replace(code=error.code, outcome="unknown")


def failure(error: httpx.TransportError, call: Call[Any], url: httpx.URL) -> HeadgateError:
    """What a transport's error means for the call: was anything sent, and can it be sent again?"""
    where = f"{call.verb.service} service at {url.scheme}://{url.netloc.decode()}"
    match error:
        case httpx.ConnectError():
            advice = f"is it running? HEADGATE_{call.verb.service.upper()}_URL says where to look"
            return ConnectionFailed(f"cannot connect to the {where}: {error}; {advice}")
        case httpx.ConnectTimeout() | httpx.PoolTimeout():
            return TimedOut(f"no connection to the {where} in time: {error}")
        case httpx.LocalProtocolError() | httpx.UnsupportedProtocol():
            return HeadgateError(f"the call to the {where} could not be sent: {error}")
        case httpx.TimeoutException():
            return TimedOut(f"the {where} did not answer in time", outcome="unknown")
        case _:
            return ConnectionFailed(f"lost the connection to the {where}: {error}", outcome="unknown")


class SyncTransport:
    """Sends calls from threads."""

    def __init__(
        self,
        exchange: Exchange,
        http: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.exchange = exchange
        self._given = http
        self._own = BlockingHttp1Transport()
        self._sleep = sleep

    def send(self, call: Call[T]) -> T:
        found, attempt = self._whole(call), 1
        while refused := self.exchange.refused(call, found):
            delay_s = self.exchange.delay_s(call, REFUSED, attempt)
            if delay_s is None:
                break
            self._sleep(delay_s)
            attempt += 1
            try:
                merge(found, refused, self._whole(part(call, refused)))
            except HeadgateError as error:
                spoil(found, refused, error)
                break
        return found

    def _whole(self, call: Call[T]) -> T:
        attempt = 1
        while True:
            try:
                return self._once(call)
            except HeadgateError as error:
                delay_s = self.exchange.delay_s(call, error, attempt)
                if delay_s is None:
                    raise
            self._sleep(delay_s)
            attempt += 1

    def _once(self, call: Call[T]) -> T:
        try:
            if self._given is None:
                status, headers, content = self._own.exchange(self.exchange.message(call))
            else:
                response = self._given.handle_request(self.exchange.request(call))
                status, headers, content = response.status_code, response.headers.raw, response.read()
        except httpx.TransportError as error:
            raise failure(error, call, self.exchange.url(call)) from error
        return self.exchange.result(call, status, headers, content)

    def lines(self, call: Call[Any]) -> Generator[str, None, None]:
        """The lines of an answer as they come; none of an empty one."""
        request = self.exchange.request(call)
        # Our own transport reads answers whole; the rare stream goes through one of httpx's.
        streaming = self._given or _blocking(self.exchange.endpoints)
        try:
            response = streaming.handle_request(request)
            try:
                if response.status_code != 200:
                    response.read()
                    self.exchange.check(call, response)
                    return
                yield from response.iter_lines()
            finally:
                response.close()
        except httpx.TransportError as error:
            raise failure(error, call, request.url) from error
        finally:
            if self._given is None:
                streaming.close()

    def pause(self, delay_s: float) -> None:
        self._sleep(delay_s)

    def close(self) -> None:
        self._own.close()
        if self._given is not None:
            self._given.close()


class AsyncTransport:
    """Sends calls from coroutines."""

    def __init__(
        self,
        exchange: Exchange,
        http: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.exchange = exchange
        self._given = http
        self._own = Http1Transport()
        self._sleep = sleep

    async def send(self, call: Call[T]) -> T:
        found, attempt = await self._whole(call), 1
        while refused := self.exchange.refused(call, found):
            delay_s = self.exchange.delay_s(call, REFUSED, attempt)
            if delay_s is None:
                break
            await self._sleep(delay_s)
            attempt += 1
            try:
                merge(found, refused, await self._whole(part(call, refused)))
            except HeadgateError as error:
                spoil(found, refused, error)
                break
        return found

    async def _whole(self, call: Call[T]) -> T:
        attempt = 1
        while True:
            try:
                return await self._once(call)
            except HeadgateError as error:
                delay_s = self.exchange.delay_s(call, error, attempt)
                if delay_s is None:
                    raise
            await self._sleep(delay_s)
            attempt += 1

    async def _once(self, call: Call[T]) -> T:
        try:
            if self._given is None:
                status, headers, content = await self._own.exchange(self.exchange.message(call))
            else:
                response = await self._given.handle_async_request(self.exchange.request(call))
                status, headers, content = response.status_code, response.headers.raw, await response.aread()
        except httpx.TransportError as error:
            raise failure(error, call, self.exchange.url(call)) from error
        return self.exchange.result(call, status, headers, content)

    async def lines(self, call: Call[Any]) -> AsyncGenerator[str, None]:
        """The lines of an answer as they come; none of an empty one."""
        request = self.exchange.request(call)
        # Our own transport reads answers whole; the rare stream goes through one of httpx's. None is kept: its
        # connections belong to the event loop that made them.
        streaming = self._given or _concurrent(self.exchange.endpoints)
        try:
            response = await streaming.handle_async_request(request)
            try:
                if response.status_code != 200:
                    await response.aread()
                    self.exchange.check(call, response)
                    return
                async for line in response.aiter_lines():
                    yield line
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            raise failure(error, call, request.url) from error
        finally:
            if self._given is None:
                await streaming.aclose()

    async def pause(self, delay_s: float) -> None:
        await self._sleep(delay_s)

    async def close(self) -> None:
        await self._own.aclose()
        if self._given is not None:
            await self._given.aclose()


def _blocking(endpoints: Endpoints) -> httpx.HTTPTransport:
    """httpx's transport; without TLS to do it spares the 20 ms that loading certificates takes."""
    return httpx.HTTPTransport(verify=_verifying(endpoints))


def _concurrent(endpoints: Endpoints) -> httpx.AsyncHTTPTransport:
    return httpx.AsyncHTTPTransport(verify=_verifying(endpoints), limits=httpx.Limits(max_connections=None))


def _verifying(endpoints: Endpoints) -> ssl.SSLContext | bool:
    secure = any(url.startswith("https:") for url in (endpoints.queue_url, endpoints.dag_url))
    return httpx.create_ssl_context() if secure else False
