"""Made from `aio/values.py` by `tests/unit/headgate/unasync.py`; change that one."""

import itertools
import random
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from headgate import wire
from headgate._backoff import ceiling_s
from headgate._calls import verbs
from headgate._calls.flows import listed
from headgate._calls.verbs import Call, Verb, present
from headgate._client.blocking.sender import Sender
from headgate.errors import NotFound, VersionConflict

T = TypeVar("T")


class DagValues:
    """Named values of one DAG, which all of its jobs may read and write; they are kept as long as the DAG."""

    def __init__(self, client: Sender, dag_id: str, namespace: str) -> None:
        self._client = client
        self._dag_id = dag_id
        self._namespace = namespace

    def get(self, key: str, default: Any = None) -> Any:
        """A value, or `default` while there is none."""
        found = self.read(key)
        return default if found is None else found.value

    def read(self, key: str) -> wire.DagValue | None:
        """A value with its version, or None while there is none.

        Raises:
            NotFound: there is no such DAG.
        """
        try:
            return self._client._send(self._call(verbs.DAG_VALUE, wire.DagValue.model_validate, key=key))
        except NotFound:
            # No value, or no DAG: the DAG itself tells.
            self._client._send(self._call(verbs.DAG, wire.Dag.model_validate))
            return None

    def put(self, key: str, value: Any, *, version: int | None = None) -> wire.ValueWritten:
        """Write a value; with `version` only where it still has that one (0: where there is none).

        Raises:
            VersionConflict: it was written meanwhile.
            DagFinished: the DAG has ended.
        """
        body = {"value": value, "write_id": str(uuid.uuid4()), **present(version=version)}
        return self._client._send(
            self._call(verbs.DAG_VALUE_PUT, wire.ValueWritten.model_validate, body=body, key=key)
        )

    def update(self, key: str, change: Callable[[Any], Any], *, initial: Any = None) -> Any:
        """Write what `change` makes of the value (of `initial` while there is none); that is returned.

        `change` is called again with what others have written meanwhile, so no update is lost: let it do nothing
        else.
        """
        for tries in itertools.count():
            found = self.read(key)
            changed = change(initial if found is None else found.value)
            try:
                self.put(key, changed, version=0 if found is None else found.version)
            except VersionConflict:
                self._client._transport.pause(random.uniform(0, ceiling_s(0.005, tries, 0.5)))  # noqa: S311
            else:
                return changed
        raise AssertionError("it is tried without end")

    def all(self) -> list[wire.DagValue]:
        """All values, in the order of their keys."""
        parse = verbs.page_of(wire.DagValue)
        return self._client._run(listed(lambda page: self._call(verbs.DAG_VALUES, parse, query=page)))

    def _call(
        self,
        verb: Verb,
        parse: Callable[[Any], T],
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        key: str = "",
    ) -> Call[T]:
        return verbs.call(verb, parse, body=body, query=query, ns=self._namespace, dag=self._dag_id, key=key)
