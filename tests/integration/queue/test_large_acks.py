"""Acks of many large outputs, which somebody wants to hear of: all that one call may hold is done, in its time."""

from collections import Counter

from tests.support.queue_host import Api

COUNT = 1_000
SIZE = 15_000  # of a body of 16 MiB


async def test_an_ack_of_as_much_as_a_call_may_hold_is_done(own_api: Api) -> None:
    """What all had given was looked through for each: 8 MiB took longer than a statement may, each time anew."""
    await own_api.enqueue(*({"topic": "t", "ack_topic": "done"} for _ in range(COUNT)))
    held = []
    while len(held) < COUNT:
        held += await own_api.dequeue("t", COUNT - len(held), wait_s=5, lease_s=600)
    acks = [
        {"id": item["id"], "lease_token": item["lease_token"], "output": f"{number}".rjust(SIZE, "x")}
        for number, item in enumerate(held)
    ]
    answer = (await own_api.post("ack", {"items": acks})).json()
    assert Counter(result["status"] for result in answer["results"]) == {"acked": COUNT}
    told: dict[str, str] = {}
    while len(told) < COUNT:
        found = await own_api.dequeue("done", COUNT, wait_s=5)
        assert found, "one of the ends is not told"
        told |= {item["payload"]["id"]: item["payload"]["output"] for item in found}
    assert told == {ack["id"]: ack["output"] for ack in acks}
