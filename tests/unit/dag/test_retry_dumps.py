"""How a child is to be retried, as a row says it: what it asks for, at every level, and not much longer."""

from services.dag.model import Retry


def test_a_retry_is_what_was_dumped() -> None:
    wanted = Retry(["x"], None, False, {"x": '{"a": "b"}'})
    for asked in (Retry(), Retry(down_from=["y"]), Retry(everything=True), wanted):
        assert Retry.load(asked.dump()) == asked
        deep = Retry(["top"], below=Retry(["mid"], below=asked))
        assert Retry.load(deep.dump()) == deep


def test_it_does_not_grow_with_the_levels() -> None:
    asked = Retry(["x"], payloads={"x": "\\" * 10_000 + '"' * 10_000})
    once = len(asked.dump())
    for level in range(8):
        asked = Retry([f"n{level}"], below=asked)
    assert len(asked.dump()) < once + 8 * 50
