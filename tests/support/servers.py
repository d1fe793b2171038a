"""One Postgres and one Valkey for the whole run: started here, or named by the environment."""

import asyncio
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from services.local.postgres import VOLATILE, Postgres, PostgresSettings
from services.local.valkey import Valkey, ValkeySettings
from tests.support.ports import free_port


@dataclass(frozen=True)
class ServerAddresses:
    """`postgres_dsn` may create databases; `redis_url` is without a database number."""

    postgres_dsn: str
    redis_url: str


class Servers:
    """The run's servers. HEADGATE_TEST_POSTGRES_DSN, HEADGATE_TEST_REDIS_URL and PG_BINDIR name others."""

    def __init__(self) -> None:
        self._dir = Path(tempfile.mkdtemp(prefix="headgate-tests-"))
        self._postgres: Postgres | None = None
        self._valkey: Valkey | None = None

    async def __aenter__(self) -> ServerAddresses:
        postgres_dsn = os.environ.get("HEADGATE_TEST_POSTGRES_DSN", "")
        redis_url = os.environ.get("HEADGATE_TEST_REDIS_URL", "").rstrip("/")
        starts = []
        if not postgres_dsn:
            self._postgres = Postgres(
                PostgresSettings(
                    data_dir=self._dir / "postgres",
                    port=free_port(),
                    run_dir=self._dir,
                    options={
                        **VOLATILE,
                        "shared_buffers": "128MB",
                        "max_connections": "300",
                        "max_wal_size": "256MB",
                        "wal_level": "minimal",
                        "max_wal_senders": "0",
                    },
                )
            )
            postgres_dsn = self._postgres.dsn()
            starts.append(self._postgres.start())
        if not redis_url:
            self._valkey = Valkey(ValkeySettings(port=free_port(), run_dir=self._dir))
            redis_url = self._valkey.url.rpartition("/")[0]
            starts.append(self._valkey.start())
        await asyncio.gather(*starts)
        return ServerAddresses(postgres_dsn, redis_url)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._postgres is not None:
            await self._postgres.stop()
            self._postgres.remove()
        if self._valkey is not None:
            await self._valkey.stop()
        shutil.rmtree(self._dir, ignore_errors=True)
