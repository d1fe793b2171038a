"""The file of callers' tokens: a line of JSON for each, with its id, the SHA-256 of its secret, its scopes and
namespaces, and perhaps when it expires.

The file is read again every second, so a token is revoked by taking its line out. Lines stand for themselves:
one that cannot be read is no token, is named in the log and counted, and keeps no other from coming or going. A
file that is gone holds no tokens; but whoever replaces one may leave a moment without, so what was read last stays
in force for a grace, from the first look that finds it gone. The looks are a duty of the process, as that counts
where nobody calls, too; a call looks by itself only where the duty is late.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from stat import S_ISREG
from typing import Final

import msgspec

from shared.clock import Clock
from shared.log import log
from shared.metrics import TOKENS, TOKENS_FILE_UNREAD_SECONDS, TOKENS_LINES_REFUSED

GIVEN_SCOPES: Final = frozenset({"enqueue", "consume", "ops", "admin"})
LOOK_S: Final = 1.0
# A call finds what was read no longer ago than this.
REREAD_S: Final = 2.0

_LINES_NAMED_MAX: Final = 20
_NAMESPACE = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,64}").fullmatch
_ID = re.compile(r"[A-Za-z0-9-]{1,64}").fullmatch
_DIGEST = re.compile(r"[0-9a-f]{64}").fullmatch


@dataclass(frozen=True, slots=True)
class Token:
    """What one line says. Namespaces: None for all of them."""

    digest: bytes
    scopes: frozenset[str]
    namespaces: frozenset[str] | None
    expires_s: float | None


class _TokenLine(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    sha256: str
    namespaces: list[str]
    scopes: list[str]
    expires_at: datetime | None = None


class _Named(msgspec.Struct):
    id: str


class TokensFile:
    """The tokens in force."""

    def __init__(self, path: Path, grace_s: float, clock: Clock) -> None:
        self._path = path
        self._grace_s = grace_s
        self._clock = clock
        self._tokens: dict[str, Token] = {}
        self._text: bytes | None = None
        self._looked_s = float("-inf")
        self._missing_since_s: float | None = None
        self._look()
        TOKENS.set_function(self._count)
        TOKENS_FILE_UNREAD_SECONDS.set_function(self.unread_s)

    async def step(self) -> int:
        """Look now; see `shared.loop`."""
        self._looked_s = float("-inf")
        self._look()
        return 0

    def find(self, token_id: str) -> Token | None:
        """The token with this id, if it is in force."""
        self._look()
        return self._tokens.get(token_id)

    def unread_s(self) -> float:
        """For how long the file could not be read; 0: it was, when it was looked at last."""
        self._look()
        return 0.0 if self._missing_since_s is None else self._clock.monotonic_s() - self._missing_since_s

    def _count(self) -> float:
        self._look()
        return float(len(self._tokens))

    def _look(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s < REREAD_S:
            return
        self._looked_s = now_s
        try:
            if not S_ISREG(self._path.stat().st_mode):
                raise OSError("it is no regular file")  # a pipe would keep everybody waiting
            text = self._path.read_bytes()
        except OSError as error:
            self._miss(now_s, error)
            return
        self._missing_since_s = None
        if text != self._text:
            self._text = text
            self._take(text)

    def _miss(self, now_s: float, error: OSError) -> None:
        is_new = self._missing_since_s is None
        since_s = self._missing_since_s = now_s if self._missing_since_s is None else self._missing_since_s
        ends = self._text is not None and now_s - since_s >= self._grace_s
        if ends:
            self._tokens, self._text = {}, None
            TOKENS_LINES_REFUSED.set(0)
        if ends or is_new:
            what = (
                "no token is in force" if self._text is None else f"its tokens are, for {self._grace_s:g} s more"
            )
            log.error(f"the tokens file cannot be read; {what}", file=str(self._path), error=str(error))

    def _take(self, text: bytes) -> None:
        tokens: dict[str, Token] = {}
        refused = 0
        for number, line in enumerate(text.split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                token_id, token = read_line(line)
                if token_id in tokens:
                    raise ValueError("another line has this id")
                tokens[token_id] = token
            except ValueError as error:
                refused += 1
                if refused <= _LINES_NAMED_MAX:
                    self._tell(number, line, error)
        self._tokens = tokens
        TOKENS_LINES_REFUSED.set(refused)
        log.info("tokens were read", file=str(self._path), in_force=len(tokens), lines_refused=refused)

    def _tell(self, number: int, line: bytes, error: ValueError) -> None:
        try:
            name = msgspec.json.decode(line, type=_Named).id
        except ValueError:
            name = "unknown"
        log.error(
            "a line of the tokens file is no token, and none is in force by it",
            file=str(self._path),
            line=number,
            token=name[:64],
            error=str(error),
        )


def read_line(line: bytes) -> tuple[str, Token]:
    """A token's id, and the token.

    Raises:
        ValueError: the line is none; the message does not repeat it.
    """
    found = msgspec.json.decode(line, type=_TokenLine)
    if not _ID(found.id):
        raise ValueError("the id must be letters, digits and hyphens, 64 at most")
    if not _DIGEST(found.sha256):
        raise ValueError("sha256 must be 64 hexadecimal digits in lower case")
    if not GIVEN_SCOPES.issuperset(found.scopes):
        raise ValueError(f"scopes are {', '.join(sorted(GIVEN_SCOPES))}")
    everywhere = found.namespaces == ["*"]
    if not everywhere and (not found.namespaces or not all(map(_NAMESPACE, found.namespaces))):
        raise ValueError('namespaces must be ["*"], or match [A-Za-z0-9._-]{1,64}')
    if found.expires_at is not None and found.expires_at.tzinfo is None:
        raise ValueError("expires_at needs a zone")
    return found.id, Token(
        bytes.fromhex(found.sha256),
        frozenset(found.scopes),
        None if everywhere else frozenset(found.namespaces),
        None if found.expires_at is None else found.expires_at.timestamp(),
    )
