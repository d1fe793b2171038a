"""What the environment and the command line say about a local stack."""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from services.local.errors import LocalError
from services.local.ports import LOOPBACK
from services.local.postgres import DURABLE

QUEUE_SHARDS = 4
DAG_SHARDS = 2
# The variables that name ports.
PORTS: Final = {
    "queue_port": "HEADGATE_QUEUE_PORT",
    "dag_port": "HEADGATE_DAG_PORT",
    "postgres_port": "HEADGATE_PG_PORT",
    "redis_port": "HEADGATE_REDIS_PORT",
}


@dataclass(frozen=True)
class LocalSettings:
    """Everything a `Stack` can be told.

    `queue_shards` and `dag_shards` are how many shards a new data directory gets; None takes what it has, or the
    default. Several processes of a service share its port. `loose_ports` are the fields of ports that nobody
    named: where one is taken, or with `free_ports`, a free one stands in. The shard maps and `redis_url` name
    servers that run already; where one is empty, ours is started. With `skip_time` timers do not wait where
    nothing else runs.
    """

    data_dir: Path = Path(".headgate/data")
    host: str = LOOPBACK
    queue_port: int = 8080
    dag_port: int = 8081
    postgres_port: int = 25432
    redis_port: int = 26380
    loose_ports: frozenset[str] = frozenset()
    free_ports: bool = False
    queue_shards: int | None = None
    dag_shards: int | None = None
    queue_processes: int = 1
    dag_processes: int = 1
    queue_shard_map: str = ""
    dag_shard_map: str = ""
    redis_url: str = ""
    fresh: bool = False
    with_services: bool = True
    skip_time: bool = False
    postgres_options: Mapping[str, str] = field(default_factory=lambda: DURABLE)
    ready_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        require_loopback(self.host)

    @property
    def needs_postgres(self) -> bool:
        """Whether a service has no server named for it."""
        return not (self.queue_shard_map and self.dag_shard_map)

    def url(self, port: int) -> str:
        """The base URL of a service on that port."""
        return f"http://[{self.host}]:{port}" if ":" in self.host else f"http://{self.host}:{port}"


def from_environment(env: Mapping[str, str] = os.environ) -> LocalSettings:
    """Settings from HEADGATE_*; raises LocalError for a value that cannot be used."""
    defaults = LocalSettings()
    return LocalSettings(
        data_dir=Path(env.get("HEADGATE_DATA_DIR") or defaults.data_dir),
        host=env.get("HEADGATE_HOST") or defaults.host,
        queue_port=_port(env, "HEADGATE_QUEUE_PORT", defaults.queue_port),
        dag_port=_port(env, "HEADGATE_DAG_PORT", defaults.dag_port),
        postgres_port=_port(env, "HEADGATE_PG_PORT", defaults.postgres_port),
        redis_port=_port(env, "HEADGATE_REDIS_PORT", defaults.redis_port),
        loose_ports=frozenset(field for field, variable in PORTS.items() if not env.get(variable)),
        queue_shard_map=env.get("HEADGATE_QUEUE_SHARDS", "").strip(),
        dag_shard_map=env.get("HEADGATE_DAG_SHARDS", "").strip(),
        redis_url=env.get("HEADGATE_REDIS_URL", "").strip(),
    )


def require_loopback(host: str) -> None:
    """Raise LocalError for an address that other machines could reach: nobody has to show a token here."""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise LocalError(f"HEADGATE_HOST={host} is not a loopback address: a local stack serves this machine only")


def _port(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65_535):
        raise LocalError(f"{name}={text} is not a port: 1 to 65535")
    return int(text)
