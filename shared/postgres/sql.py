"""Named SQL blocks: `-- name: claim(topic_ids, limit)` above a statement that uses `$1..$n`.

The loader refuses a file whose header disagrees with its body, so a statement cannot be called with the
wrong number of arguments; `tests/contract/test_statements.py` prepares every block on a migrated shard.
The idea is aiosql's and procrastinate's; arguments are bound by keyword.

A list of columns that several statements have stands once, under `-- columns: dag_columns`, and is put in the
place of `{dag_columns}` everywhere in the directory; `{dag_columns:d}` puts `d.` before the name of each. Other
text that several statements have stands once under `-- part: places_part`, in the place of `{places_part}`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HEADER = re.compile(r"^-- name: (\w+)\(([^)]*)\)\s*$", re.M)
_PARAMETER = re.compile(r"\$(\d+)")
_COLUMNS = re.compile(r"^-- columns: (\w+)\n((?:(?!--).+\n)+)", re.M)
_PART = re.compile(r"^-- part: (\w+)\n((?:(?!-- (?:name|part|columns):).+\n)+)", re.M)
_PLACEHOLDER = re.compile(r"\{(\w+_(?:columns|part))(?::(\w+))?\}")


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement and the names of its parameters, in order."""

    name: str
    parameters: tuple[str, ...]
    text: str

    def args(self, **values: Any) -> tuple[Any, ...]:
        """The positional arguments for `values`; a missing or unknown name is a KeyError."""
        if len(values) != len(self.parameters):
            raise KeyError(f"{self.name} takes {self.parameters}, got {tuple(values)}")
        return tuple(map(values.__getitem__, self.parameters))


class Statements:
    """The statements of one or more `.sql` files, as attributes."""

    def __init__(self, statements: dict[str, Statement]) -> None:
        self._statements = statements

    def __getattr__(self, name: str) -> Statement:
        try:
            return self._statements[name]
        except KeyError:
            raise AttributeError(f"no SQL block is named {name}") from None

    def __iter__(self) -> Any:
        return iter(self._statements.values())


def load(*directories: Path) -> Statements:
    """Read every `*.sql` file of these directories.

    Raises:
        ValueError: a header and its body disagree, two blocks share a name, or what is put in is not there.
    """
    found: dict[str, Statement] = {}
    texts = {
        path: path.read_text(encoding="utf-8")
        for directory in directories
        for path in sorted(directory.glob("*.sql"))
    }
    columns = {
        name: [column.strip() for column in listed.split(",")]
        for text in texts.values()
        for name, listed in _COLUMNS.findall(text)
    }
    parts = {
        name: re.sub(r"^--.*\n", "", part, flags=re.M).rstrip()
        for text in texts.values()
        for name, part in _PART.findall(text)
    }
    for path, text in texts.items():
        own = _PART.sub("", _COLUMNS.sub("", text))
        for statement in _parse(_expanded(own, columns, parts, path.name), path.name):
            if statement.name in found:
                raise ValueError(f"{path.name}: {statement.name} is defined twice")
            found[statement.name] = statement
    return Statements(found)


def _expanded(text: str, columns: dict[str, list[str]], parts: dict[str, str], source: str) -> str:
    """The text with lists of columns, and parts, in the place of their names."""

    def listed(match: re.Match[str]) -> str:
        name, prefix = match.groups()
        if name in parts:
            return parts[name]
        if name not in columns:
            raise ValueError(f"{source}: there are no columns, and no part, named {name}")
        return ", ".join(f"{prefix}.{column}" if prefix else column for column in columns[name])

    return _PLACEHOLDER.sub(listed, text)


def _parse(text: str, source: str) -> list[Statement]:
    headers = list(_HEADER.finditer(text))
    ends = [header.start() for header in headers[1:]] + [len(text)]
    blocks = []
    for header, end in zip(headers, ends, strict=True):
        names = tuple(part.strip() for part in header.group(2).split(",") if part.strip())
        body = text[header.end() : end].strip().rstrip(";")
        code = re.sub(r"--[^\n]*", "", body)
        used = {int(number) for number in _PARAMETER.findall(code)}
        if used != set(range(1, len(names) + 1)):
            raise ValueError(f"{source}: {header.group(1)}({', '.join(names)}) uses ${sorted(used)}")
        blocks.append(Statement(header.group(1), names, body))
    return blocks
