"""The verbs of workflows, as data; see `_calls`. A decider names a run by its DAG, people by the workflow's id."""

from typing import Any, Final

from headgate._calls.verbs import Verb
from headgate.workflow.events import Event
from headgate.workflow.turns import Page, TurnAnswer

_WORKFLOWS: Final = "/v1/namespaces/{ns}/workflows"
_WORKFLOW: Final = _WORKFLOWS + "/{workflow}"
_RUN: Final = "/v1/namespaces/{ns}/dags/{run}"

START = Verb("dag", "POST", _WORKFLOWS, safe=False)
LIST = Verb("dag", "GET", _WORKFLOWS, safe=True)
SHOW = Verb("dag", "GET", _WORKFLOW, safe=True)
WAIT = Verb("dag", "GET", _WORKFLOW + "/wait", safe=True)
HISTORY = Verb("dag", "GET", _WORKFLOW + "/history", safe=True)
SIGNAL = Verb("dag", "POST", _WORKFLOW + "/signals", safe=True)
CANCEL = Verb("dag", "POST", _WORKFLOW + "/cancel", safe=True)
TERMINATE = Verb("dag", "POST", _WORKFLOW + "/terminate", safe=True)
PAUSE = Verb("dag", "POST", _WORKFLOW + "/pause", safe=True)
RESUME = Verb("dag", "POST", _WORKFLOW + "/resume", safe=True)
UPDATE = Verb("dag", "POST", _WORKFLOW + "/updates", safe=True)
UPDATE_STATE = Verb("dag", "GET", _WORKFLOW + "/updates/{update}", safe=True)
RESET = Verb("dag", "POST", _WORKFLOW + "/reset", safe=True)
MOVE = Verb("dag", "POST", _WORKFLOW + "/move", safe=True)
RUN_HISTORY = Verb("dag", "GET", _RUN + "/history", safe=True)
# The same turn again is answered again.
RUN_TURN = Verb("dag", "POST", _RUN + "/turn", safe=True)


def page(answer: Any) -> Page:
    return Page(
        list(map(Event.parse, answer["events"])),
        answer["seen"],
        answer["turn"],
        answer.get("markers") or {},
        answer.get("more", False),
    )


def turn_answer(answer: Any) -> TurnAnswer:
    events = list(map(Event.parse, answer.get("events") or ()))
    flags = (answer.get(name, False) for name in ("parked", "ended", "more"))
    return TurnAnswer(answer["turn"], events, *flags)
