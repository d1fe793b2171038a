"""An extend moves a lease into a new row. Who waited for the old row finds nothing, and looks again."""

from typing import Any, cast

import pytest

from services.queue.leases import ack_flushes, held_items
from services.queue.leases.ack_flushes import AckEntry, Statuses
from services.queue.leases.extend import Extension
from services.queue.store.leases import LeaseRow
from services.queue.store.shard_store import Store
from shared.postgres.connections import Transaction

ID, TOKEN = "01a20982-77b9-73a5-8c0f-e869b791e000", "3c66f6d8-21ef-4194-9e37-e899c80132a0"


class Moves:
    """A lease that extends move `left` more times, each while somebody waits; then it stands, or is gone."""

    def __init__(self, left: int, *, stands: bool) -> None:
        self.left, self.stands = left, stands
        self.looks = 0

    def look(self) -> bool:
        """Whether who waited for the row finds it still there."""
        self.looks += 1
        self.left -= 1
        return self.left < 0 and self.stands

    async def held_under(self, _asked: Any, pairs: Any) -> list[int]:
        assert pairs == [(TOKEN, ID)]
        return [0] if self.left > 0 or self.stands else []


@pytest.mark.parametrize(("extends", "stands", "looks"), [(0, True, 1), (3, True, 4), (3, False, 3)])
async def test_a_lease_that_moves_is_found(
    monkeypatch: pytest.MonkeyPatch, extends: int, stands: bool, looks: int
) -> None:
    moves = Moves(extends, stands=stands)

    async def lock_groups(_tx: Any, _tokens: Any) -> dict[str, Any]:
        if not moves.look():
            return {}
        return {TOKEN: [LeaseRow(TOKEN, 1, 1, cast(Any, None), cast(Any, None), None, None, None, [ID])]}

    locked: list[str] = []

    async def lock_items(_tx: Any, ids: list[str]) -> dict[str, Any]:
        locked.extend(ids)
        return {}

    monkeypatch.setattr(held_items, "lock_groups", lock_groups)
    monkeypatch.setattr(held_items, "lock_items", lock_items)
    monkeypatch.setattr(held_items, "held_under", moves.held_under)
    await held_items.lock_held(cast(Transaction, None), 1, [Extension(ID, TOKEN, None)])

    assert locked == ([ID] if stands else [])
    assert moves.looks == looks


@pytest.mark.parametrize(("extends", "stands", "status"), [(3, True, "acked"), (3, False, "lease_lost")])
async def test_an_ack_under_a_lease_that_moves_counts(
    monkeypatch: pytest.MonkeyPatch, extends: int, stands: bool, status: str
) -> None:
    moves = Moves(extends, stands=stands)

    async def flush(entries: list[AckEntry]) -> list[Statuses]:
        return [["acked"] if moves.look() else ["lease_lost"] for _ in entries]

    monkeypatch.setattr(ack_flushes, "held_under", moves.held_under)
    entries = [AckEntry([ID], [TOKEN], 1)]
    found = await flush(entries)
    await ack_flushes._look_afresh(cast(Store, _Shard()), flush, entries, found)
    assert found == [[status]]


class _Shard:
    pool = None
