"""How commands end where they cannot write, or were told of a place or a name that there cannot be.

In real processes: what an interpreter does at its end is part of it.
"""

import os
import subprocess
import sys

import pytest

from headgate import Client
from headgate._cli import program as cli
from headgate.errors import Invalid


def ended(shell: str, *, unbuffered: bool = False) -> tuple[int, str]:
    """The code of `headgate` in a shell's line, and what it said on its standard error."""
    where = {
        **os.environ,
        "HEADGATE_QUEUE_URL": "http://127.0.0.1:1",
        "PYTHONUNBUFFERED": "1" if unbuffered else "",
    }
    line = shell.replace("headgate", f"{sys.executable} -m headgate")
    done = subprocess.run(["bash", "-c", line], env=where, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("unbuffered", [False, True])
def test_help_that_cannot_be_written_is_no_success(unbuffered: bool) -> None:
    code, said = ended("headgate --help > /dev/full", unbuffered=unbuffered)
    assert code == 2 and said.count("\n") == 1 and "No space left" in said


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("command", ["--help", "completion bash", "misspelt", "item x"])
def test_a_command_that_can_say_nothing_at_all_ends_with_a_code_of_its_own(command: str, unbuffered: bool) -> None:
    """Else with 120, as an interpreter ends that cannot flush."""
    code, said = ended(f"headgate {command} > /dev/full 2>&1", unbuffered=unbuffered)
    assert code == (5 if command == "item x" else 2) and said == ""


@pytest.mark.parametrize("url", ["http://[::1", "http://a:b", "http://", "https://:80", "ftp://a"])
@pytest.mark.parametrize("service", ["queue", "dag"])
def test_a_url_that_leads_nowhere_is_told_in_a_sentence(
    service: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([f"--{service}-url", url, "topics"]) == 2
    assert f"headgate: {url!r} is no URL of a service" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("item", ""), ("dag", "show", ""), ("dag", "cancel", "")])
def test_an_empty_id_is_told_and_leads_to_no_other_verb(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A path without it is another's, or a redirect."""
    assert cli.main(["--queue-url", "http://127.0.0.1:1", "--dag-url", "http://127.0.0.1:1", *words]) == 2
    assert "it is empty" in capsys.readouterr().err
    client = Client(queue_url="http://127.0.0.1:1", dag_url="http://127.0.0.1:1")
    with client, pytest.raises(Invalid, match="give the item"):
        client.item("")
