"""The operators' commands teach when they are called bare."""

import importlib

import pytest


@pytest.mark.parametrize("module", ["shards", "migrations"])
def test_a_bare_command_shows_what_it_takes(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    main = importlib.import_module(f"{module}.__main__").main
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and f"usage: python -m {module}" in captured.err and "commands:" in captured.err
