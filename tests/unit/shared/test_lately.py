"""What is remembered has a bound, and what was asked for lately outlives what was not."""

import random

from shared.lately import Lately


def test_one_more_than_the_bound_lets_an_old_one_go() -> None:
    memory: Lately[int, str] = Lately(6)
    for number in range(6):
        memory[number] = str(number)
    assert len(memory) == 6
    memory[6] = "6"
    assert len(memory) <= 6
    assert memory.get(0) is None
    assert memory.get(6) == "6"


def test_what_is_asked_for_again_stays() -> None:
    memory: Lately[int, str] = Lately(6)
    memory[0] = "kept"
    for number in range(1, 100):
        memory[number] = str(number)
        assert memory.get(0) == "kept"
        assert len(memory) <= 6
    assert memory.get(1) is None


def test_a_new_value_replaces_the_one_of_the_older_half() -> None:
    memory: Lately[int, str] = Lately(4)
    memory[0] = "old"
    memory[1] = memory[2] = "other"
    memory[0] = "new"
    assert memory.get(0) == "new"
    assert memory.pop(0) == "new"
    assert memory.get(0) is None


def test_at_random_it_says_what_was_put_in_or_nothing() -> None:
    chance = random.Random(1)
    for entries_max in (1, 2, 3, 10):
        memory: Lately[int, int] = Lately(entries_max)
        last: dict[int, int] = {}
        for step in range(2_000):
            key = chance.randrange(20)
            match chance.randrange(4):
                case 0 | 1:
                    memory[key] = last[key] = step
                    assert memory.get(key) == step
                case 2:
                    assert memory.get(key) in (None, last.get(key))
                case 3:
                    assert memory.pop(key) in (None, last.pop(key, None))
                    assert memory.get(key) is None
            assert len(memory) <= max(entries_max, 2)
