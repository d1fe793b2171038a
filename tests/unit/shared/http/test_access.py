"""Tokens: who gets in, where, and what a changed file does."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from shared.errors import Forbidden, NotFound, Unauthorized
from shared.http.access import REREAD_S, Access, main, make_token
from tests.support.clocks import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall=True)


def access(tmp_path: Path, clock: ManualClock, *lines: str) -> Access:
    file = tmp_path / "tokens"
    file.write_text("".join(line + "\n" for line in lines))
    return Access("the-dag-service", file, clock)


def test_without_a_file_everybody_may_do_all_but_dag() -> None:
    caller = Access("secret").caller(None)
    caller.enter("anywhere")
    caller.need("admin")
    with pytest.raises(Forbidden):
        caller.need("dag")
    with pytest.raises(Forbidden):
        caller.enter("_dag")


def test_with_a_file_no_token_is_no_entry(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(Unauthorized):
        access(tmp_path, clock).caller(None)


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic x", "Bearer hg_", "Bearer hg_x_y", "Bearer \udcff"]
)
def test_nonsense_is_unauthorized(tmp_path: Path, clock: ManualClock, header: str) -> None:
    with pytest.raises(Unauthorized):
        access(tmp_path, clock).caller(header)


def test_a_token_opens_its_namespaces_and_scopes_only(tmp_path: Path, clock: ManualClock) -> None:
    token, line = make_token(["shop"], ["enqueue"], None)
    caller = access(tmp_path, clock, line).caller(f"Bearer {token}")
    caller.enter("shop")
    caller.need("enqueue")
    with pytest.raises(NotFound):
        caller.enter("other")
    with pytest.raises(Forbidden):
        caller.need("consume")


def test_the_file_does_not_tell_the_token(tmp_path: Path) -> None:
    token, line = make_token(["*"], ["ops"], None)
    assert token.rpartition("_")[2] not in line


def test_a_token_with_another_secret_is_unknown(tmp_path: Path, clock: ManualClock) -> None:
    token, line = make_token(["*"], ["ops"], None)
    with pytest.raises(Unauthorized):
        access(tmp_path, clock, line).caller(f"Bearer {token}0")


def test_an_expired_token_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    token, line = make_token(["*"], ["ops"], datetime.fromtimestamp(clock.now_s + 10, UTC))
    doors = access(tmp_path, clock, line)
    doors.caller(f"Bearer {token}")
    clock.now_s += 10
    with pytest.raises(Unauthorized):
        doors.caller(f"Bearer {token}")


def test_a_line_taken_out_revokes_its_token(tmp_path: Path, clock: ManualClock) -> None:
    token, line = make_token(["*"], ["ops"], None)
    doors = access(tmp_path, clock, line)
    doors.caller(f"Bearer {token}")
    (tmp_path / "tokens").write_text("")
    clock.now_s += REREAD_S
    with pytest.raises(Unauthorized):
        doors.caller(f"Bearer {token}")


def test_a_broken_file_leaves_the_last_good_one_in_force(tmp_path: Path, clock: ManualClock) -> None:
    token, line = make_token(["*"], ["ops"], None)
    doors = access(tmp_path, clock, line)
    doors.caller(f"Bearer {token}")
    (tmp_path / "tokens").write_text('{"id":')
    clock.now_s += REREAD_S
    doors.caller(f"Bearer {token}")


def test_no_file_can_give_scope_dag(tmp_path: Path, clock: ManualClock) -> None:
    _, line = make_token(["*"], ["dag"], None)
    doors = access(tmp_path, clock, line)
    with pytest.raises(Unauthorized):
        doors.caller("Bearer hg_any_thing")
    assert doors.caller("Bearer the-dag-service").is_dag_service


def test_the_command_appends_a_line_that_works(
    tmp_path: Path, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tokens"
    assert main([str(file), "--namespace", "shop", "--scope", "enqueue", "--scope", "consume"]) == 0
    token = capsys.readouterr().out.strip()
    assert file.stat().st_mode & 0o077 == 0
    caller = Access(None, file, clock).caller(f"Bearer {token}")
    assert caller.scopes == {"enqueue", "consume"}
    assert caller.namespaces == {"shop"}
