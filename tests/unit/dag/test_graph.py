"""Triggers, sorting and the topological order that is kept while edges come."""

import random
from array import array
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.dag.graph import Order, decide, sort
from services.dag.model import TRANSITIONS, UNFINISHED, Counts

TRIGGERS = ["all_succeeded", "all_done", "any_succeeded", "any_failed", "none_failed"]
ENDS = ["succeeded", "failed", "skipped", "cancelled"]


def comes_before(order: Order, first: int, second: int) -> bool:
    return order._position[first] < order._position[second]


def _reference(trigger: str, states: list[str]) -> str:
    """The contract's table, read word by word."""
    over = [state for state in states if state not in UNFINISHED]
    done = len(over) == len(states)
    match trigger:
        case "all_succeeded":
            spoiled = any(state != "succeeded" for state in over)
            return "skip" if spoiled else "fire" if done else "wait"
        case "all_done":
            return "fire" if done else "wait"
        case "any_succeeded":
            return "fire" if "succeeded" in over else "skip" if done else "wait"
        case "any_failed":
            return "fire" if "failed" in over else "skip" if done else "wait"
    spoiled = any(state in ("failed", "cancelled") for state in over)
    return "skip" if spoiled else "fire" if done else "wait"


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_triggers_decide_as_the_contract_says(trigger: str) -> None:
    for size in range(4):
        for states in product(["blocked", *ENDS], repeat=size):
            if size == 0 and trigger.startswith("any_"):
                continue
            counts = Counts()
            for state in states:
                counts.add(state)
            assert decide(trigger, counts) == _reference(trigger, list(states)), (trigger, states)  # type: ignore[arg-type]


@given(st.sampled_from(TRIGGERS), st.lists(st.sampled_from(ENDS), min_size=1, max_size=6))
def test_a_decision_once_made_does_not_change_as_more_upstreams_end(trigger: str, ends: list[str]) -> None:
    counts = Counts(left=len(ends))
    made = "wait"
    for end in ends:
        counts.left -= 1
        counts.add(end)
        verdict = decide(trigger, counts)  # type: ignore[arg-type]
        assert made in ("wait", verdict)
        made = verdict
    assert made != "wait"


def test_no_terminal_state_leads_anywhere() -> None:
    for state, following in TRANSITIONS.items():
        assert (not following) == (state not in UNFINISHED)
        assert following <= TRANSITIONS.keys() - {state}


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=20, unique=True))
def test_sort_gives_an_order_or_a_cycle(edges: list[tuple[int, int]]) -> None:
    named = [(str(up), str(down)) for up, down in edges]
    order, cycle = sort([str(n) for n in range(9)], named)
    if order:
        assert sorted(order) == [str(n) for n in range(9)]
        assert all(order.index(up) < order.index(down) for up, down in named)
    else:
        assert all(pair in named for pair in pairwise([*cycle, cycle[0]]))
        assert len(set(cycle)) == len(cycle)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=60))
def test_an_order_takes_every_edge_but_those_that_close_a_cycle(edges: list[tuple[int, int]]) -> None:
    order = Order()
    order.grow(10)
    taken: list[tuple[int, int]] = []
    for edge in edges:
        acyclic = sort([str(n) for n in range(10)], [(str(up), str(down)) for up, down in {*taken, edge}])[0]
        cycle = order.insert(*edge)
        if acyclic:
            assert cycle == []
            taken.append(edge)
        else:
            assert cycle[0] == edge[0]
            assert all(pair in {*taken, edge} for pair in pairwise([*cycle, cycle[0]]))
            assert len(set(cycle)) == len(cycle)
        assert all(comes_before(order, up, down) for up, down in taken)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12, unique=True), max_size=8
    ),
    st.booleans(),
)
def test_edges_sorted_at_once_are_taken_unless_one_of_them_closes_a_cycle(
    calls: list[list[tuple[int, int]]], together: bool
) -> None:
    """All of a call or none of it, whichever way it goes."""
    order = Order()
    order.grow(10)
    taken: set[tuple[int, int]] = set()
    for call in calls:
        edges = [edge for edge in call if edge not in taken]
        acyclic = sort([str(n) for n in range(10)], [(str(up), str(down)) for up, down in {*taken, *edges}])[0]
        cycle = order._insert_together(edges) if together else order.insert_all(edges)
        if acyclic:
            assert cycle == []
            taken |= set(edges)
        else:
            assert all(pair in {*taken, *edges} for pair in pairwise([*cycle, cycle[0]]))
            assert len(set(cycle)) == len(cycle)
        assert order.edges == len(taken)
        assert all(comes_before(order, up, down) for up, down in taken)


