"""Arrays are read by the server as if the driver had sent them its own way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from shared.postgres import arrays


@pytest.fixture
async def ours(postgres_dsn: str) -> AsyncIterator[Any]:
    """A connection that sends arrays as the services do."""
    connection = await asyncpg.connect(postgres_dsn)
    arrays.use(connection)
    yield connection
    await connection.close()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("uuid", ["01a2030b-8af2-73ae-9aa1-bcffc87f2000", "ffffffff-ffff-ffff-ffff-ffffffffffff"]),
        ("uuid", []),
        ("uuid", [None, "01a2030b-8af2-73ae-9aa1-bcffc87f2000"]),
        ("int4", [0]),
        ("int4", [-(2**31), 2**31 - 1, None]),
        ("int8", [-(2**63), 2**63 - 1]),
        ("float8", [0.1, -1, 1e300]),
        ("float8", [None]),
    ],
)
async def test_the_server_reads_what_the_driver_would_have_sent(
    postgres_dsn: str, ours: Any, kind: str, values: list[Any]
) -> None:
    plain = await asyncpg.connect(postgres_dsn)
    try:
        text = f"SELECT $1::{kind}[]::text"
        assert await ours.fetchval(text, values) == await plain.fetchval(text, values)
        back = f"SELECT $1::{kind}[]"
        assert await ours.fetchval(back, values) == await plain.fetchval(back, values)
    finally:
        await plain.close()


async def test_a_wrong_element_is_the_callers_fault(ours: Any) -> None:
    for kind, value in (("uuid", "x"), ("int4", 2**31), ("int4", "x"), ("float8", "x")):
        with pytest.raises(asyncpg.DataError):
            await ours.fetchval(f"SELECT $1::{kind}[]", [value, value])
    assert await ours.fetchval("SELECT 1") == 1
