"""What may happen in a world: one function each, with how often, and when it can be."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.worlds.world import World

Act = Callable[["World", Random], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Verb:
    """`act` makes calls and notes in the facts what the oracles are to know; `when` says whether there is anything
    for it. Both choose by the generator they are given and by nothing else. Worlds have it from edition `since`
    on."""

    name: str
    weight: float
    act: Act
    when: Callable[["World"], bool]
    since: int


# A new verb changes what a seed chooses. So verbs that come together are an edition, and a seed that is kept is
# run in its own.
EDITION = 9
VERBS: list[Verb] = []


def verb(
    weight: float, when: Callable[["World"], bool] = lambda world: True, *, since: int = 1
) -> Callable[[Act], Act]:
    """Let a function be one of the verbs."""

    def register(act: Act) -> Act:
        VERBS.append(Verb(act.__name__, weight, act, when, since))
        return act

    return register
