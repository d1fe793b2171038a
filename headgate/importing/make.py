"""Make's dependency lines: hand-written Makefiles as far as a reader without Make can go, and `make -pn`.

Nothing is run and no file is looked at: not `$(shell ...)`, not `include`, not a wildcard. A target with a rule
becomes a node, its recipe stands in the payload as it was written; a prerequisite without a rule is a source
file, taken as present.

For what this does not read, let Make read it: `make -pn > database.txt` and import that.
"""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headgate._calls.dag import Dag
from headgate.importing.found import EDGES_MAX, NODES_MAX, Fault, Found, Options, shown
from headgate.wire import PAYLOAD_BYTES_MAX

# Characters that references to variables read and write, and one for each reference: also of nothing there may be
# as many as there are paths.
EXPANDED_CHARS_MAX: Final = 10_000_000
RECIPE_LINES_MAX: Final = 100

_ASSIGNMENT = re.compile(r"^\s*(?:override\s+|export\s+|private\s+)*([^\s:#=+?!]+)\s*(\+=|\?=|!=|:{0,3}=)\s*(.*)$")
_OPENS = re.compile(r"^\s*(ifeq|ifneq|ifdef|ifndef)\b")
_CLOSES = re.compile(r"^\s*endif\b")
_DIRECTIVE = re.compile(r"^\s*(-?include|sinclude|vpath|export|unexport|undefine|load|else)\b")
_DEFINES = re.compile(r"^\s*(?:override\s+)?define\b")
_VARIABLE = re.compile(r"\$(?:\$|\(([^()${}]*)\)|\{([^(){}$]*)\}|([^(){}$]))")
_SPECIAL = re.compile(r"^\.[A-Z_]+$")
_SUFFIX_RULE = re.compile(r"^\.[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?$")
_WORD = re.compile(r"(?:\\[ :#\\]|\\|[^\s\\])+")
_DATABASE = "# Make data base"


class _Line(NamedTuple):
    """A logical line and where it begins; `recipe` lines begin with a tab."""

    number: int
    text: str
    recipe: bool


@dataclass(slots=True)
class _Rule:
    """All that was said of one target."""

    line: int
    needs: dict[str, bool] = field(default_factory=dict)
    recipe: list[str] = field(default_factory=list)


class _Unreadable(Exception):
    """A line needs more of Make than there is here."""


def read_make(text: str, options: Options) -> Found:
    """A Makefile, or the data base that `make -pn` prints.

    Raises:
        Fault, Cycle
    """
    found = Found(Dag())
    rules = _Reader(found, database=_DATABASE in text).read(text)
    wanted = _wanted(rules, options.goals)
    sources: set[str] = set()
    for target in wanted:
        rule = rules[target]
        payload = {"target": target, "recipe": rule.recipe} if rule.recipe else {"target": target}
        kind = target[target.rfind(".") :] if "." in target else None
        found.node(f"line {rule.line}", target, options.topic_of(target, kind), payload=payload)
    for target in wanted:
        for need, ordered_only in rules[target].needs.items():
            if need not in rules:
                sources.add(need)
                continue
            if ordered_only:
                found.leave("order-only prerequisites", f"line {rules[target].line}", "edges like others")
            found.depend(f"line {rules[target].line}", need, target)
    if sources:
        found.leave("source files", "", f"{len(sources)} prerequisites without a rule, taken as present")
    if any(rules[target].recipe for target in wanted):
        found.leave("variables in recipes", "", "recipes stand in the payload as they are written")
    found.leave("timestamps", "", "every node runs, also where its target is up to date", changed=True)
    return found.close()


def _wanted(rules: dict[str, _Rule], goals: tuple[str, ...]) -> list[str]:
    """The goals and what they need; all targets without goals."""
    if not rules:
        raise Fault("", "there is no line like `target: prerequisites` in it")
    for goal in goals:
        if goal not in rules:
            raise Fault("", f"there is no rule for {shown(goal)}")
    todo, wanted = list(goals or rules), dict.fromkeys(goals or rules)
    while goals and todo:
        for need in rules[todo.pop()].needs:
            if need in rules and need not in wanted:
                wanted[need] = None
                todo.append(need)
    return list(wanted)


