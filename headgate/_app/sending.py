"""What an app sends: jobs and flows, through a client for threads and one for each event loop."""

import asyncio
import contextlib
import hashlib
import json
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from headgate import wire
from headgate._app.call import JobCall, node_options
from headgate._app.handle import FlowRun, JobHandle, Sent, Steps
from headgate._app.results import MARK
from headgate._app.stores import Store
from headgate._app.tracing import Carrier, Tracing, tell, told_with
from headgate._calls import flows, verbs
from headgate._calls.dag import MADE_KEY, Dag, create, submission
from headgate._calls.elements import Item
from headgate._calls.verbs import Call, encode, present
from headgate._client import settings
from headgate._client.aio.client import AsyncClient
from headgate._client.blocking.client import Client
from headgate.errors import Conflict, TooLarge

if TYPE_CHECKING:
    from headgate._app.flow import Flow
    from headgate._app.function import JobFunction

R = TypeVar("R")
T = TypeVar("T")
S = TypeVar("S", bound=Sent[Any])


class Sending:
    """What is being sent in a coroutine: by who awaits it, or else, in a task, from the loop's next turn on.

    A task for each would cost a tenth of what it takes to send a job; most are awaited at once.
    """

    __slots__ = ("_begins", "_go", "_sent", "_tasks", "_waiting")

    def __init__(self, go: Callable[[], Coroutine[Any, Any, str]], tasks: set[asyncio.Task[str]]) -> None:
        self._go = go  # once more, where who went was cancelled
        self._tasks = tasks  # which hold those that nobody awaits
        self._sent: asyncio.Future[Any] | None = None  # None while nobody sends
        self._waiting = 0
        self._begins: asyncio.Handle | None = asyncio.get_running_loop().call_soon(self._begin)

    def __await__(self) -> Generator[Any, None, str]:
        if self._begins is not None:
            self._begins.cancel()
            self._begins = None
        while self._sent is not None:
            found: str | None = yield from self._told(self._sent).__await__()
            if found is not None:
                return found
        return (yield from self._here().__await__())

    def _begin(self) -> None:
        self._begins = None
        self._sent = task = asyncio.get_running_loop().create_task(self._go())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _told(self, sent: asyncio.Future[Any]) -> str | None:
        """What comes of it in another task; None where that was cancelled, and who awaits it goes on with it."""
        self._waiting += 1
        try:
            found: str | None = await asyncio.shield(sent)
        except asyncio.CancelledError:
            if self._waiting == 1 and isinstance(sent, asyncio.Task) and not sent.done():
                self._sent = None
                sent.cancel()  # nobody else waits for it
                await asyncio.wait([sent])
            raise
        finally:
            self._waiting -= 1
        return found

    async def _here(self) -> str:
        """Send, and keep what comes of it for others that await it."""
        sent = self._sent = asyncio.get_running_loop().create_future()
        try:
            found = await self._go()
        except Exception as error:
            sent.set_exception(error)
            sent.exception()  # it is raised here, so nobody else need look at it
            raise
        except BaseException:
            self._sent = None
            sent.set_result(None)
            raise
        sent.set_result(found)
        return found


def repeatable(steps: Steps[T]) -> Steps[T]:
    """The same steps, of which one that nobody answered comes again: who went through them was cancelled."""
    try:
        step = next(steps)
        while True:
            try:
                while (answer := (yield step)) is None:
                    pass
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        found: T = stop.value
        return found


