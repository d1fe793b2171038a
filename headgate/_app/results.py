"""What a node's output stands for. Most outputs are the result itself; others are an object with `$headgate`:

{"$headgate": "value", "value"}          a result that has such a key itself
{"$headgate": "calls", "value", "from"}  the function returned calls: their results belong into `value`
{"$headgate": "stored", "key"}           the result is in the app's store
{"$headgate": "when", "met"}             what a condition came to
"""

from collections.abc import Generator, Mapping
from typing import Any, Final, Literal

from headgate._app.call import put

MARK: Final = "$headgate"

# What is missing to tell a result: the output of a node, or what the store has under a key.
Need = tuple[Literal["output", "stored"], str]
Opening = Generator[Need, Any, Any]


def opened(output: Any) -> Opening:
    """The result that an output stands for. Yields what it needs, and is sent it."""
    if not isinstance(output, dict) or MARK not in output:
        return output
    match output[MARK]:
        case "value":
            return output["value"]
        case "stored":
            stored = yield "stored", output["key"]
            return (yield from opened(stored))
        case "when":
            return output["met"]
        case "calls":
            return (yield from filled(output["value"], output["from"]))
        case "series":
            prefix, first, count = output["of"]
            found = []
            for number in range(first, first + count):
                found.append((yield from opened((yield "output", f"{prefix}{number}"))))
            return found
        case other:
            raise ValueError(f"an output of a kind {other!r}, which this version of headgate does not know")


def filled(value: Any, places: Any) -> Opening:
    """A value with the results of other nodes in their places."""
    for place in places:
        path, key, *inner = place
        output = yield "output", key
        if inner:  # of a flow in the place of a node: the outputs of its last calls
            outputs = output if isinstance(output, Mapping) else {}
            found = yield from _within(filled(None, [[[], *inner]]), outputs)
        else:
            found = yield from opened(output)
        value = put(value, path, found)
    return value


def _within(part: Opening, outputs: Mapping[str, Any]) -> Opening:
    """An opening whose nodes are those of an inner flow."""
    answer: Any = None
    while True:
        try:
            kind, key = part.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = outputs.get(key) if kind == "output" else (yield kind, key)


def sealed(value: Any, trace: Mapping[str, str] | None = None) -> Any:
    """A result as an output."""
    if trace:
        return {MARK: "value", "value": value, "trace": trace}
    return {MARK: "value", "value": value} if isinstance(value, dict) and MARK in value else value


def series(keys: list[str]) -> dict[str, Any] | None:
    """Keys that end in consecutive numbers, in few bytes; nothing where they do not."""
    parted = [key.rpartition("-") for key in keys]
    if not parted or not all(digits.isdigit() for _, _, digits in parted):
        return None
    prefix, first = parted[0][0] + "-", int(parted[0][2])
    if keys != [f"{prefix}{first + at}" for at in range(len(keys))]:
        return None
    return {MARK: "series", "of": [prefix, first, len(keys)]}
