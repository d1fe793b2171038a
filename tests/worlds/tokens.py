"""The file of callers' tokens in a world: what its tenants come with, and what they are refused with."""

import time
from pathlib import Path
from random import Random

from shared.http.access import make_token
from shared.http.tokens import GIVEN_SCOPES, REREAD_S


class Tokens:
    """A token for each tenant, for its own namespace or for all; they are given anew while the world goes on."""

    def __init__(self, path: Path, namespaces: tuple[str, ...], *, is_confined: bool) -> None:
        self.path, self.is_confined = path, is_confined
        self._lines: dict[str, str] = {}
        self._to_come: dict[str, tuple[str, float]] = {}
        self._revoked: list[tuple[str, float]] = []
        self._is_spoilt = False
        self._of = {namespace: self._made(namespace, GIVEN_SCOPES) for namespace in namespaces}
        self._lacking = {
            (namespace, scope): self._made(namespace, {scope})
            for namespace in namespaces
            for scope in ("enqueue", "consume")
        }
        self._write()

    def of(self, namespace: str) -> str:
        """What a tenant comes with."""
        return self._of[namespace]

    def lacking(self, namespace: str, scope: str) -> str:
        """A tenant's token that has one scope alone."""
        return self._lacking[namespace, scope]

    def revoked(self, rng: Random) -> str | None:
        """One that no process takes any more: each has read the file since."""
        known = [token for token, since_s in self._revoked if time.monotonic() - since_s >= REREAD_S]
        return rng.choice(known) if known else None

    def give_anew(self, namespace: str) -> None:
        """Give a tenant another token; once every process knows it, its former one is revoked."""
        if namespace not in self._to_come:
            self._to_come[namespace] = self._made(namespace, GIVEN_SCOPES), time.monotonic()
        elif time.monotonic() - self._to_come[namespace][1] >= REREAD_S:
            former, (self._of[namespace], _) = self._of[namespace], self._to_come.pop(namespace)
            del self._lines[former]
            self._revoked.append((former, time.monotonic()))
        self._write()

    def spoil(self, *, for_good: bool = False) -> None:
        """A line that says nothing comes in, or goes."""
        self._is_spoilt = for_good or not self._is_spoilt
        self._write()

    def _made(self, namespace: str, scopes: frozenset[str] | set[str]) -> str:
        token, line = make_token([namespace if self.is_confined else "*"], sorted(scopes), None)
        self._lines[token] = line
        return token

    def _write(self) -> None:
        made = self.path.with_suffix(".new")
        lines = [*(["no token"] if self._is_spoilt else []), *self._lines.values()]
        made.write_text("".join(f"{line}\n" for line in lines))
        made.replace(self.path)
