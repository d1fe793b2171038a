"""Names of workflows, which both DAGs and runs say."""

from typing import Annotated, Final, Literal

from pydantic import StringConstraints

from headgate.wire.base import PATH_NAME_PATTERN

# With `wf/` before it, a topic.
WORKFLOW_TYPE_PATTERN: Final = r"^[A-Za-z0-9._/-]{1,125}$"

WorkflowType = Annotated[str, StringConstraints(pattern=WORKFLOW_TYPE_PATTERN)]
PathName = Annotated[str, StringConstraints(pattern=PATH_NAME_PATTERN)]
ParentClose = Literal["cancel", "terminate", "abandon"]
