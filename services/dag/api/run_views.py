"""What deciders are told, as JSON values."""

from __future__ import annotations

from typing import Any

from services.dag.api.views import raw
from services.dag.store.runs import StoredEvent
from services.dag.workflows.reading import History
from services.dag.workflows.values import TurnAnswer


def turn_view(answer: TurnAnswer) -> dict[str, Any]:
    """The answer to a turn."""
    told: dict[str, Any] = {"turn": answer.turn}
    if answer.parked or answer.ended:
        return told | ({"parked": True} if answer.parked else {"ended": True})
    return told | {"events": list(map(event_view, answer.events)), "more": answer.more}


def history_view(history: History) -> dict[str, Any]:
    """A page of a history."""
    return {
        "events": list(map(event_view, history.events)),
        "seen": history.run.seen,
        "turn": history.run.turn,
        "markers": raw(history.run.markers),
        "more": history.more,
    }


def event_view(event: StoredEvent) -> dict[str, Any]:
    """An event; what is empty is left out."""
    view: dict[str, Any] = {"event": event.event, "at": event.at, "kind": event.kind, "state": event.state}
    if event.key:
        view["key"] = event.key
    if event.generation != 1:
        view["generation"] = event.generation
    for name in ("output", "data"):
        if (text := getattr(event, name)) is not None:
            view[name] = raw(text)
    for name in ("error", "after", "reset", "void"):
        if (value := getattr(event, name)) is not None:
            view[name] = value
    return view
