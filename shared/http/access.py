"""Who calls, and what that allows.

With no tokens file everybody may do everything but scope `dag`: the embedded default, on loopback only. With
one (`shared.http.tokens`), every call needs `Authorization: Bearer hg_<id>_<secret>`. Tokens are made by
`python -m shared.http.access`.

The DAG service's own token (`HEADGATE_DAG_TOKEN`) is no part of the file; it alone has scope `dag`.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import secrets
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from shared.clock import Clock, SystemClock
from shared.errors import Forbidden, NotFound, Unauthorized
from shared.http.tokens import GIVEN_SCOPES, LOOK_S, TokensFile, read_line
from shared.loop import Loop
from shared.settings import EdgeSettings

SCOPES = GIVEN_SCOPES | {"dag"}


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller's scopes, and the namespaces it may enter (None: all)."""

    scopes: frozenset[str]
    namespaces: frozenset[str] | None = None
    token_id: str | None = None

    @property
    def is_dag_service(self) -> bool:
        """True for the DAG service's own token: it alone may touch managed items and system names."""
        return "dag" in self.scopes

    def need(self, *scopes: str) -> None:
        """Raises Forbidden unless the caller has one of `scopes`."""
        if self.scopes.isdisjoint(scopes):
            raise Forbidden(f"this call needs scope `{'` or `'.join(scopes)}`")

    def may_enter(self, namespace: str) -> bool:
        """Whether the caller's namespaces hold this one."""
        return self.namespaces is None or namespace in self.namespaces

    def enter(self, namespace: str) -> None:
        """Raises NotFound for another tenant's namespace, Forbidden for a system one (it begins with `_`)."""
        if self.namespaces is not None and namespace not in self.namespaces:
            raise NotFound("there is no such namespace, or it is another tenant's")
        if namespace.startswith("_") and not self.is_dag_service:
            raise Forbidden("names that begin with `_` are the system's; use another namespace")


_ANYBODY = Caller(GIVEN_SCOPES)
_DAG_SERVICE = Caller(SCOPES)


class Access:
    """Turns an Authorization header into a Caller."""

    def __init__(
        self, dag_token: str | None, tokens: TokensFile | None = None, clock: Clock | None = None
    ) -> None:
        self._dag_token = dag_token.encode() if dag_token else None
        self._tokens = tokens
        self._clock = clock or SystemClock()

    def loops(self) -> list[Loop]:
        """What the process does to know its tokens."""
        return [] if self._tokens is None else [Loop("tokens", self._tokens.step, interval_s=LOOK_S)]

    def caller(self, authorization: str | None) -> Caller:
        """The caller behind a header.

        Raises:
            Unauthorized: no token where one is needed, or one that is unknown, revoked or expired.
        """
        if authorization is None:
            if self._tokens is None:
                return _ANYBODY
            raise Unauthorized("send a token: `Authorization: Bearer hg_...`")
        scheme, _, text = authorization.partition(" ")
        token = text.strip()
        if scheme.lower() != "bearer" or not token:
            raise Unauthorized("the Authorization header must be `Bearer` and a token")
        if self._dag_token is not None and hmac.compare_digest(token.encode("utf-8", "replace"), self._dag_token):
            return _DAG_SERVICE
        return self._known(token)

    def _known(self, token: str) -> Caller:
        token_id, _, secret = token.removeprefix("hg_").partition("_")
        known = None if self._tokens is None else self._tokens.find(token_id)
        digest = hashlib.sha256(secret.encode("utf-8", "replace")).digest()
        if known is None or not hmac.compare_digest(digest, known.digest):
            raise Unauthorized("the token is not known here; it may have been revoked")
        if known.expires_s is not None and known.expires_s <= self._clock.wall_s():
            raise Unauthorized("the token has expired")
        return Caller(known.scopes, known.namespaces, token_id)


def access_of(settings: EdgeSettings) -> Access:
    """Who may do what at a service with these settings."""
    file, clock = settings.tokens_file, SystemClock()
    tokens = None if file is None else TokensFile(file, settings.tokens_grace_s, clock)
    return Access(settings.dag_token, tokens, clock)


def make_token(namespaces: list[str], scopes: list[str], expires_at: datetime | None) -> tuple[str, str]:
    """A new token, and the line that makes the services know it (which does not tell the token)."""
    token_id, secret = secrets.token_hex(6), secrets.token_hex(24)
    entry = {
        "id": token_id,
        "sha256": hashlib.sha256(secret.encode()).hexdigest(),
        "namespaces": namespaces,
        "scopes": scopes,
    }
    if expires_at is not None:
        entry["expires_at"] = expires_at.astimezone(UTC).isoformat()
    return f"hg_{token_id}_{secret}", json.dumps(entry)


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text} has no zone: write {text}Z, or {text}+02:00")
    return found


def main(arguments: list[str] | None = None) -> int:
    """`python -m shared.http.access`: append a token's line to a file and print the token, once."""
    parser = argparse.ArgumentParser(
        prog="python -m shared.http.access",
        description="Make a token. Its line goes to the file that HEADGATE_TOKENS_FILE names for the services; "
        "the token itself is printed once and kept nowhere. Take the line out to revoke it.",
    )
    parser.add_argument("file", type=Path, help="the tokens file, made if it is not there")
    parser.add_argument("--namespace", action="append", required=True, help="may be given again; `*` is all")
    parser.add_argument("--scope", action="append", required=True, choices=sorted(GIVEN_SCOPES))
    parser.add_argument("--expires-at", type=_moment, help="RFC 3339, with a zone")
    given = parser.parse_args(arguments)
    token, line = make_token(given.namespace, given.scope, given.expires_at)
    try:
        read_line(line.encode())
    except ValueError as error:
        parser.error(str(error))
    given.file.touch(mode=0o600, exist_ok=True)
    with given.file.open("rb+") as file:
        text = file.read()
        file.write((b"" if text.endswith(b"\n") or not text else b"\n") + line.encode() + b"\n")
    sys.stdout.write(token + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
