"""Who should own which shard: even, few moves, and the same answer everywhere."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from shared.shards.balance import assign

NAMES = st.text("abcdefgh", min_size=1, max_size=3)
OWNERS = st.dictionaries(st.integers(0, 4095), st.none() | NAMES, min_size=1, max_size=40)
MEMBERS = st.sets(NAMES, min_size=1, max_size=9)


@given(OWNERS, MEMBERS)
def test_every_shard_has_one_member_and_loads_differ_by_one_at_most(
    owners: dict[int, str | None], members: set[str]
) -> None:
    plan = assign(owners, members)
    loads = Counter(dict.fromkeys(members, 0) | Counter(plan.values()))

    assert plan.keys() == owners.keys()
    assert set(plan.values()) <= members
    assert max(loads.values()) - min(loads.values()) <= 1
    assert max(loads.values()) <= -(-len(owners) // len(members))


@given(OWNERS, MEMBERS)
def test_no_even_answer_moves_fewer(owners: dict[int, str | None], members: set[str]) -> None:
    plan = assign(owners, members)
    held = Counter(owner for owner in owners.values() if owner in members)
    floor, more = divmod(len(owners), len(members))
    loads = sorted((held[member] for member in members), reverse=True)
    best = sum(min(load, floor + (i < more)) for i, load in enumerate(loads))

    assert sum(plan[number] == owner for number, owner in owners.items()) == best


@given(OWNERS, MEMBERS)
def test_what_is_as_it_should_be_stays(owners: dict[int, str | None], members: set[str]) -> None:
    plan = assign(owners, members)

    assert assign(plan, members) == plan


@given(OWNERS, MEMBERS)
def test_the_order_of_what_is_known_does_not_matter(owners: dict[int, str | None], members: set[str]) -> None:
    backwards = dict(reversed(owners.items()))

    assert assign(backwards, sorted(members, reverse=True)) == assign(owners, members)


def test_without_members_nobody_is_named() -> None:
    assert assign({0: "a", 1: None}, ()) == {}


def test_a_newcomer_gets_its_share() -> None:
    plan = assign({0: "a", 1: "a", 2: "b", 3: "b"}, {"a", "b", "c"})

    assert sorted(Counter(plan.values()).values()) == [1, 1, 2]
