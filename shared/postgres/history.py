"""Which history the server behind a shard's address tells.

A standby that took over without its primary's last transactions, or a server that was set back to a backup, tells
another history than the one that calls were answered from: the numbers which the lost transactions gave to names
are given again, to other names. So what a process remembers of a shard holds for one history. Each new connection
asks the server for it. Where it is another, all connections to the former server are cut, every listener drops
what it remembers, and what had begun before is refused with nothing done; it may be sent again.

The mark of a history is the server's process: its cluster, and when it was started. None begins without a new
process but by the promotion of a standby, which loses nothing that its sessions were shown. A mere restart counts
as well, since a cluster that was restored from a copy of its files looks the same; it costs the calls of that
moment and a few look-ups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shared.errors import Outcome, ShardUnavailable
from shared.ids import ShardNo
from shared.log import log
from shared.settings import ShardAddress

# What a shard says of itself, and which server it is on.
_IDENTITY = """
SELECT number, epoch, incarnation::text, state,
    (SELECT system_identifier FROM pg_control_system()) || ' since ' || pg_postmaster_start_time() AS history
FROM shard
"""


class Stranger(ConnectionError):
    """What answers at the shard's address is not the shard that the map means."""


class HistoryChanged(ConnectionError):
    """The shard's server tells another history than the one that is remembered."""


class Edition:
    """What is remembered of a shard was read in one edition; by its identity alone it differs from the next."""

    __slots__ = ()


class History:
    """Of one shard, for all its pools. `listeners` are told when another begins, before anything is read of it."""

    def __init__(self, number: ShardNo) -> None:
        self._number = number
        self._known: str | None = None
        self.edition = Edition()
        self.listeners: list[Callable[[], None]] = []

    def meet(self, found: str) -> None:
        """A new connection tells its server's history.

        Raises:
            HistoryChanged: it is another one than before; this connection must not be used for what has begun.
        """
        if found == self._known:
            return
        before, self._known = self._known, found
        if before is None:
            return
        self.edition = Edition()
        log.warning("a shard's server has another history", shard=self._number, before=before, now=found)
        for listener in self.listeners:
            listener()
        raise HistoryChanged(f"the server of shard {self._number} was replaced or restarted; send the call again")

    def check(self, edition: Edition, *, outcome: Outcome = "none") -> None:
        """To be asked before numbers are used that were read in `edition`.

        Raises:
            ShardUnavailable: they may be others' by now.
        """
        if self.edition is not edition:
            detail = f"the server of shard {self._number} was replaced or restarted; send the call again"
            raise ShardUnavailable(detail, outcome=outcome, retry_after_s=1.0)


async def meet(connection: Any, meant: ShardAddress, history: History) -> None:
    """Look who answers: a copy of the shard, or the shard of another number, must not be written to.

    Raises:
        Stranger: it is not the shard that is meant.
        HistoryChanged: it has lost what is remembered of it, or may have.
    """
    found = await connection.fetchrow(_IDENTITY)
    if found is None or found["state"] != "open":
        raise Stranger(f"{meant.schema} is not open on this server")
    if not meant.is_met_by(found["number"], found["epoch"], found["incarnation"]):
        raise Stranger(
            f"{meant.schema} on this server is not the one of the shard map: it has epoch {found['epoch']} "
            f"and incarnation {found['incarnation']}, the map {meant.epoch} and {meant.incarnation}"
        )
    history.meet(found["history"])
