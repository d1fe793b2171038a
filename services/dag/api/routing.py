"""What the routes of the DAG service share: paths, who calls, in which namespace, and the duties behind them."""

from __future__ import annotations

import re
from typing import Annotated, Final

from fastapi import Depends, Query, Request

from headgate import wire
from services.dag.api.parts import Orchestrator
from shared.admission.connection_priority import Urgency
from shared.errors import invalid
from shared.http.access import Caller
from shared.http.edge import caller_of

DAGS_PATH: Final = "/v1/namespaces/{ns}/dags"
DAG_PATH: Final = DAGS_PATH + "/{dag}"

_NAMESPACE = re.compile(wire.NAMESPACE_PATTERN).fullmatch
_PATH_NAME = re.compile(wire.PATH_NAME_PATTERN).fullmatch

CallerOf = Annotated[Caller, Depends(caller_of)]
Limit = Annotated[int, Query(ge=1, le=wire.PAGE_LIMIT_MAX)]
Key = Annotated[str, Query(min_length=1, max_length=wire.KEY_BYTES_MAX)]


async def orchestrator_of(request: Request) -> Orchestrator:
    """A dependency: this process's duties, for a call that is not turned away. Queries and building go first."""
    request.app.state.lag.let_in(_urgency(request))
    orchestrator: Orchestrator = request.app.state.orchestrator
    return orchestrator


def _urgency(request: Request) -> Urgency:
    if request.method == "GET":
        return Urgency.LIST
    builds = request.url.path.endswith(("/dags", "/nodes", "/dependencies"))
    return Urgency.ENQUEUE if builds else Urgency.DEQUEUE


def admit(ns: str, caller: Caller) -> None:
    """Raises Invalid for a malformed namespace, NotFound or Forbidden when it is not open to the caller."""
    if _NAMESPACE(ns) is None:
        raise invalid("", "the namespace in the path must match [A-Za-z0-9._-]{1,64} and be neither . nor ..")
    caller.enter(ns)


def enter(ns: str, caller: Caller, *, reads: bool) -> None:
    """Raises Invalid for a malformed namespace, Forbidden when it is not open to the caller; changing anything
    needs `enqueue`."""
    admit(ns, caller)
    if reads:
        caller.need("consume", "enqueue", "ops")
    else:
        caller.need("enqueue")


async def namespace_of(ns: str, request: Request, caller: CallerOf) -> str:
    """A dependency: the namespace of the path, open to the caller."""
    enter(ns, caller, reads=request.method == "GET")
    return ns


def enter_as_decider(ns: str, caller: Caller) -> None:
    """The same for a turn, which whoever works may write: its secret came with the item."""
    admit(ns, caller)
    caller.need("consume", "enqueue")


async def namespace_of_decider(ns: str, caller: CallerOf) -> str:
    """A dependency: the namespace of the path, open to a decider."""
    enter_as_decider(ns, caller)
    return ns


def path_name(name: str, text: str) -> str:
    """A part of a path that names a value or a schedule.

    Raises:
        Invalid: nothing can be named so.
    """
    if _PATH_NAME(text) is None:
        raise invalid(f"/{name}", wire.PATH_NAME_WORDS)
    return text


OrchestratorOf = Annotated[Orchestrator, Depends(orchestrator_of)]
NamespaceOf = Annotated[str, Depends(namespace_of)]
NamespaceOfDecider = Annotated[str, Depends(namespace_of_decider)]


def clean(name: str, text: str | None) -> str | None:
    """A parameter that Postgres can be asked about.

    Raises:
        Invalid: nothing can be named so.
    """
    if text is not None and wire.unclean(text):
        raise invalid(f"/{name}", "it holds characters that nothing here is named with")
    return text
