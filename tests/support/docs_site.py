"""The sources of the documentation's site, for its generator: `python -m tests.support.docs_site build/docs`.

docs/ as it is, with the README as the first page. A link that leads out of docs/ leads to a page `repository/...`
with the file, so that the site is whole without the repository. The REST reference comes from docs/openapi/, the
Python reference from docstrings.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.python_reference import python_reference
from tests.support.rest_reference import rest_reference

ROOT = Path(__file__).parents[2]
ELSEWHERE = "repository"
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)]*)?\))")
_FENCE = re.compile(r"^(`{3,}).*?^\1", re.MULTILINE | re.DOTALL)
_LANGUAGES = {".py": "python", ".sql": "sql", ".yaml": "yaml", ".json": "json", ".toml": "toml", ".js": "js"}
# Code is not what a reader of documentation looks for.
_UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
_BEGINS = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "deploy/README.md"]


def write(folder: Path) -> None:
    """Make the folder anew."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("openapi"))
    made = {
        "reference/rest-queue.md": rest_reference(ROOT / "docs" / "openapi" / "queue.json", "queue"),
        "reference/rest-dag.md": rest_reference(ROOT / "docs" / "openapi" / "dag.json", "DAG"),
        "reference/python.md": python_reference(),
    }
    made |= {place(path): page(path) for path in pages()}
    for name, text in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def pages() -> list[str]:
    """The files that the site shows: those of docs/, those that stand at the top, and all that these lead to."""
    waiting = _BEGINS + [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
    found = set(waiting)
    while waiting:
        for target in targets(waiting.pop()):
            if target not in found and not target.startswith("docs/"):
                found.add(target)
                waiting.append(target)
    return sorted(found)


def targets(path: str) -> Iterator[str]:
    """The files that a page leads to."""
    if path.endswith(".md"):
        for _, target, _ in _LINK.findall(_FENCE.sub("", (ROOT / path).read_text())):
            if not re.match(r"[a-z]+:", target):
                yield resolved(path, target)


def resolved(source: str, target: str) -> str:
    """The file of the repository that a link of a file means; of a folder, the one that tells of it."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if (ROOT / path).is_dir():
        tells = ("README.md", "__init__.py", "index.html", "values.yaml", "queue.json")
        there = [name for name in tells if (ROOT / path / name).is_file()]
        return posixpath.join(path, there[0])
    return path


def place(path: str) -> str:
    """Where a file of the repository stands on the site."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/openapi/"):
        return f"reference/rest-{Path(path).stem}.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{ELSEWHERE}/{path}" if path.endswith(".md") else f"{ELSEWHERE}/{path}.md"


def side_by_side(text: str) -> str:
    """Headgate's program beside that of each other system; the page is wide for that."""
    head, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    ours = _FENCE.search(sections[0])
    assert ours is not None, "the first section has the program"
    shown = [sections[0]]
    for section in sections[1:]:
        theirs = _FENCE.search(section)
        pair = theirs and f'<div class="grid" markdown>\n\n{ours[0]}\n\n{theirs[0]}\n\n</div>'
        shown.append(section.replace(theirs[0], pair, 1) if theirs and pair else section)
    return f"---\nhide:\n  - navigation\n  - toc\n---\n\n{head}{''.join(shown)}"


def page(path: str) -> str:
    """A file as a page: its links lead to where their targets stand."""
    text = (ROOT / path).read_text()
    if path == "docs/coming-from.md":
        text = side_by_side(text)
    if not path.endswith(".md"):
        fence = "`" * (3 + max((len(run) for run in re.findall(r"`{3,}", text)), default=0))
        return f"{_UNSEARCHED}# `{path}`\n\n{fence}{_LANGUAGES.get(Path(path).suffix, 'text')}\n{text}\n{fence}\n"

    def moved(found: re.Match[str]) -> str:
        target = found[2]
        if not re.match(r"[a-z]+:", target):
            target = posixpath.relpath(place(resolved(path, target)), posixpath.dirname(place(path)) or ".")
        return found[1] + target + found[3]

    parts = re.split(r"(^`{3,}.*?^`{3,}$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(moved, part) for part in parts)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
