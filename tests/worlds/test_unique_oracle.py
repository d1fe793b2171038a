"""The oracle of unique keys notices two that were there at once, and a key that nobody has and nobody gets."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.worlds.dag_facts import Act, Dag
from tests.worlds.facts import Bulk, History, Sent, Word
from tests.worlds.unique_facts import Followed, Refused, Taken, UniqueFacts, judge

HALF = 0.0005
PLACE = ("red", "one")


class Scene:
    """Two items that followed one another, and two DAGs."""

    def __init__(self) -> None:
        self.facts, self.history = UniqueFacts(), History()
        self.history.ended_s = 99.0
        self.take("A", 1.0)
        self.said("nack", "A", 1.5, "requeued")
        self.said("ack", "A", 2.0, "acked")
        self.take("B", 3.0)
        self.dag("D", 0, 10)
        self.dag("E", 10, 20)

    def take(self, item: str, at: float) -> None:
        sent = Sent(item, "red", "a", {"topic": "a"}, known={"ok"})
        self.facts.items.append(Taken(PLACE, sent, item, at, at + HALF))

    def said(self, verb: str, item: str, at: float, status: str) -> None:
        known: Any = "ok" if status else "info"
        self.history.said(Word(verb, "red", item, "token", known, status, at, at + HALF))

    def refused(self, at: float) -> None:
        self.facts.refused.append(Refused(PLACE, at, at + HALF))

    def dag(self, name: str, begin: int, end: int) -> Dag:
        dag = Dag(name, "red", {}, 1.0, name)
        dag.shown = {"created_at": f"2030-01-01T00:00:{begin:02d}Z", "finished_at": f"2030-01-01T00:00:{end:02d}Z"}
        self.facts.dags.append((PLACE, dag))
        return dag


def found(scene: Scene, *, is_inside: bool = True) -> list[str]:
    return judge(scene.facts, scene.history, is_inside=is_inside)


def test_one_after_another_is_sound() -> None:
    assert found(Scene()) == []


def _while_it_is_there(scene: Scene) -> None:
    scene.take("C", 4.0)


def _while_it_is_given_back(scene: Scene) -> None:
    scene.said("nack", "B", 3.5, "requeued")
    scene.take("C", 4.0)


def _a_dag_beside_another(scene: Scene) -> None:
    scene.dag("F", 15, 30)


@pytest.mark.parametrize("fault", [_while_it_is_there, _while_it_is_given_back, _a_dag_beside_another])
def test_two_at_once_are_told(fault: Callable[[Scene], None]) -> None:
    scene = Scene()
    fault(scene)
    assert len(found(scene)) == 1


def _after_what_may_be_its_end(scene: Scene) -> None:
    scene.said("ack", "B", 3.5, "")
    scene.take("C", 4.0)


def _after_a_purge(scene: Scene) -> None:
    scene.history.bulks.append(Bulk("purge", "red", "a", 3.5))
    scene.take("C", 4.0)


def _at_the_moment_of_the_end(scene: Scene) -> None:
    scene.take("C", 4.0)
    scene.said("ack", "B", 4.0, "acked")


def _beside_one_that_was_retried(scene: Scene) -> None:
    dag = scene.dag("F", 15, 30)
    dag.acts.append(Act("retry", (), "ok", 1.0, 1.0))


@pytest.mark.parametrize(
    "change",
    [_after_what_may_be_its_end, _after_a_purge, _at_the_moment_of_the_end, _beside_one_that_was_retried],
)
def test_what_could_be_is_not_told(change: Callable[[Scene], None]) -> None:
    scene = Scene()
    change(scene)
    assert found(scene) == []


def test_clocks_that_differ_are_not_compared() -> None:
    scene = Scene()
    _a_dag_beside_another(scene)
    assert found(scene, is_inside=False) == []


def test_a_key_that_is_refused_is_in_use() -> None:
    """While an item may have it; once all are over, of which anybody knows, it is free."""
    scene = Scene()
    scene.refused(3.5)
    assert found(scene) == []
    scene.refused(2.5)
    assert len(found(scene)) == 1
    scene.facts.unheard.add(PLACE)
    assert found(scene) == []


def test_what_an_item_alone_explains_is_told_unless_somebody_else_has_ended_it() -> None:
    scene = Scene()
    scene.facts.followed.append(Followed(scene.facts.items[1].sent, 0, 4.0, "its key was given away"))
    scene.facts.items[1].sent.ids.add("B")
    assert found(scene) == ["its key was given away"]
    scene.said("cancel", "B", 4.0, "cancelled")
    assert found(scene) == []
    scene.facts.followed = [Followed(scene.facts.items[1].sent, 1, 4.0, "its key is not free")]
    assert found(scene) == ["its key is not free"]
    scene.history.bulks.append(Bulk("purge", "red", None, 4.0))
    assert found(scene) == []


def _dead(scene: Scene) -> None:
    scene.said("nack", "B", 4.0, "dead")


def _dead_and_perhaps_put_back(scene: Scene) -> None:
    _dead(scene)
    scene.history.bulks.append(Bulk("redrive", "red", None, 4.2))


def _given_back(scene: Scene) -> None:
    scene.said("nack", "B", 4.0, "requeued")


@pytest.mark.parametrize(("end", "is_free"), [(_dead, 1), (_dead_and_perhaps_put_back, 0), (_given_back, 0)])
def test_a_key_is_free_where_its_item_is_dead(end: Callable[[Scene], None], is_free: int) -> None:
    scene = Scene()
    end(scene)
    scene.refused(5.0)
    assert len(found(scene)) == is_free
