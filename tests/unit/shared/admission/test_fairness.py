"""A waiting line that is fair between tenants: nobody waits for more than the others' share."""

from hypothesis import given
from hypothesis import strategies as st

from shared.admission.fairness import FairLine

ROOM = 100

Call = tuple[str, int, int]


def line_of(calls: list[tuple[str, int]]) -> tuple[FairLine[Call], list[Call]]:
    line: FairLine[Call] = FairLine()
    made = [(tenant, size, n) for n, (tenant, size) in enumerate(calls)]
    for call in made:
        line.push(call, call[0], call[1], float(call[2]))
    return line, made


def test_what_fits_is_taken_in_order_of_arrival() -> None:
    line, made = line_of([("a", 60), ("b", 20), ("a", 20)])
    assert line.take(ROOM) == made
    assert (len(line), line.size, line.calls) == (0, 0, [])


def test_one_call_is_taken_however_large() -> None:
    line, made = line_of([("a", 1000)])
    assert line.take(ROOM) == made
    line, made = line_of([("a", 1000), ("a", 1000)])
    assert line.take(ROOM) == made[:1]
    assert line.take(ROOM) == made[1:]


def test_a_hot_tenant_does_not_push_others_out() -> None:
    line, made = line_of([("hot", 10)] * 100 + [("calm", 10)])
    first = line.take(ROOM)
    assert made[-1] in first
    assert sum(size for _, size, _ in first) == ROOM, "what the calm one does not need is the hot one's"


CALLS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 40)), min_size=1, max_size=80)


@given(CALLS)
def test_everybody_is_served_once_and_in_the_tenants_own_order(calls: list[tuple[str, int]]) -> None:
    line, made = line_of(calls)
    served: list[Call] = []
    while len(line):
        part = line.take(ROOM)
        assert part
        assert sum(size for _, size, _ in part) <= ROOM
        served += part
        assert line.size == sum(size for _, size, _ in made) - sum(size for _, size, _ in served)
    assert sorted(served, key=lambda call: call[2]) == made
    for tenant in "abcd":
        assert [call for call in served if call[0] == tenant] == [call for call in made if call[0] == tenant]


@given(sizes=st.lists(st.integers(1, 40), min_size=2, max_size=6), flushes=st.integers(2, 12))
def test_tenants_who_always_wait_get_equal_shares(sizes: list[int], flushes: int) -> None:
    """Whatever the size of their calls; each is off by no more than two of the largest calls."""
    line: FairLine[tuple[int, int]] = FairLine()
    given_to = [0] * len(sizes)
    for tenant, size in enumerate(sizes):
        for _ in range(flushes * ROOM // size + 1):
            line.push((tenant, size), tenant, size, 0.0)
    total = 0
    for _ in range(flushes):
        for tenant, size in line.take(ROOM):
            given_to[tenant] += size
            total += size
    for got in given_to:
        assert got >= total / len(sizes) - 2 * max(sizes)


@given(others=st.integers(1, 6), backlog=st.integers(1, 60), size=st.integers(1, 40))
def test_how_long_a_call_waits_depends_on_the_tenants_not_on_their_backlogs(
    others: int, backlog: int, size: int
) -> None:
    line: FairLine[str] = FairLine()
    for n in range(others):
        for _ in range(backlog):
            line.push(f"hot{n}", f"hot{n}", size, 0.0)
    line.take(ROOM)
    line.push("calm", "calm", min(10, ROOM // (others + 1)), 1.0)
    assert "calm" in [call for _ in range(others + 1) for call in line.take(ROOM)]