@pytest.mark.parametrize("closes", [False, True])
def test_a_call_of_many_edges_against_the_order_is_sorted_at_once(closes: bool) -> None:
    """However its nodes are numbered, it looks at each of them a few times: not at most of them for each edge."""
    count, choose = 2_000, random.Random(3)
    names = list(range(count))
    choose.shuffle(names)
    known = [(names[i], names[i + 1]) for i in range(0, count - 1, 2)]
    edges = [(names[i], names[j]) for i in range(count) for j in (i + 2, i + 7) if j < count]
    choose.shuffle(edges)
    order = Order()
    order.grow(count)
    assert order.insert_all(known) == []
    cycle = order.insert_all([*edges, (names[-1], names[0])] if closes else edges)
    assert order._visited < 4 * count
    assert all(pair in {*known, *edges, (names[-1], names[0])} for pair in pairwise([*cycle, *cycle[:1]]))
    assert bool(cycle) is closes
    taken = known if closes else [*known, *edges]
    assert order.edges == len(taken)
    assert all(comes_before(order, up, down) for up, down in taken)


def test_edges_taken_back_no_longer_close_cycles() -> None:
    order = Order()
    order.grow(3)
    assert order.insert(0, 1) == order.insert(1, 2) == []
    assert order.insert(2, 0) == [2, 0, 1]
    order.remove([(1, 2)])
    assert order.insert(2, 0) == []
    assert order.edges == 2


def test_an_order_loaded_from_edges_in_any_numbering_is_topological() -> None:
    names = list(range(200))
    random.Random(5).shuffle(names)
    edges = [(names[i], names[j]) for i in range(200) for j in (i + 1, i + 7) if j < 200]
    order = Order()
    order.load(array("I", [up for up, _ in edges]), array("I", [down for _, down in edges]), 200)
    assert all(comes_before(order, up, down) for up, down in edges)
    assert order.insert(names[150], names[3]) != []
    assert order.insert(names[3], names[150]) == []


def _steps(nodes: int, edges: int) -> float:
    """Nodes visited per edge while layered edges come between old nodes in random order."""
    rng = random.Random(7)
    width = 20
    pairs = set()
    while len(pairs) < edges:
        layer = rng.randrange(nodes // width - 1)
        pairs.add((layer * width + rng.randrange(width), (layer + 1) * width + rng.randrange(width)))
    visits = 0
    order = Order()
    order.grow(nodes)
    ahead = order._ahead

    def counted(start: int, high: int, target: int) -> tuple[list[int], list[int]]:
        nonlocal visits
        found, cycle = ahead(start, high, target)
        visits += len(found)
        return found, cycle

    order._ahead = counted  # type: ignore[method-assign]
    shuffled = sorted(pairs)
    rng.shuffle(shuffled)
    for pair in shuffled:
        assert order.insert(*pair) == []
    return visits / edges


def test_an_edge_between_old_nodes_costs_the_same_in_a_large_dag() -> None:
    """Nodes first, edges after in random order: the work per edge must not grow with the DAG."""
    assert _steps(20_000, 1_000) <= _steps(1_000, 1_000) + 1
