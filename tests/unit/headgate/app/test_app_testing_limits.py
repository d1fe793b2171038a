"""`app.testing()`: limits of functions and of keys, by its clock."""

import asyncio

import pytest

from headgate import App, Throttled

app = App("testing")


def test_a_rate_is_kept_by_the_clock() -> None:
    other = App("other")
    begun: list[float] = []

    @other.job(rate=2, burst=3)
    def slow() -> None:
        begun.append(clock.now.timestamp())

    with other.testing() as clock:
        start_s = clock.now.timestamp()
        for _ in range(7):
            slow.enqueue()
        clock.run()
    assert [round(at_s - start_s, 3) for at_s in begun] == [0, 0, 0, 0.5, 1, 1.5, 2]


def test_a_concurrency_is_kept_however_many_slots_there_are() -> None:
    other = App("other")
    running, most = 0, 0

    @other.job(slots=8, concurrency=2)
    async def few() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    with other.testing() as clock:
        for _ in range(6):
            few.enqueue()
        clock.run()
    assert most == 2


def test_a_throttled_key_holds_back_its_own_jobs_only() -> None:
    other = App("other")
    begun: list[tuple[float, str]] = []

    @other.job
    def pay(customer: str) -> None:
        begun.append((clock.now.timestamp(), customer))
        if len(begun) == 1:
            raise Throttled(60, key=customer)

    with other.testing() as clock:
        for customer in ("a", "b", "a", "b"):
            pay.options(fairness_key=customer).enqueue(customer)
        clock.run()
    start_s = begun[0][0]
    assert [(at_s - start_s, who) for at_s, who in begun] == [(0, "a"), (0, "b"), (0, "b"), (60, "a"), (60, "a")]


def test_limits_of_keys_are_kept_by_the_clock() -> None:
    other = App("other")
    begun: list[tuple[float, str]] = []

    @other.job(key_rate=1, key_burst=1, key_concurrency=1)
    async def pay(customer: str) -> None:
        begun.append((clock.now.timestamp() - start_s, customer))
        await asyncio.sleep(3 if customer == "slow" else 0)

    with other.testing() as clock:
        start_s = clock.now.timestamp()
        for customer in ("slow", "slow", "b", "b"):
            pay.options(fairness_key=customer).enqueue(customer)
        clock.run()
    assert [(round(at_s, 3), who) for at_s, who in begun] == [(0, "slow"), (0, "b"), (1, "b"), (3, "slow")]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"key_burst": 2}, "belongs to key_rate"),
        ({"key_concurrency": 101}, "up to 100"),
        ({"rate": 0}, "rate of f"),
        ({"burst": 2}, "belongs to rate"),
        ({"concurrency": 0}, "concurrency of f"),
    ],
)
def test_limits_that_make_no_sense_are_refused_where_they_are_written(limits: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        App("other").job(name="f", **limits)(lambda: None)  # type: ignore[call-overload]


def test_functions_of_one_topic_have_one_limit() -> None:
    other = App("other")
    other.job(name="f", topic="bank", rate=1)(lambda: None)
    other.job(name="g", topic="bank")(lambda: None)
    assert other.worker().limits["bank"].rate == 1
    other.job(name="h", topic="bank", rate=2)(lambda: None)
    with pytest.raises(ValueError, match="different limits"):
        other.worker()
