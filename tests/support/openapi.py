"""The OpenAPI documents of both services: `python -m tests.support.openapi docs/openapi` writes them."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx

from services.dag.app import create_app as create_dag_app
from services.dag.settings import DagSettings
from services.queue.app import create_app as create_queue_app
from services.queue.settings import QueueSettings

# Nothing connects to it: an app without its lifespan answers /openapi.json from memory.
_NOWHERE = "postgresql://postgres@127.0.0.1:1/none#1"


async def documents() -> dict[str, str]:
    """Each service's document, as the text that is kept in docs/openapi/."""
    apps = {
        "queue": create_queue_app(QueueSettings(shards=_NOWHERE)),
        "dag": create_dag_app(DagSettings(shards=_NOWHERE)),
    }
    return {name: _text(await _document(app)) for name, app in apps.items()}


async def _document(app: Any) -> Any:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return (await client.get("/openapi.json")).raise_for_status().json()


def _text(document: Any) -> str:
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the documents into the directory named by the first argument."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in asyncio.run(documents()).items():
        (directory / f"{name}.json").write_text(text)


if __name__ == "__main__":
    main()
