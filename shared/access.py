"""Who calls, and what that allows. With no tokens configured everybody may do everything but scope `dag`."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from shared.errors import Forbidden, Unauthorized

SCOPES = frozenset({"enqueue", "consume", "dag", "ops", "admin"})


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller's scopes."""

    scopes: frozenset[str]

    @property
    def is_dag_service(self) -> bool:
        """True for the DAG service's own token: it alone may touch managed items and system names."""
        return "dag" in self.scopes

    def need(self, scope: str) -> None:
        """Raises Forbidden unless the caller has `scope`."""
        if scope not in self.scopes:
            raise Forbidden(f"this call needs scope `{scope}`")

    def enter(self, namespace: str) -> None:
        """Raises Forbidden when a system namespace (its name begins with `_`) is closed to the caller."""
        if namespace.startswith("_") and not self.is_dag_service:
            raise Forbidden("names that begin with `_` are the system's; use another namespace")


_ANYBODY = Caller(SCOPES - {"dag"})
_DAG_SERVICE = Caller(SCOPES)


class Access:
    """Turns an Authorization header into a Caller."""

    def __init__(self, dag_token: str | None) -> None:
        self._dag_token = dag_token.encode() if dag_token else None

    def caller(self, authorization: str | None) -> Caller:
        """The caller behind a header; Unauthorized for a token that nobody was given."""
        if authorization is None:
            return _ANYBODY
        scheme, _, token = authorization.partition(" ")
        known = self._dag_token is not None and hmac.compare_digest(
            token.strip().encode("utf-8", "replace"), self._dag_token
        )
        if scheme.lower() != "bearer" or not known:
            raise Unauthorized("the Authorization header is not `Bearer` with a known token")
        return _DAG_SERVICE
