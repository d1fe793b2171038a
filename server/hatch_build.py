"""Puts the packages of the services into the wheel, from beside this directory.

They go into a directory of their own, `headgate_server/packages`, that `headgate_server` puts on the path:
`services` and `shared` are names that other distributions have, too. An editable install leaves them in place.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("audit", "migrations", "services", "shards", "shared")


class Packages(BuildHookInterface[Any]):
    """Adds what stands in the root of the repository."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the directories to be added, unless the build is of an editable install."""
        if version == "editable":
            return
        root = Path(self.root).parent
        build_data["force_include"] |= {str(root / name): f"headgate_server/packages/{name}" for name in PACKAGES}
        build_data["force_include"][str(root / "LICENSE")] = "headgate_server/LICENSE"
