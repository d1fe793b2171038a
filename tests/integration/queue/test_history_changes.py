"""A shard's server tells another history in the middle of a call: no number read of the former is used."""

from contextlib import suppress
from typing import Any

import pytest

from shared.errors import ShardUnavailable
from shared.postgres.connections import Pool
from shared.postgres.history import Edition, History, HistoryChanged
from tests.support.queue_host import QueueHost


def changes(history: History) -> None:
    """The server is another from now on; the connections that come are this one's."""
    real = history._known
    with suppress(HistoryChanged):
        history.meet("another server")
    history._known = real


def pool_of(host: QueueHost) -> Pool:
    return next(iter(host.stores.values())).pool


async def test_an_answer_that_came_from_the_former_server_is_not_believed(own_host: QueueHost) -> None:
    pool = pool_of(own_host)
    await pool._retrying(lambda connection: connection.fetch("SELECT 1"))

    async def run(connection: Any) -> Any:
        found = await connection.fetch("SELECT 1")
        changes(pool.history)
        return found

    with pytest.raises(ShardUnavailable) as caught:
        await pool._retrying(run)
    assert caught.value.outcome == "unknown"


async def test_what_began_before_is_not_sent_to_the_new_server(
    own_host: QueueHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for a connection meanwhile."""
    pool = pool_of(own_host)
    await pool._retrying(lambda connection: connection.fetch("SELECT 1"))  # this shard's server is known
    at_hand = pool._take_at_hand
    ran: list[Any] = []

    def late(_edition: Edition) -> None:
        monkeypatch.setattr(pool, "_take_at_hand", at_hand)
        changes(pool.history)

    async def run(connection: Any) -> Any:
        ran.append(connection)

    monkeypatch.setattr(pool, "_take_at_hand", late)
    with pytest.raises(ShardUnavailable) as caught:
        await pool._retrying(run)
    assert (caught.value.outcome, ran) == ("none", [])
