"""What both services read from the environment: the shard map, ports and the limits of the edge."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from shared.ids import SHARDS_MAX, ShardNo

_ENTRY = re.compile(r"^(\d+)=(\S+)$")
_COUNTED = re.compile(r"^(\S+)#(\d+)$")


@dataclass(frozen=True, slots=True)
class ShardAddress:
    """Where one shard lives: its number for ever, its schema, and the server that holds it now.

    A map in a file also knows who the shard is: `epoch` grows with each time it is opened anew (a move), and
    `incarnation` is that opening's own. Epoch 0 is a map that does not know.
    """

    number: ShardNo
    schema: str
    dsn: str
    draining: bool = False
    epoch: int = 0
    incarnation: str = ""

    def is_met_by(self, number: ShardNo, epoch: int, incarnation: str) -> bool:
        """Whether a shard that says this of itself is the one meant, or what became of it later.

        A copy from before the last move has an older epoch; an empty schema that was made by mistake has another
        incarnation.
        """
        if number != self.number:
            return False
        return self.epoch == 0 or epoch > self.epoch or (epoch, incarnation) == (self.epoch, self.incarnation)


def fenced(schema: str) -> str:
    """What the schema of a shard is called while it is moved, and what is left of it where it was."""
    return f"fenced_{schema}"


def parse_shards(text: str, service: str) -> list[ShardAddress]:
    """Read a shard map: `0=postgresql://... 1=postgresql://...`, or `postgresql://...#4` for shards 0 to 3.

    Raises:
        ValueError: an entry is neither form, a number is out of range or named twice.
    """
    found: dict[int, str] = {}
    for entry in re.split(r"[\s,]+", text.strip()):
        if named := _ENTRY.match(entry):
            pairs = [(int(named.group(1)), named.group(2))]
        elif counted := _COUNTED.match(entry):
            pairs = [(number, counted.group(1)) for number in range(int(counted.group(2)))]
        else:
            raise ValueError(f"{entry!r} is neither NUMBER=DSN nor DSN#COUNT")
        for number, dsn in pairs:
            if number in found or not 0 <= number < SHARDS_MAX:
                raise ValueError(f"shard {number} is named twice or not in 0..{SHARDS_MAX - 1}")
            found[number] = dsn
    return [ShardAddress(ShardNo(n), f"{service}_{n:03d}", dsn) for n, dsn in sorted(found.items())]


class EdgeSettings(BaseSettings):
    """Settings that both services share; each service's own class adds its prefix, port and limits."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True)

    host: str = "127.0.0.1"
    shards: str = ""
    shards_file: Path | None = None
    # Pages may drain, move and steer shards of a map in a file, by `python -m shards`.
    shard_commands: bool = False
    # A shard that joins takes nothing new without an id before every process has heard of it.
    shard_join_s: float = 5.0
    redis_url: Annotated[str | None, Field(validation_alias="HEADGATE_REDIS_URL")] = None
    # Of every key and channel there: one per installation, where several share a server.
    redis_prefix: Annotated[
        str, Field(validation_alias="HEADGATE_REDIS_PREFIX", pattern=r"^[A-Za-z0-9._:-]{1,64}$")
    ] = "headgate"
    dag_token: Annotated[str | None, Field(validation_alias="HEADGATE_DAG_TOKEN")] = None
    tokens_file: Annotated[Path | None, Field(validation_alias="HEADGATE_TOKENS_FILE")] = None
    tokens_grace_s: Annotated[float, Field(validation_alias="HEADGATE_TOKENS_GRACE_S", ge=0)] = 10.0
    # Names, but for those of loopback, that a service without tokens answers to.
    host_names: Annotated[str, Field(validation_alias="HEADGATE_HOST_NAMES")] = ""
    log_level: Annotated[str, Field(validation_alias="HEADGATE_LOG_LEVEL")] = "info"

    connections_max: int = 10_000
    # Requests that a client has sent on one connection before it was answered.
    pipelined_max: Annotated[int, Field(ge=0)] = 100
    url_bytes_max: int = 8 * 1024
    head_bytes_max: int = 16 * 1024
    head_fields_max: int = 100
    head_s_max: float = 10.0
    body_s_max: float = 30.0
    write_s_max: float = 30.0

    body_bytes_max: int = 16 * 1024 * 1024
    # Of all requests that a process reads or works on.
    bodies_bytes_max: int = 256 * 1024 * 1024
    json_depth_max: int = 32
    batch_items_max: int = 1_000
    wait_s_max: float = 30.0

    # Several processes of one machine may listen on one port: the kernel spreads connections over them.
    port_shared: bool = False
    # After SIGTERM a process serves for so long while those who call it hear of it.
    drain_s: float = 5.0

    # A process that starts with the name of one that died takes its shards at once; none: a name of its own.
    owner_name: str = ""
    owner_ttl_s: Annotated[float, Field(ge=0.1, le=60)] = 5.0
    # `everyone`: each process takes itself for the owner of every shard, to show that this harms nothing.
    ownership: Literal["exclusive", "everyone"] = "exclusive"

    # What a process remembers for the pages and `GET /v1/history`: a point each so long, for so long, of so many
    # series (four bytes a point); and how many values one answer holds.
    history_point_s: Annotated[float, Field(ge=0.1, le=60)] = 5.0
    history_span_s: Annotated[float, Field(ge=60, le=86_400)] = 3_600.0
    history_series_max: Annotated[int, Field(ge=1)] = 10_000
    history_values_max: Annotated[int, Field(ge=1_000)] = 200_000
    # Where longer ranges are asked for: a Prometheus that scrapes both services.
    prometheus_url: Annotated[
        str | None, Field(validation_alias="HEADGATE_PROMETHEUS_URL", pattern=r"^https?://[^\s?#]+$")
    ] = None

    # Of what operators did.
    audit_retention_s: Annotated[float, Field(ge=0)] = 90 * 24 * 3600.0

    standing_wait_s_max: float = 1.0
    # The line in front of the verbs, for when the processor is short; a call counts as one, and those of its body.
    working_kib_max: Annotated[int, Field(ge=1)] = 96
    start_wait_s_max: Annotated[float, Field(gt=0)] = 5.0
    pool_connections_max: int = 6
    command_timeout_s: float = 10.0
    connect_timeout_s: float = 5.0
    acquire_timeout_s: float = 5.0

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is given, then the environment; no files."""
        return init_settings, env_settings
