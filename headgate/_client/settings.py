"""Where a client finds the services when it is not told: the environment."""

import os
from typing import Final

from headgate._http.transport import Endpoints

QUEUE_URL: Final = "http://127.0.0.1:8080"
DAG_URL: Final = "http://127.0.0.1:8081"
NAMESPACE: Final = "default"


def endpoints(queue_url: str | None, dag_url: str | None, token: str | None, timeout_s: float) -> Endpoints:
    return Endpoints(
        queue_url=queue_url or os.environ.get("HEADGATE_QUEUE_URL") or QUEUE_URL,
        dag_url=dag_url or os.environ.get("HEADGATE_DAG_URL") or DAG_URL,
        token=token or os.environ.get("HEADGATE_TOKEN") or None,
        timeout_s=timeout_s,
    )


def namespace(name: str | None) -> str:
    return name or os.environ.get("HEADGATE_NAMESPACE") or NAMESPACE