class _Reader:
    """Reads lines into rules."""

    def __init__(self, found: Found, *, database: bool) -> None:
        self._found = found
        self._database = database
        self._variables: dict[str, list[str]] = {}  # the parts, as `+=` added them
        self._rules: dict[str, _Rule] = {}
        self._open: list[_Rule] = []
        self._recipe: list[str] | None = None  # that of the open rules, once it has a line
        self._recipe_chars = 0
        self._expanded = 0
        self._needs = 0

    def read(self, text: str) -> dict[str, _Rule]:
        """All rules, by target."""
        skipping, depth, files, no_target = "", 0, not self._database, False
        for line in _lines(text):
            if self._database and line.text.startswith("#"):
                files = _in_files(line.text, files)
                no_target = line.text.startswith("# Not a target")
                continue
            if not files:
                continue
            if skipping:
                depth, skipping = _depth(line.text, depth, skipping)
            elif line.recipe:
                self._cook(line.text.strip())
            elif _OPENS.match(line.text):
                skipping, depth = "if", 1
                self._leave("conditionals", line, "neither side was read", changed=True)
            elif _DEFINES.match(line.text):
                skipping, depth = "define", 1
                self._leave("define", line, "")
            elif no_target:
                no_target = False
                self._open, self._recipe = [], None
            else:
                self._line(line)
        if skipping:
            raise Fault("", f"an `{'if' if skipping == 'if' else 'define'}` has no end")
        return self._rules

    def _line(self, line: _Line) -> None:
        text = _uncommented(line.text)
        if not text.strip():
            return
        self._open, self._recipe = [], None
        if _DIRECTIVE.match(text) and not _ASSIGNMENT.match(text):
            word = text.split()[0].lstrip("-")
            self._leave(word, line, "what it names was not read", changed=word in ("include", "sinclude"))
            return
        assignment = _ASSIGNMENT.match(text)
        try:
            if assignment:
                self._assign(*assignment.groups())
            elif ":" in text:
                self._rule(line, text)
            else:
                self._leave("lines that are no rule", line, "")
        except _Unreadable as reason:
            self._leave("functions and unknown variables", line, f"the line was not read: {reason}", changed=True)

    def _assign(self, name: str, how: str, value: str) -> None:
        if how == "!=":
            self._variables.pop(name, None)
            return
        if how == "+=":
            self._variables.setdefault(name, []).append(value)
            return
        if how == "?=" and name in self._variables:
            return
        if how in (":=", "::=", ":::="):
            try:
                value = self._expand(value)
            except _Unreadable:
                self._variables.pop(name, None)
                return
        self._variables[name] = [value]

    def _cook(self, command: str) -> None:
        """A line of the recipe that all open rules share; the last recipe of a target counts, as in Make."""
        if self._recipe is None:
            self._recipe, self._recipe_chars = [], 0
            for rule in self._open:
                rule.recipe = self._recipe
        # One that is too large for a payload is left out; no more of it is kept than shows that.
        if len(self._recipe) < RECIPE_LINES_MAX and self._recipe_chars <= PAYLOAD_BYTES_MAX:
            self._recipe.append(command[: PAYLOAD_BYTES_MAX + 1])
            self._recipe_chars += len(command)

    def _rule(self, line: _Line, text: str) -> None:
        head, colon, rest = _split_colon(text)
        if not colon:
            self._leave("lines that are no rule", line, "")
            return
        rest, _, recipe = rest.partition(";")
        if _ASSIGNMENT.match(rest) and "=" in rest:
            self._leave("target-specific variables", line, "")
            return
        targets = _words(self._expand(head))
        grouped = bool(targets) and targets[-1] == "&"
        targets = (
            targets[:-1] if grouped else [target.removesuffix("&") if grouped else target for target in targets]
        )
        if _split_colon(rest)[1]:
            self._leave("static pattern rules", line, "let `make -pn` expand them", changed=True)
            return
        needs = _words(self._expand(rest))
        if any("%" in target for target in targets):
            self._leave("pattern rules", line, "let `make -pn` apply them", changed=True)
            return
        if grouped:
            self._leave("grouped targets", line, "a node for each", changed=True)
        if colon == "::":
            self._leave("double-colon rules", line, "rules of one target are one node", changed=True)
        self._open = [rule for target in targets if (rule := self._target(line, target, needs)) is not None]
        if recipe.strip():
            self._cook(recipe.strip())

    def _target(self, line: _Line, target: str, needs: list[str]) -> _Rule | None:
        if _SPECIAL.match(target):
            if target != ".PHONY":
                self._leave(f"special target {target}", line, "")
            return None
        if _SUFFIX_RULE.match(target) and not needs:
            if not self._database:
                self._leave("suffix rules", line, "let `make -pn` apply them", changed=True)
            return None
        rule = self._rules.get(target)
        if rule is None:
            if len(self._rules) >= NODES_MAX:
                raise Fault(f"line {line.number}", f"there are over {NODES_MAX} targets")
            rule = self._rules[target] = _Rule(line.number)
        self._needs += len(needs)
        if self._needs > EDGES_MAX:
            raise Fault(f"line {line.number}", f"there are over {EDGES_MAX} prerequisites")
        ordered_only = False
        for need in needs:
            if need == "|":
                ordered_only = True
            elif any(mark in need for mark in "*?["):
                self._leave("wildcards", line, "no file is looked at", changed=True)
            elif need == ".WAIT":
                self._leave(".WAIT", line, "what stands beside it runs at once", changed=True)
            else:
                rule.needs[need] = rule.needs.get(need, True) and ordered_only
        return rule

    def _expand(self, text: str, depth: int = 0) -> str:
        if depth > 20:
            raise _Unreadable("a variable is defined by itself")

        def value(match: re.Match[str]) -> str:
            if match.group(0) == "$$":
                return "$"
            name = next(group for group in match.groups() if group is not None)
            if name not in self._variables:
                raise _Unreadable(shown(f"$({name})", quoted=False))
            held = self._held(name)
            self._spend(1 + len(held))
            expanded = self._expand(held, depth + 1)
            self._spend(len(expanded))
            return expanded

        found = _VARIABLE.sub(value, text)
        if "$(" in found or "${" in found:
            raise _Unreadable(found[found.index("$") :][:40])
        return found

    def _held(self, name: str) -> str:
        """The text of a variable."""
        parts = self._variables[name]
        if len(parts) > 1:
            parts[:] = [" ".join(parts).strip()]
        return parts[0]

    def _spend(self, chars: int) -> None:
        self._expanded += chars
        if self._expanded > EXPANDED_CHARS_MAX:
            raise Fault("", f"variables expand to over {EXPANDED_CHARS_MAX} characters")

    def _leave(self, what: str, line: _Line, note: str, *, changed: bool = False) -> None:
        self._found.leave(what, f"line {line.number}", note, changed=changed)


