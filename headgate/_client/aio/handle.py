"""One DAG's verbs, for coroutines."""

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any, Literal, TypeVar, Unpack

from headgate import wire
from headgate._calls import verbs
from headgate._calls.dag import (
    Dag,
    External,
    Node,
    NodeOptions,
    NodeRef,
    TimerOptions,
    WaitOptions,
    add_dependencies,
    externals_of,
    grow,
    key_of,
    keys_of,
    timer_node,
)
from headgate._calls.flows import batches_of, listed
from headgate._calls.verbs import Call, Verb, present
from headgate._client.aio.events import follow
from headgate._client.aio.sender import AsyncSender
from headgate._client.aio.values import AsyncDagValues

T = TypeVar("T")


class AsyncDagHandle:
    """A DAG that the service has. Making a handle sends nothing.

    One that `submit` returns says whether the DAG was there before (`existing`) and was made of what was submitted
    (`same`); None is not known. `values` are what its jobs share.
    """

    def __init__(
        self,
        client: AsyncSender,
        dag_id: str,
        namespace: str,
        *,
        existing: bool | None = None,
        same: bool | None = None,
    ) -> None:
        self.id = dag_id
        self.namespace = namespace
        self.existing = existing
        self.same = same
        self.values = AsyncDagValues(client, dag_id, namespace)
        self._client = client

    def __repr__(self) -> str:
        return f"AsyncDagHandle({self.id!r}, namespace={self.namespace!r})"

    async def show(self) -> wire.Dag:
        """The DAG's state and counts."""
        return await self._client._send(self._call(verbs.DAG))

    async def add(
        self,
        key: str,
        topic: str,
        *,
        after: Iterable[NodeRef] | None = None,
        external: Iterable[External] | None = None,
        **options: Unpack[NodeOptions],
    ) -> wire.NodeAdded:
        """Add a node, also while the DAG runs; the same node again changes nothing.

        Raises:
            NodeExists: another node has this key.
            UnknownNode: an upstream is not in the DAG.
            DagFinished: the DAG has ended.
        """
        node = Node(key, topic, keys_of(after), externals_of(external), options)
        return (await self.add_nodes([node]))[0]

    async def add_subdag(
        self,
        key: str,
        dag: Dag,
        *,
        after: Iterable[NodeRef] | None = None,
        external: Iterable[External] | None = None,
        **options: Unpack[WaitOptions],
    ) -> wire.NodeAdded:
        """Add a node in whose place a whole DAG runs; errors as of `add`, and those of the DAG itself."""
        node = Node(key, None, keys_of(after), externals_of(external), options, dag.within())
        return (await self.add_nodes([node]))[0]

    async def add_timer(
        self,
        key: str,
        *,
        delay_s: float | None = None,
        at: datetime | None = None,
        after: Iterable[NodeRef] | None = None,
        external: Iterable[External] | None = None,
        **options: Unpack[TimerOptions],
    ) -> wire.NodeAdded:
        """Add a node that ends by itself: `delay_s` after what it waits for has ended, or `at` a time.

        Errors as of `add`.
        """
        node = timer_node(key, delay_s, at, after, external, options)
        return (await self.add_nodes([node]))[0]

    async def add_nodes(self, nodes: Sequence[Node]) -> list[wire.NodeAdded]:
        """Add nodes, upstreams first, as many as there are."""
        return await self._client._run(grow(self.namespace, self.id, nodes))

    async def expand(
        self, node: NodeRef, children: Dag | Sequence[Node], *, generation: int | None = None
    ) -> list[wire.NodeAdded]:
        """Add children to `node`, which runs: what waits for it, now or later, waits for them too.

        As many as there are; what waits is held back by `node` itself until it is acked. The same children
        again change nothing.

        Raises:
            NodeNotRunning: the node does not run, or not in `generation`.
        """
        nodes = children.ordered() if isinstance(children, Dag) else children
        expanding = present(node=key_of(node), generation=generation)
        return await self._client._run(grow(self.namespace, self.id, nodes, expanding=expanding))

    async def depend(self, upstream: NodeRef, downstream: NodeRef) -> None:
        """Let `downstream` wait for `upstream`.

        Raises:
            NodeReleased: too late, `downstream` is released.
            Cycle: it would wait for itself.
        """
        await self.add_dependencies([(upstream, downstream)])

    async def add_dependencies(self, edges: Sequence[tuple[NodeRef, NodeRef]]) -> None:
        """Add edges, each an (upstream, downstream) pair."""
        pairs = [
            {"upstream": key_of(upstream), "downstream": key_of(downstream)} for upstream, downstream in edges
        ]
        await self._client._run(batches_of(lambda part: add_dependencies(self.namespace, self.id, part), pairs))

    async def resolve(
        self, node: NodeRef, name: str, *, data: Any = None, failed: bool = False
    ) -> wire.Resolution:
        """Say that external `name` of `node` has happened, or failed: `resolved` or `already_resolved`.

        `declared` is false while no node waits for it, as where it is misspelt; `hint` says more then.
        """
        external = present(node=key_of(node), name=name, data=data, failed=failed or None)
        return (await self.resolve_many([external]))[0]

    async def resolve_many(self, external: Sequence[Mapping[str, Any]]) -> list[wire.Resolution]:
        """Resolve externals, each `{node, name, data?, failed?}`."""
        return await self._client._run(batches_of(self._resolve, external))

    async def release(self) -> wire.Dag:
        """Lift the hold."""
        return await self._client._send(self._call(verbs.DAG_RELEASE))

    async def close(self) -> wire.Dag:
        """End `open`: the DAG ends when its nodes have."""
        return await self._client._send(self._call(verbs.DAG_CLOSE))

    async def pause(self) -> wire.Dag:
        """Release no further node until `resume`."""
        return await self._client._send(self._call(verbs.DAG_PAUSE))

    async def resume(self) -> wire.Dag:
        """Go on after `pause`."""
        return await self._client._send(self._call(verbs.DAG_RESUME))

    async def cancel(self, reason: str | None = None) -> wire.Dag:
        """Cancel every unfinished node; the DAG is `cancelling` until all are confirmed."""
        return await self._client._send(self._call(verbs.DAG_CANCEL, present(reason=reason)))

    async def cancel_nodes(self, nodes: Iterable[NodeRef], reason: str | None = None) -> list[wire.NodeCancelled]:
        """Cancel single nodes: "cancelled", "cancelling" (the queue has not confirmed it yet),
        "already_cancelled" or "finished", each. What comes below is decided by its triggers."""
        keys = keys_of(nodes)
        return await self._client._run(batches_of(lambda part: self._cancel_nodes(part, reason), keys))

    async def retry(
        self,
        nodes: Iterable[NodeRef] | None = None,
        *,
        down_from: Iterable[NodeRef] | None = None,
        everything: bool = False,
        payloads: Mapping[str, Any] | None = None,
    ) -> wire.Dag:
        """Run failed nodes (all, or those named) again, with what was skipped or cancelled because of them.

        With `down_from`, these nodes and everything below them, what succeeded too; with `everything`, the
        whole DAG. `payloads` gives nodes that run again another payload, by key.

        Raises:
            NothingToRetry: none of them failed.
            DagCancelling: a cancel is still being confirmed.
        """
        body = present(
            nodes=None if nodes is None else keys_of(nodes),
            all=everything or None,
            payloads=payloads,
            **{"from": None if down_from is None else keys_of(down_from)},
        )
        return await self._client._send(self._call(verbs.DAG_RETRY, body))

    async def skip(self, nodes: Iterable[NodeRef]) -> wire.Dag:
        """Take blocked nodes as skipped."""
        return await self._client._send(self._call(verbs.DAG_SKIP, {"nodes": keys_of(nodes)}))

    async def wait(self, timeout_s: float | None = None) -> wire.Dag:
        """The DAG once it has ended, or as it stands after `timeout_s`."""
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = wire.WAIT_S_MAX if ends_at is None else max(0.0, ends_at - time.monotonic())
            wait_s = round(min(wire.WAIT_S_MAX, left_s), 3)
            call = self._call(verbs.DAG_WAIT, query={"timeout_s": wait_s}, wait_s=wait_s)
            dag = await self._client._send(call)
            if dag.finished or (left_s <= wire.WAIT_S_MAX and ends_at is not None):
                return dag

    async def events(self, after: str | None = None) -> AsyncGenerator[wire.DagEvent, None]:
        """Every change of the DAG and its nodes, from the first or the one after event `after`, to the DAG's end.

        Changes come as they happen, each once and in order. A stream that is cut is gone on with from where it
        was. To follow a DAG without its past, pass `last_event_id` of `show()`.
        """
        async with aclosing(follow(self._client._transport, self._ask_events, after)) as events:
            async for event in events:
                yield event

    async def nodes(self, state: wire.NodeState | None = None, *, limit: int | None = None) -> list[wire.NodeView]:
        """All nodes, or those in `state`, or the first `limit` of them."""
        parse = verbs.page_of(wire.NodeView)
        return await self._client._run(
            listed(lambda page: self._ask(verbs.DAG_NODES, parse, {"state": state, **page}), limit)
        )

    async def node(self, key: NodeRef) -> wire.NodeView:
        """One node, with what it waits for in `blocked_by`."""
        return await self._client._send(
            self._ask(verbs.DAG_NODE, wire.NodeView.model_validate, {"key": key_of(key)})
        )

    async def export(self) -> list[wire.NodeExport]:
        """All nodes, each with what its item is made of."""
        parse = verbs.page_of(wire.NodeExport)
        return await self._client._run(listed(lambda page: self._ask(verbs.DAG_EXPORT, parse, dict(page)), None))

    async def why(self, key: NodeRef | None = None) -> wire.Why:
        """Why the DAG, or one node of it, has not ended: a sentence, and the chain of causes down to its root."""
        query = {"key": None if key is None else key_of(key)}
        return await self._client._send(self._ask(verbs.DAG_WHY, wire.Why.model_validate, query))

    async def timelines(self, *, limit: int | None = None) -> list[wire.Timeline]:
        """The lives of all nodes, or of the first `limit`: made, released, tried, ended."""
        parse = verbs.page_of(wire.Timeline)
        return await self._client._run(
            listed(lambda page: self._ask(verbs.DAG_TIMELINES, parse, dict(page)), limit)
        )

    async def frontier(self, *, limit: int = wire.PAGE_LIMIT_DEFAULT, cursor: str | None = None) -> wire.Frontier:
        """What the DAG waits for now, since when, and the longest chain left; `next_cursor` leads on."""
        query = {"limit": limit, "cursor": cursor}
        return await self._client._send(self._ask(verbs.DAG_FRONTIER, wire.Frontier.model_validate, query))

    async def timeline(self, key: NodeRef) -> wire.Timeline:
        """One node's life: created, released, each attempt, ended."""
        query = {"key": key_of(key)}
        return await self._client._send(self._ask(verbs.DAG_TIMELINE, wire.Timeline.model_validate, query))

    async def outputs(self, *, limit: int | None = None) -> list[wire.NodeOutput]:
        """The outputs of the nodes that nothing waits for: what the DAG has come to."""
        parse = verbs.page_of(wire.NodeOutput)
        return await self._client._run(listed(lambda page: self._ask(verbs.DAG_OUTPUTS, parse, page), limit))

    async def inputs(self, key: NodeRef) -> Any:
        """What a node with `pass_outputs` is given, also where its item only holds a reference to it."""
        return await self._client._send(self._ask(verbs.DAG_NODE_INPUTS, verbs.as_is, {"key": key_of(key)}))

    async def output(self, key: NodeRef) -> Any:
        """A node's output.

        Raises:
            NotFound: there is no such node, or it has given none.
        """
        return await self._client._send(self._ask(verbs.DAG_NODE_OUTPUT, verbs.as_is, {"key": key_of(key)}))

    async def graph(self) -> wire.GraphView:
        """All nodes and edges, with states."""
        return await self._client._send(
            self._ask(verbs.DAG_GRAPH, wire.GraphView.model_validate, {"format": "json"})
        )

    async def graph_text(self, form: Literal["mermaid", "dot"] = "mermaid") -> str:
        """The graph as text for a renderer."""
        call = self._ask(verbs.DAG_GRAPH, str, {"format": form})
        call.text = True
        return await self._client._send(call)

    def _call(
        self,
        verb: Verb,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        wait_s: float = 0.0,
    ) -> Call[wire.Dag]:
        parse = wire.Dag.model_validate
        return verbs.call(verb, parse, body=body, query=query, wait_s=wait_s, ns=self.namespace, dag=self.id)

    def _ask(self, verb: Verb, parse: Callable[[Any], T], query: Mapping[str, Any]) -> Call[T]:
        return verbs.call(verb, parse, query=query, ns=self.namespace, dag=self.id)

    def _ask_events(self, query: Mapping[str, Any]) -> Call[wire.DagEvent]:
        call = self._ask(verbs.DAG_EVENTS, wire.DagEvent.model_validate, query)
        call.wait_s = wire.WAIT_S_MAX
        return call

    def _cancel_nodes(self, keys: Sequence[str], reason: str | None) -> Call[list[wire.NodeCancelled]]:
        body = {"nodes": keys, **present(reason=reason)}
        return verbs.call(verbs.DAG_NODES_CANCEL, _cancelled, body=body, ns=self.namespace, dag=self.id)

    def _resolve(self, external: Sequence[Any]) -> Call[list[wire.Resolution]]:
        body = {"external": external}
        return verbs.call(verbs.DAG_RESOLVE, _resolutions, body=body, ns=self.namespace, dag=self.id)


def _resolutions(answer: Any) -> list[wire.Resolution]:
    return wire.Resolutions.model_validate(answer).results


def _cancelled(answer: Any) -> list[wire.NodeCancelled]:
    return wire.NodesCancelled.model_validate(answer).results
