"""What `import headgate` gives, as a page: signatures and docstrings, read without running the code."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

import griffe

_SECTIONS = ("Raises:", "Returns:", "Yields:", "Args:")


def python_reference() -> str:
    """The page."""
    package = griffe.load("headgate", resolve_aliases=True, allow_inspection=False)
    members = {name: _real(package[name]) for name in package.exports or () if not str(name).startswith("_")}
    errors = {name: found for name, found in members.items() if _is_error(found)}
    lines = [
        "# Python",
        "",
        "What `import headgate` gives. A client is blocking or asynchronous; both have the same verbs.",
        "",
    ]
    for name in sorted(members.keys() - errors.keys(), key=str.lower):
        lines += _member(name, members[name])
    lines += ["## Errors", "", "Each is a `HeadgateError`, with what [errors](../errors.md) says of its code.", ""]
    for name in sorted(errors):
        lines += [f"### {name}", "", *_prose(errors[name]), ""]
    return "\n".join(lines)


def _real(found: griffe.Object | griffe.Alias) -> griffe.Object:
    return found.final_target if isinstance(found, griffe.Alias) else found


def _is_error(found: griffe.Object) -> bool:
    if not isinstance(found, griffe.Class):
        return False
    return found.filepath.name == "errors.py" if not isinstance(found.filepath, list) else False


def _member(name: str, found: griffe.Object) -> Iterator[str]:
    yield from (f"## {name}", "")
    if isinstance(found, griffe.Function):
        yield from _signature(name, found)
    elif isinstance(found, griffe.Class) and "__init__" in found.all_members:
        yield from _signature(name, _real(found.all_members["__init__"]))
    yield from (*_prose(found), "")
    if isinstance(found, griffe.Class):
        for other, each in found.all_members.items():
            real = _real(each)
            if other.startswith("_") or not real.docstring or real.is_class:
                continue
            yield from (f"### {name}.{other}", "")
            if isinstance(real, griffe.Function):
                yield from _signature(other, real)
            yield from (*_prose(real), "")


def _signature(name: str, found: griffe.Object) -> Iterator[str]:
    if not isinstance(found, griffe.Function):
        return
    parts = []
    keyword_only = False
    for each in found.parameters:
        if each.name in ("self", "cls"):
            continue
        kind = each.kind
        if kind is griffe.ParameterKind.keyword_only and not keyword_only:
            parts.append("*")
        keyword_only = keyword_only or kind in (
            griffe.ParameterKind.keyword_only,
            griffe.ParameterKind.var_positional,
        )
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(kind, "")
        told = f"{stars}{each.name}" + (f": {each.annotation}" if each.annotation else "")
        plain = each.default is None or kind in (
            griffe.ParameterKind.var_positional,
            griffe.ParameterKind.var_keyword,
        )
        parts.append(told if plain else f"{told} = {each.default}")
    answer = f" -> {found.returns}" if found.returns and found.name != "__init__" else ""
    waits = "async " if "async" in found.labels else ""
    whole = f"{waits}{name}({', '.join(parts)}){answer}"
    if len(whole) > 100:
        whole = f"{waits}{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){answer}"
    yield from ("```python", whole, "```", "")


def _prose(found: griffe.Object) -> Iterator[str]:
    """A docstring as Markdown: its sections as lists, its examples as code."""
    if found.docstring is None:
        return
    text = textwrap.dedent(found.docstring.value)
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        if lines[0].strip() in _SECTIONS:
            listed = " ".join(lines[1:]) if len(lines) == 2 else "\n".join(lines[1:])
            yield from (f"*{lines[0].strip()[:-1]}*", "")
            for line in textwrap.dedent(listed).splitlines():
                yield f"- {line}" if not line.startswith(" ") else f"  {line.strip()}"
        elif all(line.startswith("    ") for line in lines):
            yield from ("```python", textwrap.dedent(block), "```")
        else:
            yield block
        yield ""
