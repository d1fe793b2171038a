"""What workers told of their jobs (lines of logs, progress), and what must not be shown of it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.worlds.facts import History
from tests.worlds.limit_facts import held_at
from tests.worlds.wire import Known


@dataclass(slots=True)
class Logged:
    """Lines that were sent under a token, once or several times; `is_own` says whether that is of a lease of the
    item of the caller's."""

    item: str
    namespace: str
    token: str
    number: int
    texts: list[str]
    is_own: bool
    known: set[tuple[Known, str]] = field(default_factory=set)

    @property
    def is_written(self) -> bool:
        return ("ok", "written") in self.known

    @property
    def may_be_written(self) -> bool:
        return self.is_own and any(known == "info" or status == "written" for known, status in self.known)


@dataclass(frozen=True, slots=True)
class Told:
    """Progress that was sent with an extension; `note` is its own."""

    item: str
    token: str
    note: str
    known: Known
    status: str
    sent: float
    done: float

    @property
    def may_stand(self) -> bool:
        return self.known == "info" or self.status == "extended"


@dataclass(frozen=True, slots=True)
class Shown:
    """What an item showed of its progress; the note `behind` had been told by then, whatever the clock says."""

    item: str
    namespace: str
    state: str
    attempt: int
    note: str | None
    sent: float
    done: float
    behind: str = ""


@dataclass
class JobFacts:
    """All of it; `logs` are read in the end, by item, as its namespace is shown them."""

    logged: list[Logged] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)  # the last of each token
    rounds: dict[str, int] = field(default_factory=dict)  # when something was last sent under it
    told: list[Told] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    logs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def judge(facts: JobFacts, history: History) -> list[str]:
    """Every violation, as a sentence."""
    found = [f"the log of {item}: {fault}" for item, log in facts.logs.items() for fault in _log(facts, item, log)]
    found += [f"{one} was taken, which is not its holder's" for one in facts.logged if _is_foreign(one)]
    return found + [fault for shown in facts.shown for fault in _progress(facts, history, shown)]


def _is_foreign(one: Logged) -> bool:
    return not one.is_own and any(status in ("written", "full") for _, status in one.known)


def _log(facts: JobFacts, item: str, log: list[dict[str, Any]]) -> Iterator[str]:
    texts = [line["text"] for line in log]
    times = [datetime.fromisoformat(line["at"]) for line in log]
    own = [one for one in facts.logged if one.item == item]
    for one in own:
        for text in one.texts:
            count = texts.count(text)
            if count > 1 or (count == 0 and one.is_written) or (count and not one.may_be_written):
                yield f"{text} ({one.known}) is there {count} times"
    if strange := set(texts) - {text for one in own for text in one.texts}:
        yield f"it has lines that nobody wrote: {sorted(strange)}"
    if times != sorted(times):
        yield f"its lines are not in the order of time: {times}"
    for token in {one.token for one in own}:
        sent = [
            text for one in sorted(own, key=lambda each: each.number) if one.token == token for text in one.texts
        ]
        came = [text for text in texts if text in sent]
        if came != [text for text in sent if text in came]:
            yield f"of one lease it has {came}, and was sent {sent}"


def _progress(facts: JobFacts, history: History, shown: Shown) -> Iterator[str]:
    """It is what the present holder told last, or nothing where that has told nothing."""
    told = [one for one in facts.told if one.item == shown.item]
    deliveries = history.deliveries.get(shown.item, [])
    holders = {one.token: one for one in deliveries if one.attempt == shown.attempt}
    if shown.state != "leased":
        if shown.note is not None:
            yield f"nobody has it, and it shows progress: {shown}"
        return
    if shown.note is not None:
        mine = [one for one in told if one.note == shown.note]
        if not mine or mine[0].token not in holders or not mine[0].may_stand:
            yield f"its holder told nothing of this: {shown}, {mine}"
    for holder in holders.values():
        certain = [
            one
            for one in told
            if one.token == holder.token
            and one.status == "extended"
            and (one.done < shown.sent or one.note == shown.behind)
        ]
        if certain and held_at(history, holder, shown.done):
            last = max(one.sent for one in certain)  # of what was on its way then nobody knows which came first
            later = {one.note for one in told if one.token == holder.token and one.done >= last}
            if shown.note not in later:
                yield f"it shows {shown}, and its holder has told {certain[-1]}"
