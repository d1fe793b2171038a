"""Bringing a DAG to the service from the command line: how far it is, while it takes long."""

import sys
from collections.abc import Callable
from typing import Any

from headgate._calls.dag import Dag, Submitted, submission
from headgate._calls.flows import Flow
from headgate._calls.verbs import Call
from headgate._cli.output import LiveLine
from headgate._client.blocking.client import Client
from headgate.errors import HeadgateError
from headgate.wire import NodeAdded


def submit(client: Client, dag: Dag) -> Submitted:
    """`Client.submit`, with a line on a terminal that shows how many nodes are there."""
    progress = _Progress(len(dag.nodes))
    try:
        made: Submitted = client._run(_told(submission(client.namespace, dag), progress.add))
    finally:
        progress.close()
    return made


def _told(flow: Flow[Any], tell: Callable[[Any], None]) -> Flow[Any]:
    """The same flow, telling each answer."""
    answer, error = None, None
    while True:
        try:
            call: Call[Any] = flow.send(answer) if error is None else flow.throw(error)
        except StopIteration as stop:
            return stop.value
        try:
            answer, error = (yield call), None
        except HeadgateError as failure:
            answer, error = None, failure
        else:
            tell(answer)


class _Progress:
    """Nodes brought to the service: one live line on a terminal, nothing elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._line = LiveLine(sys.stderr)

    def add(self, answer: Any) -> None:
        if isinstance(answer, list):
            self._done += sum(isinstance(element, NodeAdded) for element in answer)
        self._line.steps(self._done, self._total, "nodes")

    def close(self) -> None:
        self._line.close()
