"""Names of workflows, which both DAGs and runs say."""

from typing import Annotated, Final, Literal

from pydantic import StringConstraints

from headgate.wire.base import PATH_NAME_PATTERN, fault

# With `wf/` before it, a topic.
WORKFLOW_TYPE_PATTERN: Final = r"^[A-Za-z0-9._/-]{1,125}$"
# With `wfv/` before it, and `/` and the type behind it, a topic.
WORKFLOW_VERSION_PATTERN: Final = r"^[A-Za-z0-9._-]{1,64}$"
TYPE_AND_VERSION_CHARS_MAX: Final = 123

WorkflowType = Annotated[str, StringConstraints(pattern=WORKFLOW_TYPE_PATTERN)]
WorkflowVersion = Annotated[str, StringConstraints(pattern=WORKFLOW_VERSION_PATTERN)]
PathName = Annotated[str, StringConstraints(pattern=PATH_NAME_PATTERN)]
ParentClose = Literal["cancel", "terminate", "abandon"]


def check_version(type: str, version: str | None) -> None:
    """Raises a fault where the topic of a version's runs would be too long."""
    if version is not None and len(type) + len(version) > TYPE_AND_VERSION_CHARS_MAX:
        raise fault("/version", f"type and version are over {TYPE_AND_VERSION_CHARS_MAX} characters together")
