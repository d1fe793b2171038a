"""Tokens: who gets in, where, and what a changed file does."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import Gauge

from shared.errors import Forbidden, NotFound, Unauthorized
from shared.http.access import Access, main, make_token
from shared.http.tokens import LOOK_S, REREAD_S, TokensFile
from shared.metrics import TOKENS, TOKENS_FILE_UNREAD_SECONDS, TOKENS_LINES_REFUSED
from tests.support.clocks import ManualClock

GRACE_S = 10.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall=True)


def access(tmp_path: Path, clock: ManualClock, *lines: str) -> Access:
    file = tmp_path / "tokens"
    file.write_text("".join(line + "\n" for line in lines))
    return Access("the-dag-service", TokensFile(file, GRACE_S, clock), clock)


def welcome(doors: Access, *tokens: str) -> list[bool]:
    """Which of these are let in."""
    found = []
    for token in tokens:
        try:
            doors.caller(f"Bearer {token}")
            found.append(True)
        except Unauthorized:
            found.append(False)
    return found


def gauge(made: Gauge) -> float:
    [[sample]] = [metric.samples for metric in made.collect()]
    return float(sample.value)


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


BAD = {
    "half a line": b'{"id":',
    "no JSON": b"hg_abc_def",
    "no text": b"\xff\xfe\x00",
    "no object": b"[1]",
    "no scopes": b'{"id":"x","sha256":"DIGEST","namespaces":["*"]}',
    "an unknown scope": b'{"id":"x","sha256":"DIGEST","namespaces":["*"],"scopes":["dag"]}',
    "scopes as text": b'{"id":"x","sha256":"DIGEST","namespaces":["*"],"scopes":"ops"}',
    "a namespace of dots": b'{"id":"x","sha256":"DIGEST","namespaces":[".."],"scopes":["ops"]}',
    "namespaces as text": b'{"id":"x","sha256":"DIGEST","namespaces":"shop","scopes":["ops"]}',
    "no namespaces": b'{"id":"x","sha256":"DIGEST","namespaces":[],"scopes":["ops"]}',
    "all and one": b'{"id":"x","sha256":"DIGEST","namespaces":["*","shop"],"scopes":["ops"]}',
    "a short digest": b'{"id":"x","sha256":"abcd","namespaces":["*"],"scopes":["ops"]}',
    "an id that no token has": b'{"id":"a_b","sha256":"DIGEST","namespaces":["*"],"scopes":["ops"]}',
    "a misspelt end": b'{"id":"x","sha256":"DIGEST","namespaces":["*"],"scopes":["ops"],'
    b'"expires":"2020-01-01T00:00:00Z"}',
    "an end without a zone": b'{"id":"x","sha256":"DIGEST","namespaces":["*"],"scopes":["ops"],'
    b'"expires_at":"2040-01-01T00:00:00"}',
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_bad_line_is_no_token_and_keeps_no_other_from_coming_or_going(
    tmp_path: Path, clock: ManualClock, bad: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (old, old_line), (kept, kept_line), (new, new_line) = (make_token(["*"], ["ops"], None) for _ in range(3))
    doors = access(tmp_path, clock, old_line, kept_line)
    assert welcome(doors, old, kept, new) == [True, True, False]
    line = bad.replace(b"DIGEST", b"ab" * 32)
    (tmp_path / "tokens").write_bytes(b"\n".join([kept_line.encode(), line, b"", new_line.encode()]))
    clock.now_s += REREAD_S
    assert welcome(doors, old, kept, new) == [False, True, True]
    assert (gauge(TOKENS), gauge(TOKENS_LINES_REFUSED)) == (2, 1)
    told = capsys.readouterr()
    assert "line=2" in told.out + told.err
    assert "ab" * 32 not in told.out + told.err


def test_a_line_that_is_spoilt_takes_its_token_with_it_and_is_named(
    tmp_path: Path, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    token, line = make_token(["*"], ["ops"], None)
    doors = access(tmp_path, clock, line)
    assert welcome(doors, token) == [True]
    (tmp_path / "tokens").write_text(line.replace('"ops"', '"opps"'))
    clock.now_s += REREAD_S
    assert welcome(doors, token) == [False]
    told = capsys.readouterr()
    assert f"token={token.split('_')[1]}" in told.out + told.err


def test_of_two_lines_with_one_id_the_first_is_in_force(tmp_path: Path, clock: ManualClock) -> None:
    token, line = make_token(["*"], ["ops"], None)
    doors = access(tmp_path, clock, line, line.replace('"*"', '"shop"'))
    assert doors.caller(f"Bearer {token}").namespaces is None
    assert gauge(TOKENS_LINES_REFUSED) == 1


def test_a_file_that_is_gone_holds_no_tokens_after_a_grace(tmp_path: Path, clock: ManualClock) -> None:
    token, line = make_token(["*"], ["ops"], None)
    doors = access(tmp_path, clock, line)
    assert welcome(doors, token) == [True]
    (tmp_path / "tokens").unlink()
    clock.now_s += 10 * GRACE_S  # nobody has looked meanwhile: it may be gone for a moment only
    assert welcome(doors, token) == [True]
    clock.now_s += GRACE_S - 0.1
    assert welcome(doors, token) == [True]
    assert (gauge(TOKENS), gauge(TOKENS_FILE_UNREAD_SECONDS)) == (1, pytest.approx(GRACE_S - 0.1))
    clock.now_s += REREAD_S
    assert (gauge(TOKENS), gauge(TOKENS_FILE_UNREAD_SECONDS)) == (0, pytest.approx(GRACE_S - 0.1 + REREAD_S))
    assert welcome(doors, token) == [False]
    (tmp_path / "tokens").write_text(line)
    clock.now_s += REREAD_S
    assert welcome(doors, token) == [True]
    assert (gauge(TOKENS), gauge(TOKENS_FILE_UNREAD_SECONDS)) == (1, 0)


async def test_the_grace_counts_from_when_the_file_went_also_where_nobody_calls(
    tmp_path: Path, clock: ManualClock
) -> None:
    token, line = make_token(["*"], ["ops"], None)
    doors = access(tmp_path, clock, line)
    [loop] = doors.loops()
    (tmp_path / "tokens").unlink()
    for _ in range(11):
        clock.now_s += LOOK_S
        await loop._step()
    assert (gauge(TOKENS), gauge(TOKENS_FILE_UNREAD_SECONDS)) == (0, pytest.approx(GRACE_S))
    assert welcome(doors, token) == [False]
    (tmp_path / "tokens").write_text(line)
    clock.now_s += LOOK_S
    await loop._step()
    assert welcome(doors, token) == [True]


def test_a_pipe_in_the_place_of_the_file_is_not_waited_for(tmp_path: Path, clock: ManualClock) -> None:
    os.mkfifo(tmp_path / "pipe")
    doors = Access(None, TokensFile(tmp_path / "pipe", GRACE_S, clock), clock)
    with pytest.raises(Unauthorized):
        doors.caller(None)
    assert gauge(TOKENS) == 0


def test_a_file_that_was_never_there_lets_nobody_in(tmp_path: Path, clock: ManualClock) -> None:
    doors = Access(None, TokensFile(tmp_path / "none", GRACE_S, clock), clock)
    with pytest.raises(Unauthorized):
        doors.caller(None)
    clock.now_s += 5
    assert gauge(TOKENS_FILE_UNREAD_SECONDS) == 5


def test_a_change_within_one_tick_of_the_file_systems_clock_is_seen(tmp_path: Path, clock: ManualClock) -> None:
    """The same size and time: what counts is the text."""
    token, line = make_token(["*"], ["ops"], None)
    doors = access(tmp_path, clock, line)
    assert welcome(doors, token) == [True]
    file = tmp_path / "tokens"
    before = file.stat()
    file.write_text(line.replace('"ops"', '"abc"') + "\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    clock.now_s += REREAD_S
    assert welcome(doors, token) == [False]


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
    caller = Access(None, TokensFile(file, GRACE_S, clock), clock).caller(f"Bearer {token}")
    assert caller.scopes == {"enqueue", "consume"}
    assert caller.namespaces == {"shop"}


def test_the_command_begins_a_line_of_its_own(
    tmp_path: Path, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    first, line = make_token(["*"], ["ops"], None)
    file = tmp_path / "tokens"
    file.write_text(line)  # an editor may leave out the last line end
    main([str(file), "--namespace", "*", "--scope", "ops"])
    second = capsys.readouterr().out.strip()
    assert welcome(Access(None, TokensFile(file, GRACE_S, clock), clock), first, second) == [True, True]


@pytest.mark.parametrize("given", [["--namespace", "no good"], ["--namespace", "a", "--expires-at", "2040-01-01"]])
def test_the_command_makes_no_line_that_no_service_would_take(
    tmp_path: Path, given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "tokens"), "--scope", "ops", *given])
    assert ended.value.code == 2
    assert not (tmp_path / "tokens").exists()
    assert capsys.readouterr().out == ""
