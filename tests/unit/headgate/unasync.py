"""Makes the blocking client from the async one; a test proves that it is current.

.venv/bin/python tests/unit/headgate/unasync.py
"""

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "headgate" / "_client"
NAMES = sorted(path.name for path in (PACKAGE / "aio").glob("[!_]*.py"))
MADE = "Made from `aio/{name}` by `tests/unit/headgate/unasync.py`; change that one."
WORDS = [
    (r"await ", ""),
    (r"async (def|with|for) ", r"\1 "),
    (r"\b_client\.aio\b", "_client.blocking"),
    (r"AsyncGenerator\[(.*), None\]", r"Generator[\1, None, None]"),
    (r"AsyncGenerator", "Generator"),
    (r"\baclosing\b", "closing"),
    (r"httpx\.AsyncBaseTransport", "httpx.BaseTransport"),
    (r"AsyncTransport", "SyncTransport"),
    (r"Async(Client|DagHandle|Sender|DagValues|Limits|Logs|Schedules)", r"\1"),
    (r"Async(Workers|Reasons|WorkflowHandle|Workflows)", r"\1"),
    (r"__aenter__", "__enter__"),
    (r"__aexit__", "__exit__"),
    (r"\baclose\b", "close"),
    (r'""".*for coroutines\..*"""', f'"""{MADE}"""'),
]


def made_from(name: str) -> str:
    """The blocking form of an async module."""
    text = (PACKAGE / "aio" / name).read_text()
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement.replace("{name}", name), text)
    return tidied(text, name)


def tidied(text: str, name: str) -> str:
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--select", "I", "--fix-only", "-q"], ["format", "-q"]):
        arguments = [*ruff, *command, "--stdin-filename", str(PACKAGE / "blocking" / name), "-"]
        text = subprocess.run(arguments, input=text, text=True, capture_output=True, check=True).stdout
    return text


def main() -> None:
    for name in NAMES:
        (PACKAGE / "blocking" / name).write_text(made_from(name))


if __name__ == "__main__":
    main()