class Sender:
    """The half of an app that speaks to the services."""

    def __init__(
        self, namespace: str | None, *, client: Client | None, store: Store | None, tracing: Tracing | None = None
    ) -> None:
        self.namespace = namespace or (client.namespace if client is not None else settings.namespace(None))
        self.store = store
        self.tracing = tracing
        self.monotonic_s: Callable[[], float] = time.monotonic
        self.now: Callable[[], datetime] = partial(datetime.now, UTC)
        self.functions: dict[str, JobFunction[..., Any, ..., Any]] = {}
        self._client = client
        self._own = client is None
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = (
            weakref.WeakKeyDictionary()
        )
        self._shards = flows.Shards()
        self._sending: set[asyncio.Task[str]] = set()
        self._lock = threading.Lock()

    # What is large

    def loader(self, key: str) -> Callable[[], Any]:
        """What reads a value from the store. Raises KeyError where it is not."""

        def load() -> Any:
            if self.store is None:
                raise KeyError(key)
            return json.loads(self.store.get(key))

        return load

    def packed(self, payload: Mapping[str, Any]) -> Any:
        """A payload as it is sent: a large one goes to the store."""
        text = encode(payload)
        if len(text) <= wire.PAYLOAD_BYTES_MAX:
            return payload
        return self.stored(text, "arguments", wire.PAYLOAD_BYTES_MAX)

    def stored(self, text: bytes, what: str, bytes_max: int) -> dict[str, Any]:
        """What says where in the store a value is.

        Raises:
            TooLarge: the app has no store.
        """
        if self.store is None:
            raise TooLarge(
                f"{what} of {len(text)} bytes are over the limit of {bytes_max}; give the app a store for large "
                "values, App(store=FileStore(...)), or pass a reference to them"
            )
        key = f"{self.namespace}/{hashlib.sha256(text).hexdigest()}"
        self.store.put(key, text)
        return {MARK: "stored", "key": key}

    # Sending

    @property
    def client(self) -> Client:
        """The client for code that blocks."""
        with self._lock:
            if self._client is None:
                self._client = Client(namespace=self.namespace)
            return self._client

    @property
    def async_client(self) -> AsyncClient:
        """The client of the event loop that runs here."""
        loop = asyncio.get_running_loop()
        found = self._clients.get(loop)
        if found is None:
            found = self._clients[loop] = self._beside()
        return found

    def use(self, client: AsyncClient) -> None:
        """Use this client in the event loop that runs here."""
        self._clients[asyncio.get_running_loop()] = client

    def _beside(self) -> AsyncClient:
        if self._client is None:
            return AsyncClient(namespace=self.namespace)
        to, transport = self._client.endpoints, self._client.transport
        return AsyncClient(
            queue_url=to.queue_url,
            dag_url=to.dag_url,
            token=to.token,
            timeout_s=to.timeout_s,
            namespace=self.namespace,
            retry=self._client.retry,
            transport=transport if hasattr(transport, "handle_async_request") else None,  # type: ignore[arg-type]
        )

    def send(self, call: JobCall[R]) -> JobHandle[R]:
        """Send a job: now, or, in a coroutine, as soon as it waits."""
        kept = call.options.get("result", call.function.settings.result)
        handle: JobHandle[R] = JobHandle(self, call.function, None, kept=kept)
        with self._traced(call.function.name, 1) as carrier:
            return self._begun(handle, self._sent(call, carrier) if kept else self._sent_bare(call, carrier))

    def start(self, flow: "Flow", dag: Dag) -> FlowRun:
        with self._traced(flow.name, len(dag.nodes)) as carrier:
            tell(dag.nodes.values(), carrier)
            return self._begun(FlowRun(self, flow, None), self._submitted(dag))

    def _traced(self, name: str, count: int) -> AbstractContextManager[Carrier | None]:
        """A span around sending, if the app is traced."""
        return contextlib.nullcontext() if self.tracing is None else self.tracing.sending(name, count)

    def _begun(self, handle: S, steps: Steps[str]) -> S:
        if not in_loop():
            handle._id = self.drive(steps)
            return handle
        handle._sending = Sending(partial(self.adrive, repeatable(steps)), self._sending)
        return handle

    def _sent(self, call: JobCall[Any], carrier: Carrier | None) -> Steps[str]:
        function, options = call.function, call.options
        payload = call.payload(_no_key)
        key, window_s = options.get("key"), options.get("unique_for_s")
        unique = options.get("unique", function.settings.unique)
        if window_s is not None:
            if unique:
                raise ValueError("give a job `unique_for_s` or `unique`, not both")
            held = yield from self._held(call, payload, window_s)
            if isinstance(held, wire.Dag):
                return held.id
            made_key = held
        else:
            made_key = self._key(call, payload, unique=unique) or f"{MADE_KEY}{secrets.token_hex(12)}"
        node = {
            "key": function.name,
            "topic": function.topic,
            "payload": told_with(self.packed(payload), carrier),
            **self._options_of(call),
        }
        dag: wire.CreatedDag = yield create(
            self.namespace,
            {"name": function.name, "key": made_key, **present(unique=unique or None), "nodes": [node]},
        )
        if key is not None and window_s is None and not dag.same and "delay_s" not in node and carrier is None:
            raise Conflict(
                f"the key {key!r} of {function.name} stands for a job with other arguments or options "
                f"({dag.id}); use a new key for a new job, and `options(fairness_key=)` for whose job it is",
                code="key_reused",
            )
        return dag.id

    def _options_of(self, call: JobCall[Any]) -> dict[str, Any]:
        return {**call.function.settings.node_options(), **node_options(call.options, self.now())}

    def _key(self, call: JobCall[Any], payload: Mapping[str, Any], *, unique: bool) -> str | None:
        """What makes it one job with others: its key, or, of one that is `unique`, its arguments."""
        key = call.options.get("key")
        if key is not None:
            if not (isinstance(key, str) and key):
                raise ValueError(f"key must be a text that names the job, not {key!r}; leave it out for a new job")
            return f"job/{call.function.name}/{key}"
        return (
            f"unique/{call.function.name}/{hashlib.sha256(encode(payload)).hexdigest()[:32]}" if unique else None
        )

    def _held(self, call: JobCall[Any], payload: Mapping[str, Any], window_s: float) -> Steps[wire.Dag | str]:
        """The job with these arguments, or this key, that was sent within the window, or the key for a new one.

        Windows follow one another from a fixed time on. Each has a key, by which there is one job in it; what was
        sent late in the window before is looked for. Two callers whose clocks see the end of a window on either
        side may both send.
        """
        if not (isinstance(window_s, int | float) and window_s > 0):
            raise ValueError(f"unique_for_s must be a number of seconds, more than 0, not {window_s!r}")
        kind = "unique" if call.options.get("key") is None else "within"
        what = str(self._key(call, payload, unique=True)).partition("/")[2]
        now = self.now().timestamp()
        number = int(now // window_s)
        parse = verbs.page_of(wire.Dag)
        key = f"{kind}/{what}/{window_s:g}/"
        query = {"key": f"{key}{number - 1}"}
        found: list[wire.Dag] = (yield verbs.call(verbs.DAGS, parse, query=query, ns=self.namespace))[0]
        if found and now - found[0].created_at.timestamp() < window_s:
            return found[0]
        return f"{key}{number}"

    def _sent_bare(self, call: JobCall[Any], carrier: Carrier | None) -> Steps[str]:
        options = call.options
        if "unique_for_s" in options:
            raise ValueError("unique_for_s needs the job's result to be kept (result=True)")
        payload, unique = call.payload(_no_key), options.get("unique", call.function.settings.unique)
        item: Any = {
            "topic": call.function.topic,
            "payload": self.packed(payload),
            **self._options_of(call),
            **present(headers={**(options.get("headers") or {}), **(carrier or {})} or None),
        }
        if (key := self._key(call, payload, unique=unique)) is not None:
            item |= {"idempotency_key": key, **present(unique=unique or None)}
        items: list[Item] = [item]
        results = yield from flows.enqueue(self.namespace, items, self._shards)
        return str(flows.only(results).id)

    def _submitted(self, dag: Dag) -> Steps[str]:
        return (yield from submission(self.namespace, dag)).dag.id

    def drive(self, steps: Steps[T]) -> T:
        """Go through a verb's steps here.

        Raises:
            RuntimeError: an event loop runs here, which would stand still meanwhile.
        """
        if in_loop():
            steps.close()
            raise RuntimeError(
                "this would block the event loop: in a coroutine use the verb that begins with `a`, like "
                "`await job.aresult()`"
            )
        answer: Any = None
        error: Exception | None = None
        transport = self.client._transport
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as stop:
                found: T = stop.value
                return found
            try:
                answer, error = (transport.send(step) if isinstance(step, Call) else step()), None
            except Exception as failure:
                error = failure

    async def adrive(self, steps: Steps[T]) -> T:
        """Go through a verb's steps in a coroutine; what blocks, in a thread."""
        answer: Any = None
        error: Exception | None = None
        transport = self.async_client._transport
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as stop:
                found: T = stop.value
                return found
            try:
                if isinstance(step, Call):
                    answer, error = await transport.send(step), None
                else:
                    answer, error = await asyncio.to_thread(step), None
            except Exception as failure:
                error = failure

    # Ending

    def close(self) -> None:
        """Close the connections of code that blocks."""
        if self._client is not None and self._own:
            self._client.close()
            self._client = None

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


_UNSENT: Final = "a call of a job of its own refers to no other"


def _no_key(call: JobCall[Any]) -> str:
    raise AssertionError(_UNSENT)


def in_loop() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
