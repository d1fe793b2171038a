"""A launcher that cannot start says why in a sentence; ports that nobody named are found."""

import asyncio
import errno
import os
import socket
import sys
from pathlib import Path

import pytest

from services.local import datadir, ports
from services.local.__main__ import main
from services.local.datadir import DataDir
from services.local.errors import LocalError
from services.local.process import Child, Command
from services.local.settings import PORTS, LocalSettings, from_environment
from services.local.stack import Stack
from services.local.supervisor import Supervisor
from tests.support.ports import free_port

SHARDS = {"queue": 4, "dag": 2}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        '{"queue": 4}',
        '{"queue": "4", "dag": 2}',
        '{"queue": 0, "dag": 2}',
        "[" * 100_000,
        "\xff\x00",
    ],
    ids=range(9),
)
def test_a_corrupt_layout_is_a_sentence_and_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    file = tmp_path / "layout.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(LocalError, match=r"layout.json is damaged: write .*--fresh") as error:
        DataDir(tmp_path).layout({"queue": None, "dag": None}, SHARDS)
    assert "\n" not in str(error.value) and file.read_bytes() == text.encode("latin-1")


def test_a_corrupt_token_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "dag.token").write_bytes(b"\xff\xfe")
    with pytest.raises(LocalError, match=r"dag.token holds no token: delete it"):
        DataDir(tmp_path).dag_token()


@pytest.mark.parametrize("place", ["layout.json", "lock"])
def test_a_full_disk_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    def full(*_args: object, **_named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / place))

    monkeypatch.setenv("HEADGATE_DATA_DIR", str(tmp_path))
    for variable in PORTS.values():
        monkeypatch.setenv(variable, str(free_port()))
    if place == "lock":
        monkeypatch.setattr(datadir.os, "ftruncate", full)
    else:
        monkeypatch.setattr(datadir, "_write_atomically", full)
    assert main([]) == 1
    told = capsys.readouterr().err
    assert told == f"headgate: cannot start: {tmp_path / place}: No space left on device\n"


async def test_a_child_whose_log_cannot_be_opened_is_tried_again_and_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was lost in silence: nobody watched it any more, and the stack went on without it."""
    child = Child(
        Command(name="doomed", argv=(sys.executable, "-c", "")),
        log_path=tmp_path / "log",
        pid_path=tmp_path / "pid",
    )

    async def start() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("services.local.supervisor._pause_s", lambda _deaths: 0.0)
    child.spawn()
    supervisor = Supervisor(lambda _message: None)
    supervisor.watch(child, start)
    with pytest.raises(LocalError, match=r"doomed cannot be started: .*No space left on device"):
        async with asyncio.timeout(60):
            await supervisor.failure
    await supervisor.close()


@pytest.fixture
def usual() -> dict[str, int]:
    """Ports that stand for the defaults, which somebody on this machine may be using."""
    return {field: free_port() for field in PORTS}


def stack_of(tmp_path: Path, usual: dict[str, int], told: list[str], *named: str) -> Stack:
    """A stack that has looked for its ports, of which the user has named some."""
    loose = frozenset(PORTS.keys() - set(named))
    settings = LocalSettings(data_dir=tmp_path, loose_ports=loose, **usual)  # type: ignore[arg-type]
    stack = Stack(settings, report=told.append)
    stack._settle_ports()
    return stack


def test_a_port_is_loose_unless_it_is_named() -> None:
    assert from_environment({}).loose_ports == PORTS.keys()
    assert from_environment({"HEADGATE_QUEUE_PORT": "8080", "HEADGATE_DAG_PORT": ""}).loose_ports == {
        "dag_port",
        "postgres_port",
        "redis_port",
    }


async def test_a_port_that_nobody_named_and_that_is_taken_is_replaced_and_said(
    tmp_path: Path, usual: dict[str, int]
) -> None:
    told: list[str] = []
    with socket.create_server(("127.0.0.1", usual["queue_port"])):
        stack = stack_of(tmp_path, usual, told)
    found = stack.settings
    assert (found.dag_port, found.postgres_port, found.redis_port) == (
        usual["dag_port"],
        usual["postgres_port"],
        usual["redis_port"],
    )
    assert found.queue_port not in usual.values() and ports.is_free(found.queue_port)
    assert stack.queue_url == f"http://127.0.0.1:{found.queue_port}"
    (line,) = told
    assert line == (
        f"port {usual['queue_port']} is taken, so the queue service is on port {found.queue_port}; "
        "HEADGATE_QUEUE_PORT names another"
    )
    await stack.stop()


async def test_two_that_start_at_once_do_not_take_one_anothers_ports(
    tmp_path: Path, usual: dict[str, int]
) -> None:
    """Servers listen seconds after the launcher has looked; the second one looks in between."""
    told: list[str] = []
    first, second = (stack_of(tmp_path / name, usual, told) for name in "ab")
    both = [getattr(stack.settings, field) for stack in (first, second) for field in PORTS]
    assert len(set(both)) == 8 and len(told) == 4
    await first.stop()
    third = stack_of(tmp_path / "c", usual, told)
    assert {field: getattr(third.settings, field) for field in PORTS} == usual, "they are free again"
    await second.stop()
    await third.stop()


def test_a_port_that_was_named_is_never_replaced(tmp_path: Path, usual: dict[str, int]) -> None:
    with (
        socket.create_server(("127.0.0.1", usual["redis_port"])),
        pytest.raises(LocalError, match=f"port {usual['redis_port']} for Valkey is taken.*HEADGATE_REDIS_PORT"),
    ):
        stack_of(tmp_path, usual, [], "redis_port")
