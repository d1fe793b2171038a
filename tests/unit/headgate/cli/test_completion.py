"""What shells complete: the script for bash is run by bash; all name every command that there is."""

import io
import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headgate._cli.completion import SHELLS, commands_of
from headgate._cli.output import fitting, show_table
from headgate._cli.program import build_parser
from tests.unit.headgate.conftest import Run

COMMANDS = list(commands_of(build_parser(), ("headgate",), ""))


@pytest.fixture
def script(run: Run, tmp_path: Path) -> Path:
    file = tmp_path / "headgate.bash"
    code, out, _ = run("completion", "bash")
    assert code == 0
    file.write_text(out)
    return file


def completed(script: Path, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    given = " ".join(f"'{word}'" for word in words)
    asked = f"source {script}; COMP_WORDS=(headgate {given}); COMP_CWORD={len(words)}; _headgate; "
    asked += 'printf "%s\\n" "${COMPREPLY[@]}"'
    said = subprocess.run(
        ["bash", "--norc", "-c", asked], capture_output=True, text=True, check=True, cwd=script.parent
    )
    assert said.stderr == ""
    return said.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["enq"], ["enqueue"]),
        (["dag", "ret"], ["retry"]),
        (["dag", "retry", "ID", "--do"], ["--down"]),
        (["-o", ""], ["table", "json"]),
        (["dag", "list", "--output", "j"], ["json"]),
        (["-n", "dag", "topi"], ["topics"]),
        (["completion", ""], list(SHELLS)),
        (["nonsense", "enq"], ["enqueue"]),
    ],
)
def test_bash_offers(script: Path, words: list[str], offered: list[str]) -> None:
    found = completed(script, *words)
    assert set(offered) <= set(found)
    assert all(word.startswith(words[-1]) for word in found)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_is_in_the_script(run: Run, shell: str) -> None:
    code, out, _ = run("completion", shell)
    assert code == 0 and len(COMMANDS) > 40
    words = set(re.findall(r"[\w-]+", out))
    for command in COMMANDS:
        assert set(command.path) <= words
        flags = {flag for option in command.options for flag in option.flags}
        if shell == "fish":
            flags = {flag.lstrip("-") for flag in flags}
        assert flags <= words, command.path
    if shutil.which(shell) and shell != "zsh":
        checked = subprocess.run([shell, "-n"], input=out, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr


def test_another_shell_is_refused(run: Run) -> None:
    with pytest.raises(SystemExit) as left:
        run("completion", "tcsh")
    assert left.value.code == 2


def test_a_table_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "40")
    rows = [{"key": "k" * 30, "count": 12_345, "error": "e" * 50}]
    shown, piped = Terminal(), io.StringIO()
    for out in (shown, piped):
        show_table(rows, ("key", "count", "error"), out)
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) == 40 and "12345" in lines[1] and lines[1].count("…") == 2
    assert "k" * 30 in piped.getvalue(), "what a program reads is whole"
    assert fitting([9, 9], [4, 4], 5) == [4, 4], "headings stay"


def test_of_a_table_without_room_ids_are_whole_and_the_last_columns_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "60")
    identity = "01a20f21-cbe7-762f-bbbb-9a52ea864001"
    rows = [{"id": identity, "db_latency_ms_p99": 1.5, "name": "n" * 40, "created_at": "2026-11-24 20:01:00Z"}]
    shown = Terminal()
    show_table(rows, ("id", "name", "db_latency_ms_p99", "created_at", "total"), shown)
    *lines, last = shown.getvalue().splitlines()
    assert [line.split() for line in lines[:-1]] == [["DB_LATENCY"], ["ID", "NAME", "MS_P99"]]
    assert lines[-1].split() == [identity, "nnnnnnn…", "1.5"] and max(map(len, lines)) <= 60
    assert last == "(created_at, total: no room here; -o json has them)"
    dead = [{"error": "e" * 30, "newest": datetime(2026, 11, 24, tzinfo=UTC), "sample": identity}]
    for columns, least in (("60", "2026-11-24 00:00:00Z"), ("90", identity)):
        monkeypatch.setenv("COLUMNS", columns)
        shown = Terminal()
        show_table(dead, ("error", "newest", "sample"), shown)
        assert least in shown.getvalue(), "whatever its column is called"
