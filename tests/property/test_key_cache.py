"""Whatever owners, peeks and hints do, every key that a shard keeps comes out, and each shard's in order."""

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from services.queue.keys.key_cache import Heads
from services.queue.model import Key
from tests.support.owners import HandClock

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SHARDS = (0, 1, 2)
LIMIT = 3
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(SHARDS), st.integers(-1, 1), st.integers(0, 4), st.booleans()),
        st.tuples(st.just("own"), st.sets(st.sampled_from(SHARDS))),
        st.tuples(st.just("look"), st.integers(1, 4)),
        st.tuples(st.just("take"), st.integers(1, 5)),
        st.tuples(st.just("hold"), st.integers(1, 5)),
        st.tuples(st.just("put back")),
        st.tuples(st.just("elsewhere"), st.sampled_from(SHARDS)),
        st.tuples(st.just("wait"), st.floats(0, 3)),
        st.tuples(st.just("gone"), st.sampled_from(SHARDS)),
    ),
    max_size=30,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_every_key_comes_out(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    clock, owned = HandClock(), {0}
    shards: dict[int, list[Key]] = {n: [] for n in SHARDS}
    heads = Heads(list(SHARDS), lambda n: n in owned, clock, keys_max=1000, late_s=1.0)
    out: list[Key] = []
    held: list[Key] = []  # by calls that are to say whether they were claimed
    made = 0

    def look(count: int) -> None:
        for shard, after in heads.behind(count):
            heads.peeking(shard, after)
            page = sorted(key for key in shards[shard] if key > after)[:LIMIT]
            heads.peeked(shard, page, limit=LIMIT)

    def take(count: int) -> list[Key]:
        keys = heads.take(count)
        assert len(keys) <= count and len(set(keys)) == len(keys)
        for number in SHARDS:
            of_one = [key for key in keys if int(key.id[-3:], 16) == number]
            assert of_one == sorted(of_one)
        heads.settled(keys)
        for key in keys:
            if key in shards[int(key.id[-3:], 16)]:
                shards[int(key.id[-3:], 16)].remove(key)
                out.append(key)
        return keys

    def put_back() -> None:
        for number in SHARDS:
            heads.put_back(number, [key for key in held if int(key.id[-3:], 16) == number])
        held.clear()

    for name, *values in steps:
        match name, values:
            case "add", [shard, priority, minute, told]:
                made += 1
                key_id = f"00000000-0000-7000-8000-{made:09x}{shard:03x}"
                key = Key(priority, BEGIN + timedelta(minutes=minute), key_id)
                shards[shard].append(key)
                if told:
                    heads.push(shard, [key])
            case "own", [now_owned]:
                owned = now_owned
            case "look", [count]:
                heads.rewind()
                look(count)
            case "take", [count]:
                look(count)
                take(count)
            case "hold", [count]:
                look(count)
                held += heads.take(count)
            case "put back", []:
                put_back()
            case "elsewhere", [shard]:
                # Another process holds what is there, and puts it back after this one has looked.
                kept, shards[shard] = shards[shard], []
                heads.rewind()
                look(1)
                shards[shard] = kept
            case "wait", [seconds]:
                clock.now_s += seconds
            case "gone", [shard]:
                del shards[shard][:1]
    put_back()
    expected = len(out) + sum(map(len, shards.values()))
    heads.rewind()
    for _ in range(200):
        look(3)
        if not take(3) and not heads.behind(3):
            break
    assert len(out) == len(set(out)) == expected
