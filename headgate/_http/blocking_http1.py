"""HTTP/1.1 over blocking sockets with a keep-alive pool, as an `httpx.BaseTransport`: for threads.

The twin of `headgate._http.http1`, with the same reading of answers. A call writes a request whole and reads its
answer whole, on a connection that no other thread uses meanwhile; one whose exchange was cut short is closed. The
child of a fork begins with no connections: its parent goes on with those that there were.
"""

import contextlib
import os
import socket
import ssl
import time
from collections import defaultdict, deque
from typing import Final

import httpx

from headgate._http.messages import IDLE_S_MAX, Answer, AnswerReader, Message, Origin, message_of

# Idle connections kept for each origin.
IDLE_MAX: Final = 100
_READ_BYTES: Final = 256 * 1024


class _Connection:
    """One connection. `exchange` sends a request and waits for its answer."""

    def __init__(self, connected: socket.socket) -> None:
        self.idle_since = 0.0
        self._socket = connected
        self._reader = AnswerReader()

    def close(self) -> None:
        self._reader.reusable = False
        with contextlib.suppress(OSError):
            self._socket.close()

    @property
    def reusable(self) -> bool:
        return self._reader.reusable

    @property
    def fresh(self) -> bool:
        """Whether it may be used again: its server has neither said anything nor gone."""
        if time.monotonic() - self.idle_since >= IDLE_S_MAX:
            return False
        try:
            self._socket.settimeout(0)
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            pass
        return False

    def exchange(self, content: bytes, read_s: float | None) -> Answer:
        """Raises httpx's transport errors."""
        self._reader.begin()
        ends_at = None if read_s is None else time.monotonic() + read_s
        try:
            self._socket.settimeout(read_s)
            self._socket.sendall(content)
            while True:
                data = self._socket.recv(_READ_BYTES)
                found = self._reader.feed(data) if data else self._reader.end()
                if found is not None:
                    return found
                if not data:
                    raise httpx.ReadError("the server closed the connection")
                if ends_at is not None:
                    self._socket.settimeout(max(ends_at - time.monotonic(), 0.001))
        except TimeoutError:
            raise httpx.ReadTimeout("no answer in time") from None
        except OSError as error:
            raise httpx.ReadError(str(error)) from None
        except ValueError:
            raise httpx.RemoteProtocolError("the answer is not HTTP/1.1") from None


class BlockingHttp1Transport(httpx.BaseTransport):
    """As many connections as threads call at once, and those that are idle."""

    def __init__(self, *, ssl_context: ssl.SSLContext | None = None) -> None:
        self._ssl = ssl_context
        self._idle: defaultdict[Origin, deque[_Connection]] = defaultdict(deque)
        self._process = os.getpid()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Raises httpx's transport errors, as its own transports do."""
        message = message_of(request, request.read())
        try:
            status, headers, body = self.exchange(message)
        except httpx.TransportError as error:
            error.request = request
            raise
        return httpx.Response(status, headers=headers, content=body, request=request)

    def exchange(self, message: Message) -> Answer:
        """Send a request and read its answer. Raises httpx's transport errors."""
        if self._process != os.getpid():
            self._idle, self._process = defaultdict(deque), os.getpid()
        idle = self._idle[message.origin]
        connection = self._pick(idle) or self._connect(message.origin, message.connect_s)
        try:
            answer = connection.exchange(message.content, message.read_s)
        except BaseException:
            connection.close()
            raise
        if connection.reusable and len(idle) < IDLE_MAX and idle is self._idle.get(message.origin):
            connection.idle_since = time.monotonic()
            idle.append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        """Close what is idle."""
        idle, self._idle = self._idle, defaultdict(deque)
        for connections in idle.values():
            for connection in connections:
                connection.close()

    @staticmethod
    def _pick(idle: deque[_Connection]) -> _Connection | None:
        """The connection used last, so that the others grow old and go."""
        while True:
            try:
                connection = idle.pop()
            except IndexError:
                return None
            if connection.fresh:
                return connection
            connection.close()

    def _connect(self, origin: Origin, timeout_s: float | None) -> _Connection:
        host, port, secure = origin
        try:
            with contextlib.ExitStack() as on_error:
                connected = on_error.enter_context(socket.create_connection((host, port), timeout_s))
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if secure:
                    self._ssl = self._ssl or httpx.create_ssl_context()
                    connected = self._ssl.wrap_socket(connected, server_hostname=host)
                on_error.pop_all()
                return _Connection(connected)
        except TimeoutError:
            raise httpx.ConnectTimeout(f"{host}:{port} did not answer") from None
        except OSError as error:
            raise httpx.ConnectError(f"{host}:{port}: {error.strerror or error}") from None
