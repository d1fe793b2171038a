"""Makes the blocking client from the async one; a test proves that it is current.

.venv/bin/python tests/unit/headgate/unasync.py
"""

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "headgate"
FILES = {
    "_async_client.py": "_client.py",
    "_async_handle.py": "_handle.py",
    "_async_sender.py": "_sender.py",
    "_async_events.py": "_events.py",
    "_async_values.py": "_values.py",
    "_async_limits.py": "_limits.py",
    "_async_logs.py": "_logs.py",
    "_async_schedules.py": "_schedules.py",
    "_async_workers.py": "_workers.py",
    "_async_workflows.py": "_workflows.py",
    "_async_reasons.py": "_reasons.py",
}
MADE = "Made from `{source}` by `tests/unit/headgate/unasync.py`; change that one."
WORDS = [
    (r"await ", ""),
    (r"async (def|with|for) ", r"\1 "),
    (r"_async_(handle|events|sender|values|limits|logs|schedules|workers|workflows|reasons)", r"_\1"),
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
