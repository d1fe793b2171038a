"""One Postgres and one Valkey for the whole run: started here, or named by the environment."""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from services.local.postgres import VOLATILE, Postgres, PostgresSettings
from services.local.valkey import Valkey, ValkeySettings
from tests.support.ports import free_port

# Nothing here outlasts the run, and databases come and go with tests: who looks after the tables of each every few
# seconds would do little else.
_OPTIONS = {
    **VOLATILE,
    "shared_buffers": "128MB",
    "max_connections": "300",
    "max_wal_size": "256MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "autovacuum_naptime": "60s",
}


@asynccontextmanager
async def postgres() -> AsyncIterator[str]:
    """An address that may create databases: HEADGATE_TEST_POSTGRES_DSN, or a server without fsync."""
    if named := os.environ.get("HEADGATE_TEST_POSTGRES_DSN", ""):
        yield named
        return
    place = Path(tempfile.mkdtemp(prefix="headgate-tests-"))
    made = Postgres(
        PostgresSettings(data_dir=place / "postgres", port=free_port(), run_dir=place, options=_OPTIONS)
    )
    try:
        await made.start()
        yield made.dsn()
    finally:
        await made.stop()
        made.remove()
        shutil.rmtree(place, ignore_errors=True)


@asynccontextmanager
async def valkey() -> AsyncIterator[str]:
    """An address without a database number: HEADGATE_TEST_REDIS_URL, or a server of the run's own."""
    if named := os.environ.get("HEADGATE_TEST_REDIS_URL", "").rstrip("/"):
        yield named
        return
    place = Path(tempfile.mkdtemp(prefix="headgate-tests-"))
    made = Valkey(ValkeySettings(port=free_port(), run_dir=place))
    try:
        await made.start()
        yield made.url.rpartition("/")[0]
    finally:
        await made.stop()
        shutil.rmtree(place, ignore_errors=True)