def _lines(text: str) -> Iterator[_Line]:
    """Logical lines: one that ends in a backslash goes on in the next."""
    number = 0
    parts: list[str] = []
    for at, ended in enumerate(io.StringIO(text, newline=None), start=1):
        raw = ended.removesuffix("\n")
        if not parts:
            number = at
        slashes = len(raw) - len(raw.rstrip("\\"))
        if slashes % 2:
            parts.append(raw[:-1])
            continue
        parts.append(raw)
        yield _logical(number, parts)
        parts = []
    if parts:
        yield _logical(number, parts)


def _logical(number: int, parts: list[str]) -> _Line:
    if parts[0].startswith("\t"):
        return _Line(number, "\n".join(parts), recipe=True)
    return _Line(number, " ".join([parts[0], *(part.strip() for part in parts[1:])]), recipe=False)


def _in_files(comment: str, files: bool) -> bool:
    if comment.startswith("# Files"):
        return True
    return files and not comment.startswith("# files hash-table stats")


def _depth(text: str, depth: int, skipping: str) -> tuple[int, str]:
    """How deep a skipped part nests after a line of it."""
    if skipping == "if":
        depth += 1 if _OPENS.match(text) else -1 if _CLOSES.match(text) else 0
    else:
        depth += 1 if _DEFINES.match(text) else -1 if re.match(r"^\s*endef\b", text) else 0
    return depth, skipping if depth else ""


def _uncommented(text: str) -> str:
    match = re.search(r"(?<!\\)#", text)
    return text[: match.start()] if match else text


def _split_colon(text: str) -> tuple[str, str, str]:
    """Targets, `:` or `::`, and the rest; the colon is not inside a variable, nor escaped, nor a drive's."""
    depth, at = 0, 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char in "({":
            depth += 1
        elif char in ")}":
            depth -= 1
        elif char == ":" and depth <= 0:
            colon = "::" if text[at : at + 2] == "::" else ":"
            return text[:at], colon, text[at + len(colon) :]
        at += 1
    return text, "", ""


def _words(text: str) -> list[str]:
    return [re.sub(r"\\([ :#\\])", r"\1", word) for word in _WORD.findall(text)]
