"""Events that were resolved and that nothing waits for: the answer says so, and the DAG lists them so long."""

from typing import Any

from tests.support.dag_world import DagWorld


async def resolve(world: DagWorld, dag: str, *pairs: tuple[str, str]) -> list[Any]:
    external = [{"node": node, "name": name} for node, name in pairs]
    return list((await world.verb(dag, "resolve", {"external": external}))["results"])


async def test_a_misspelt_event_is_answered_so_with_the_name_that_is_waited_for(world: DagWorld) -> None:
    dag = await world.create([{"key": "publish", "external": ["approval", "quota"]}])
    answers = await resolve(world, dag, ("publish", "aproval"), ("publish", "approval"), ("pulish", "quota"))
    assert [(each["status"], each["declared"], each.get("hint")) for each in answers] == [
        ("resolved", False, "nothing waits for this yet; did you mean `approval`?"),
        ("resolved", True, None),
        ("resolved", False, "nothing waits for this yet"),
    ]
    again = await resolve(world, dag, ("publish", "aproval"), ("publish", "approval"))
    assert [(each["status"], each["declared"]) for each in again] == [
        ("already_resolved", False),
        ("already_resolved", True),
    ]


async def test_a_dag_lists_them_wherever_it_is_told_until_something_waits_for_them(world: DagWorld) -> None:
    dag = await world.create({"a": []}, open=True, name="wide")
    plain = await world.create({"a": []})
    await resolve(world, dag, ("late", "x"), ("a", "typo"))
    listed = [{"node": "a", "name": "typo"}, {"node": "late", "name": "x"}]
    assert (await world.dag(dag))["undeclared"] == listed
    assert (await world.dag(plain))["undeclared"] == []
    page = await world.call("GET", "", expect=200)
    assert {each["id"]: each["undeclared"] for each in page["items"]} == {dag: listed, plain: []}
    assert (await world.call("GET", f"/{dag}/wait?timeout_s=0", expect=200))["undeclared"] == listed
    assert (await world.call("GET", f"/{dag}/frontier", expect=200))["undeclared"] == listed
    await world.add(dag, [{"key": "late", "external": ["x"]}])
    await world.settle()
    assert world.queue.deliverable() == ["a", "a", "late"]
    assert (await world.verb(dag, "close"))["undeclared"] == listed[:1]
    assert (await resolve(world, dag, ("late", "x")))[0]["declared"]


async def test_an_ended_dag_that_was_moved_away_lists_them_too(world: DagWorld) -> None:
    dag = await world.create({"a": []}, open=True)
    await resolve(world, dag, ("a", "typo"))
    await world.settle()
    world.queue.ack("a")
    await world.verb(dag, "close")
    await world.settle()
    connection = await world.looking_at(world.shard)
    await connection.execute(
        "WITH taken AS (DELETE FROM external RETURNING *) INSERT INTO kept_external SELECT * FROM taken"
    )
    assert (await world.dag(dag))["undeclared"] == [{"node": "a", "name": "typo"}]
    await connection.execute(
        "WITH taken AS (DELETE FROM kept_external RETURNING *) INSERT INTO external SELECT * FROM taken"
    )


async def test_of_many_as_many_are_listed_as_one_answer_may_hold(world: DagWorld) -> None:
    made = DagWorld(world.database, world.queue, undeclared_shown_max=2)
    dag = await made.create({"a": []}, open=True)
    await resolve(made, dag, *((f"n{n}", "x") for n in range(5)))
    assert [each["node"] for each in (await made.dag(dag))["undeclared"]] == ["n0", "n1"]
    await made.close()
