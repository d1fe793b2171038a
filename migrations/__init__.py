"""Schema migrations of both services, one schema per shard.

`python -m migrations up|status|check|new`. Revisions are SQL text in `queue/versions/` and `dag/versions/`,
numbered by the four digits their file names begin with; see `README.md` here for how to write one.
"""

from shared.postgres.schema import head


def heads() -> dict[str, str]:
    """The newest revision of each service."""
    return {service: head(service) for service in ("queue", "dag")}
