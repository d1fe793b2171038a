"""TCP ports on the loopback interface."""

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Collection
from pathlib import Path

from services.local.errors import LocalError

LOOPBACK = "127.0.0.1"
# Above 32767 the kernel hands ports out to outgoing connections, so a port that was free a moment ago may be gone.
_FREE_PORTS = range(20_000, 32_000)
_TRIES_MAX = 200


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        # Servers set this too: connections in TIME_WAIT do not hold a port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def free_port(host: str = LOOPBACK, *, but: Collection[int] = ()) -> int:
    """A port that is free now, picked at random below the kernel's range for outgoing connections."""
    for _ in range(_TRIES_MAX):
        port = random.choice(_FREE_PORTS)
        if port not in but and is_free(port, host):
            return port
    raise LocalError(f"no free port found between {_FREE_PORTS.start} and {_FREE_PORTS.stop}")


def require_free(port: int, *, what: str, variable: str, host: str = LOOPBACK) -> None:
    """Raise LocalError, naming the variable to change, when the port is taken."""
    if not is_free(port, host):
        raise LocalError(
            f"port {port} for {what} is taken: stop what listens there, or set {variable} to another port"
        )


def claim(port: int, host: str = LOOPBACK) -> int | None:
    """Take a port before a server listens on it, against other launchers that look for one at the same time.

    The answer is a file descriptor to be closed when done; None: the port is taken.
    """
    path = Path(tempfile.gettempdir()) / f"headgate-port-{port}.{os.getuid()}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    if is_free(port, host):
        return descriptor
    os.close(descriptor)
    return None
