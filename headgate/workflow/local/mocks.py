"""What tasks, steps, children and graphs do in a test: how long they take, and how they end."""

import asyncio
import inspect
import json
import math
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from headgate.workflow.commands import canonical
from headgate.workflow.errors import NodeFailed

ATTEMPTS_MAX: Final = 20
FAILED: Final = "failed, as the test says"
# More attempts than any task has.
FOR_EVER: Final = sys.maxsize


@dataclass(slots=True)
class Mock:
    """What a task, step, child or graph's node does in a test."""

    output: Any = None
    fails: int = 0
    error: str = FAILED
    takes_s: float = 0.0
    workflow: Callable[..., Any] | None = None

    def work(self, *arguments: Any) -> Any:
        if not callable(self.output):
            return self.output
        taken = len(inspect.signature(self.output).parameters)
        return finished(partial(self.output, *arguments[:taken]))


# The mock of a name, if the test has one.
MockOf = Callable[[str], Mock | None]


def attempts(mock: Mock, spec: Mapping[str, Any], *arguments: Any) -> tuple[float, str, Any, str | None]:
    """How long a task takes with all its attempts, and how it ends."""
    attempts_max = spec.get("max_attempts") or ATTEMPTS_MAX
    limit_s = spec.get("start_to_close_s") or spec.get("timeout_s") or math.inf
    is_late = mock.takes_s > limit_s
    takes_s = min(mock.takes_s, limit_s)
    failed = attempts_max if is_late else min(mock.fails, attempts_max)
    backoff = {"base_s": 1.0, "factor": 2.0, "max_s": 300.0, **(spec.get("backoff") or {})}
    pauses = [min(backoff["base_s"] * backoff["factor"] ** number, backoff["max_s"]) for number in range(failed)]
    if failed == attempts_max:
        return takes_s * failed + sum(pauses[:-1]), "failed", None, "timed out" if is_late else mock.error
    return takes_s * (failed + 1) + sum(pauses), *_worked(mock, *arguments)


def done(mock: Mock | None, *arguments: Any, default: Any = None) -> tuple[str, Any, str | None]:
    if mock is None:
        return "succeeded", default, None
    if mock.fails:
        return "failed", None, mock.error
    return _worked(mock, *arguments)


def _worked(mock: Mock, *arguments: Any) -> tuple[str, Any, str | None]:
    try:
        return "succeeded", json.loads(canonical(mock.work(*arguments), "the output of a mock")), None
    except NodeFailed as error:
        return error.state, None, error.error
    except Exception as error:
        return "failed", None, f"{type(error).__name__}: {error}"


def graph_played(mock_of: MockOf, dag: Mapping[str, Any]) -> tuple[float, str, Any, str | None]:
    """A graph at once: each node after those that it waits for; what waits for a failed one is skipped."""
    ended_s: dict[str, float] = {}
    outputs: dict[str, Any] = {}
    failed: dict[str, str] = {}
    waited_for: set[str] = set()
    for node in dag.get("nodes", ()):
        upstream = node.get("upstream", [])
        waited_for |= set(upstream)
        key, start_s = node["key"], max((ended_s[other] for other in upstream), default=0.0)
        ended_s[key] = start_s
        if any(other not in outputs for other in upstream):
            continue
        if "dag" in node:
            takes_s, state, output, error = graph_played(mock_of, node["dag"])
        else:
            mock = mock_of(node["topic"]) or Mock()
            inputs = {other: outputs[other] for other in upstream}
            takes_s, state, output, error = attempts(mock, node, node.get("payload"), inputs)
        ended_s[key] += takes_s
        if state == "succeeded":
            outputs[key] = output
        else:
            failed[key] = error or state
    takes_s = max(ended_s.values(), default=0.0)
    if failed:
        return takes_s, "failed", None, "; ".join(f"{key}: {error}" for key, error in failed.items())
    return takes_s, "succeeded", {key: outputs[key] for key in ended_s if key not in waited_for}, None


def finished(call: Callable[[], Any] | None) -> Any:
    """What a function returns, awaited if need be."""
    assert call is not None
    found = call()
    if not inspect.isawaitable(found):
        return found

    async def awaited() -> Any:
        return await found

    running: Coroutine[Any, Any, Any] = awaited()
    return asyncio.run(running)
