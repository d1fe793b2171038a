"""The map's file in the hands of one command at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from shards.door import Refused
from shared.ids import ShardNo
from shared.settings import ShardAddress
from shared.shards.map_file import Plan, read, write


class Held:
    """A map that nobody else changes meanwhile."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path = path
        self.plan = plan

    def address(self, number: ShardNo) -> ShardAddress:
        """The entry of a shard.

        Raises:
            Refused: the map has no such shard.
        """
        for address in self.plan.shards:
            if address.number == number:
                return address
        raise Refused(f"the map has no shard {number}; it has {[a.number for a in self.plan.shards]}")

    def drop(self, number: ShardNo) -> None:
        """Take an entry out that no slot calls home, and write the next version."""
        kept = tuple(address for address in self.plan.shards if address.number != number)
        self.plan = replace(self.plan, version=self.plan.version + 1, shards=kept)
        write(self.path, self.plan)

    def put(self, *addresses: ShardAddress, homes: tuple[ShardNo, ...] | None = None) -> None:
        """Replace or add entries, and write the next version."""
        numbers = {address.number for address in addresses}
        kept = [address for address in self.plan.shards if address.number not in numbers]
        self.plan = replace(
            self.plan,
            version=self.plan.version + 1,
            shards=tuple(sorted((*kept, *addresses), key=lambda address: address.number)),
            homes=self.plan.homes if homes is None else homes,
        )
        write(self.path, self.plan)


@contextmanager
def hold(path: Path, service: str, *, fresh: Plan | None = None) -> Iterator[Held]:
    """Lock a map's file and read it; `fresh` is what a file that is not there yet will hold.

    Raises:
        Refused: another command has it, or it is no map, or it is there although `fresh` was given.
    """
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Refused(f"another command is changing {path}") from error
        if fresh is not None:
            if path.exists():
                raise Refused(f"{path} is there already")
            yield Held(path, fresh)
            return
        try:
            plan = read(path, service)
        except ValueError as error:
            raise Refused(str(error)) from error
        yield Held(path, plan)
    finally:
        os.close(lock)
