"""What a result needs is asked for in several calls: where the job is dropped in between, its result is gone."""

from typing import Any

import pytest

from headgate import App, NotFound, ResultGone, wire

ENDED = wire.WaitedDag.model_construct(state="succeeded", node=None)
SKIPPED = wire.WaitedDag.model_construct(
    state="failed", node=wire.NodeEnd.model_construct(key="n", state="skipped")
)
SHOWN = wire.Dag.model_construct(state="failed", reason=None)


@pytest.mark.parametrize(
    "answers",
    [[], [ENDED], [SKIPPED], [SKIPPED, SHOWN]],
    ids=["before", "a node by itself", "why it was skipped", "what has failed"],
)
def test_a_job_that_is_dropped_while_its_result_is_asked_for(answers: list[Any]) -> None:
    steps = App("shop").handle("a-job")._result_of("n", None, alone=True)
    next(steps)
    for answer in answers:
        steps.send(answer)
    with pytest.raises(ResultGone, match="kept for a while only"):
        steps.throw(NotFound("there is no such DAG in this namespace"))
