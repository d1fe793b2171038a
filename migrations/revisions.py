"""Alembic, as the runner uses it: one service's revisions, one shard at a time."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from migrations.shard import MigrationFailed, connect, service_of
from shared.settings import ShardAddress

_TREE = Path(__file__).resolve().parent


async def run(address: ShardAddress) -> None:
    """Apply what is missing in the shard, each revision in a transaction of its own.

    Raises MigrationFailed when the database refuses one.
    """
    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: connect(address), poolclass=NullPool
    )
    try:
        async with engine.connect() as connection:
            await connection.run_sync(_upgrade, address)
    except (SQLAlchemyError, CommandError) as error:
        raise MigrationFailed(str(getattr(error, "orig", None) or error)) from error
    finally:
        await engine.dispose()


def write_empty(service: str, message: str, *, number: str) -> None:
    """Write an empty revision file with that number."""
    command.revision(_config(service), message, rev_id=number)


def _upgrade(connection: Connection, address: ShardAddress) -> None:
    alembic = _config(service_of(address))
    alembic.attributes["connection"] = connection
    alembic.attributes["schema"] = address.schema
    command.upgrade(alembic, "head")


def _config(service: str) -> Config:
    """Alembic's configuration for one service's revisions."""
    tree = str(_TREE).replace("%", "%%")
    made = Config()
    made.set_main_option("script_location", tree)
    made.set_main_option("path_separator", "newline")
    made.set_main_option("version_locations", f"{tree}/{service}/versions")
    made.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    return made
