"""The schema of a migrated shard of each service: `python -m tests.support.schema` writes both `schema.sql`."""

import asyncio
import re
from pathlib import Path

from services.local.postgres import find_bindir
from services.local.stack import ROOT
from tests.support.databases import Database, Databases
from tests.support.servers import postgres

_HEAD = """\
-- A shard of the {service} service, as `make schema` finds it after all migrations.
-- Read this to know the tables. Functions stand in functions/; comments, and reasons, in tables/ and functions/.

"""
# What pg_dump writes beside the schema itself: comments, settings of the session, its own restrictions.
_NOISE = re.compile(r"^(--.*|\\.*|SET .*;|SELECT pg_catalog\.set_config.*|CREATE SCHEMA .*)\n", re.MULTILINE)
_FUNCTION = re.compile(r"^CREATE FUNCTION .*?\n\s+AS (\$\w*\$).*?\1;\n", re.MULTILINE | re.DOTALL)


def path(service: str) -> Path:
    """Where a service's schema is kept."""
    return ROOT / "migrations" / service / "schema.sql"


async def schema(database: Database, service: str) -> str:
    """The first shard of the service in the database, as text without its name, its functions and its owner."""
    shard = next(address for address in database.addresses if address.schema.startswith(service))
    process = await asyncio.create_subprocess_exec(
        str(find_bindir() / "pg_dump"),
        *("--schema-only", "--no-owner", "--schema", shard.schema, database.dsn),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    text = _FUNCTION.sub("", _NOISE.sub("", output.decode())).replace(f"{shard.schema}.", "")
    return _HEAD.format(service=service) + re.sub(r"\n{2,}", "\n\n", text).strip() + "\n"


async def main() -> None:
    """Write both."""
    async with postgres() as dsn:
        databases = Databases(dsn)
        database = await databases.create(1, 1)
        for service in ("queue", "dag"):
            path(service).write_text(await schema(database, service))
        await databases.drop(database)


if __name__ == "__main__":
    asyncio.run(main())
