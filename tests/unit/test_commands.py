"""The operators' commands teach when they are called bare, and say why they cannot go on."""

import asyncio
import importlib

import pytest

from shards import door


@pytest.mark.parametrize("module", ["shards", "migrations"])
def test_a_bare_command_shows_what_it_takes(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    main = importlib.import_module(f"{module}.__main__").main
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and f"usage: python -m {module}" in captured.err and "commands:" in captured.err


async def test_a_server_that_stands_still_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are taken for it, and nobody says a word."""
    monkeypatch.setattr(door, "CONNECT_TIMEOUT_S", 0.05)
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        with pytest.raises(door.Refused, match=f"127.0.0.1:{port}/x cannot be reached: it does not answer"):
            await door.connect(f"postgresql://nobody@127.0.0.1:{port}/x")
