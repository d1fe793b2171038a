"""Makes the blocking client from the async one; a test proves that it is current.

.venv/bin/python tests/unit/headgate/unasync.py
"""

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "headgate" / "_client"
FILES = {
    "async_client.py": "client.py",
    "async_handle.py": "handle.py",
    "async_sender.py": "sender.py",
    "async_events.py": "events.py",
    "async_values.py": "values.py",
    "async_limits.py": "limits.py",
    "async_logs.py": "logs.py",
    "async_schedules.py": "schedules.py",
    "async_workers.py": "workers.py",
    "async_workflows.py": "workflows.py",
    "async_reasons.py": "reasons.py",
}
MADE = "Made from `{source}` by `tests/unit/headgate/unasync.py`; change that one."
WORDS = [
    (r"await ", ""),
    (r"async (def|with|for) ", r"\1 "),
    (r"\basync_(handle|events|sender|values|limits|logs|schedules|workers|workflows|reasons)", r"\1"),
    (r"AsyncGenerator\[(.*), None\]", r"Generator[\1, None, None]"),
    (r"AsyncGenerator", "Generator"),
    (r"\baclosing\b", "closing"),
    (r"async_client", "client"),
    (r"httpx\.AsyncBaseTransport", "httpx.BaseTransport"),
    (r"AsyncTransport", "SyncTransport"),
    (r"Async(Client|DagHandle|Sender|DagValues|Limits|Logs|Schedules)", r"\1"),
    (r"Async(Workers|Reasons|WorkflowHandle|Workflows)", r"\1"),
    (r"__aenter__", "__enter__"),
    (r"__aexit__", "__exit__"),
    (r"\baclose\b", "close"),
    (
        r'""".*for coroutines\..*"""',
        '"""Made from `{source}` by `tests/unit/headgate/unasync.py`; change that one."""',
    ),
]


def made_from(source: str) -> str:
    """The blocking form of a file of the package."""
    text = (PACKAGE / source).read_text()
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement.replace("{source}", source), text)
    return tidied(text, FILES[source])


def tidied(text: str, name: str) -> str:
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--select", "I", "--fix-only", "-q"], ["format", "-q"]):
        arguments = [*ruff, *command, "--stdin-filename", str(PACKAGE / name), "-"]
        text = subprocess.run(arguments, input=text, text=True, capture_output=True, check=True).stdout
    return text


def main() -> None:
    for source, target in FILES.items():
        (PACKAGE / target).write_text(made_from(source))


if __name__ == "__main__":
    main()
