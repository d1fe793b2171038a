"""A DAG service on a fresh shard and a fake queue."""

from collections.abc import AsyncIterator

import pytest

from tests.support.dag_world import DagWorld, dag_world
from tests.support.databases import Databases


@pytest.fixture
async def world(databases: Databases) -> AsyncIterator[DagWorld]:
    """Each test its own; every one ends with an audit of counters against facts."""
    async with dag_world(databases) as made:
        yield made
        await made.audit()
