"""As whom Postgres runs where this process is root: which account, and what that can reach."""

import os
import pwd
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.local import account
from services.local.account import Account
from services.local.errors import LocalError

NOBODY = Account(uid=pwd.getpwnam("nobody").pw_uid, user="nobody")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of /var/tmp."""
    place = tmp_path / "shared"
    place.mkdir()
    monkeypatch.setattr(account, "_SHARED_DIR", place)
    return place


@pytest.fixture
def installation(tmp_path: Path) -> Path:
    """Where Postgres' programs are, with what they load beside them: nobody but the owner may go there."""
    bindir = tmp_path / "site" / "pg" / "pginstall" / "bin"
    bindir.mkdir(parents=True)
    (bindir / "postgres").write_text("the server")
    (bindir / "postgres").chmod(0o700)
    libs = tmp_path / "site" / "pg.libs"
    libs.mkdir()
    (libs / "libssl.so").write_text("a library")
    (tmp_path / "site").chmod(0o700)
    return bindir


@pytest.mark.parametrize(
    ("uid", "namespaces", "found"),
    [
        (1000, True, Account(uid=1000)),
        (0, True, Account(uid=0, prefix=("unshare", "--user", "--"))),
        (0, False, NOBODY),
    ],
)
def test_root_is_somebody_else_and_others_are_themselves(
    uid: int, namespaces: bool, found: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(account, "user_namespaces_work", lambda: namespaces)
    assert account.server_account() == found


@pytest.mark.parametrize(("there", "code", "works"), [(False, 0, False), (True, 1, False), (True, 0, True)])
def test_user_namespaces_are_tried_before_they_are_relied_on(
    there: bool, code: int, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried(argv: list[str], **_: Any) -> Any:
        assert there and argv == ["unshare", "--user", "--", "true"]
        return SimpleNamespace(returncode=code)

    monkeypatch.setattr(account.shutil, "which", lambda name: f"/bin/{name}" if there else None)
    monkeypatch.setattr(subprocess, "run", tried)
    assert account.user_namespaces_work() is works


@as_root
def test_programs_that_an_account_cannot_reach_are_copied_once_with_their_libraries(
    installation: Path, shared: Path
) -> None:
    bindir = account.readable_bindir(installation, NOBODY)
    assert bindir.is_relative_to(shared) and (bindir / "postgres").read_text() == "the server"
    library = bindir.parents[2] / "pg.libs" / "libssl.so"
    assert library.read_text() == "a library"
    for path in (bindir, bindir / "postgres", library.parent, library):
        assert path.stat().st_mode & (0o005 if path.is_dir() else 0o004), path
    (installation / "postgres").write_text("a later one")
    assert account.readable_bindir(installation, NOBODY) == bindir
    assert (bindir / "postgres").read_text() == "the server"


@as_root
def test_a_copy_that_was_cut_off_is_made_whole(installation: Path, shared: Path) -> None:
    bindir = account.readable_bindir(installation, NOBODY)
    (bindir / "postgres").unlink()
    (bindir.parents[2] / "complete").unlink()
    assert account.readable_bindir(installation, NOBODY) == bindir
    assert (bindir / "postgres").read_text() == "the server"


def test_programs_that_an_account_can_reach_stay_where_they_are(installation: Path, shared: Path) -> None:
    assert account.readable_bindir(installation, Account(uid=0, prefix=("unshare",))) == installation
    assert account.readable_bindir(Path("/usr/bin"), NOBODY) == Path("/usr/bin")
    assert list(shared.iterdir()) == []


@as_root
def test_data_that_an_account_could_not_reach_has_a_place_of_its_own(tmp_path: Path, shared: Path) -> None:
    tmp_path.chmod(0o700)
    wanted = tmp_path / "data"
    place = account.reachable_data_dir(wanted, NOBODY)
    assert place.parent.parent == shared and place.name == "data"
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o711
    assert account.reachable_data_dir(wanted, NOBODY) == place
    assert account.reachable_data_dir(tmp_path / "other" / "data", NOBODY) != place
    assert account.reachable_data_dir(wanted, Account(uid=0)) == wanted
    assert account.reachable_data_dir(Path("/var/lib"), NOBODY) == Path("/var/lib")


@as_root
def test_a_place_that_somebody_else_has_made_is_not_trusted(tmp_path: Path, shared: Path) -> None:
    """Whoever may write to /var/tmp could have put programs there for root to run."""
    tmp_path.chmod(0o700)
    place = account.reachable_data_dir(tmp_path / "data", NOBODY).parent
    os.chown(place, NOBODY.uid, -1)
    with pytest.raises(LocalError, match="belongs to someone else"):
        account.reachable_data_dir(tmp_path / "data", NOBODY)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    place.rmdir()
    place.symlink_to(elsewhere)
    with pytest.raises(LocalError, match="belongs to someone else"):
        account.reachable_data_dir(tmp_path / "data", NOBODY)


@as_root
def test_files_are_given_with_all_below_them_and_links_are_not_followed(tmp_path: Path) -> None:
    outside, mine = tmp_path / "outside", tmp_path / "mine"
    (mine / "in").mkdir(parents=True)
    outside.write_text("")
    (mine / "in" / "file").write_text("")
    (mine / "in" / "link").symlink_to(outside)
    account.give(mine, NOBODY)
    given = (mine, mine / "in", mine / "in" / "file", mine / "in" / "link")
    assert {path.lstat().st_uid for path in given} == {NOBODY.uid}
    assert outside.stat().st_uid == 0
