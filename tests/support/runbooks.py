"""The runbooks of docs/operations.md for the pages: `python -m tests.support.runbooks` writes them.

The pages come with the services and have no other way to the documentation.
"""

import json
import re
from pathlib import Path

from services.local.stack import ROOT

FILE = ROOT / "shared" / "http" / "page" / "runbooks.js"
_ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"


def runbooks() -> str:
    """The module: of each alert its severity, when it fires, and what to do."""
    rules = {
        rule.partition("\n")[0]: rule for rule in re.split(r"^ +- alert: ", _ALERTS.read_text(), flags=re.M)[1:]
    }
    page = (ROOT / "docs" / "operations.md").read_text()
    sections = re.findall(r"^#### (Headgate\w+)\n(.*?)(?=^##)", page, re.M | re.S)
    found = {
        name: {"severity": _field(rules[name], "severity"), "fires": _when(rules[name]), "text": _plain(text)}
        for name, text in sections
    }
    told = json.dumps(found, indent=1, ensure_ascii=False)
    head = "// What to do when an alert fires. Made from docs/operations.md by `make runbooks`.\n\n"
    return f"{head}export const RUNBOOKS = {told};\n"


def _field(rule: str, name: str) -> str:
    found = re.search(rf"^ +{name}: '?(.*?)'?$", rule, re.M)
    assert found is not None, (name, rule)
    return found[1]


def _when(rule: str) -> str:
    lasts = re.search(r"^ +for: (.*)$", rule, re.M)
    return _field(rule, "expr") + (f", for {lasts[1]}" if lasts else "")


def _plain(text: str) -> str:
    """Without line breaks and links; what stands in backticks stays marked."""
    return re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", re.sub(r"\s+", " ", text).strip())


def main() -> None:
    """Write the module."""
    Path(FILE).write_text(runbooks())


if __name__ == "__main__":
    main()
