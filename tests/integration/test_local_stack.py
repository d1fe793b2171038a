"""The embedded stack, as processes: what it leaves behind, what it finds again, what it refuses."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import httpx
import pytest

from services.local import account
from services.local.errors import LocalError
from services.local.ports import is_free
from services.local.postgres import VOLATILE, Postgres, PostgresSettings
from services.local.process import Child, Command, stop_leftover
from services.local.settings import LocalSettings, from_environment
from services.local.stack import Stack
from services.local.supervisor import RESTARTS_MAX, Supervisor
from tests.support.launcher import CHILDREN, SMALL, Launcher, is_running
from tests.support.ports import free_port


@pytest.fixture
async def launcher(tmp_path: Path) -> AsyncIterator[Launcher]:
    made = Launcher(tmp_path / "data")
    yield made
    if made.process is not None:
        await made.stop(signal.SIGTERM)


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Launcher]:
    """A stack for tests that only look at it."""
    made = Launcher(tmp_path_factory.mktemp("running") / "data")
    await made.start(*SMALL)
    yield made
    await made.stop()


async def enqueue(launcher: Launcher, payload: str) -> None:
    url = f"{launcher.queue_url}/v1/namespaces/default/enqueue"
    body = {"items": [{"topic": "kept", "payload": payload, "idempotency_key": payload}]}
    status = "refused"
    async with asyncio.timeout(120):
        while status == "refused":  # by a shard that is coming back
            answer = await launcher.until_answered("POST", url, body)
            status = answer.json()["results"][0]["status"]
    assert status in ("enqueued", "duplicate")


async def payloads(launcher: Launcher) -> set[str]:
    """Every payload that a consumer gets, and acks."""
    found: set[str] = set()
    async with httpx.AsyncClient(base_url=f"{launcher.queue_url}/v1/namespaces/default") as client:
        while True:
            asked = {"topics": [{"topic": "kept", "count": 10}], "wait_s": 0.3}
            items = (await client.post("/dequeue", json=asked)).json()["items"]
            if not items:
                return found
            found |= {item["payload"] for item in items}
            acks = [{"id": item["id"], "lease_token": item["lease_token"]} for item in items]
            results = (await client.post("/ack", json={"items": acks})).json()["results"]
            assert {result["status"] for result in results} == {"acked"}


async def test_everything_starts_and_nothing_stays(launcher: Launcher) -> None:
    printed = await launcher.start()
    assert launcher.queue_url in printed
    assert launcher.dag_url in printed
    async with httpx.AsyncClient() as client:
        for url in (launcher.queue_url, launcher.dag_url):
            assert (await client.get(f"{url}/readyz")).status_code == 200
    pids = launcher.pids()
    assert all(map(is_running, pids))

    assert await launcher.stop(signal.SIGINT) == 0

    assert not any(map(is_running, pids))
    assert await launcher.errors() == ""
    assert is_free(launcher.queue_port) and is_free(launcher.postgres_port)


@pytest.fixture(scope="module")
async def directory(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Launcher]:
    """One directory, on which tests that kill follow one another."""
    made = Launcher(tmp_path_factory.mktemp("mortal") / "data")
    yield made
    if made.process is not None:
        await made.stop()


@pytest.fixture
async def mortal(directory: Launcher) -> Launcher:
    """A stack that runs, whatever the test before did to it."""
    if directory.process is None or directory.process.returncode is not None:
        await directory.start(*SMALL)
    return directory


@pytest.mark.drawn(1)
@pytest.mark.parametrize("victims", ["nobody", "the launcher", "everybody"])
async def test_the_next_start_finds_what_was_acknowledged(mortal: Launcher, victims: str) -> None:
    precious = f"precious after {victims}"
    await enqueue(mortal, precious)
    pids = mortal.pids()
    if victims == "everybody":
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    await mortal.stop(signal.SIGTERM if victims == "nobody" else signal.SIGKILL)

    await mortal.start()

    assert not any(map(is_running, pids))
    assert await payloads(mortal) == {precious}


async def test_children_end_with_a_killed_launcher(mortal: Launcher) -> None:
    pids = mortal.pids()

    await mortal.stop(signal.SIGKILL)

    await mortal.until_gone(pids)


async def test_a_killed_child_is_started_again(mortal: Launcher) -> None:
    for name in CHILDREN:
        before = mortal.pid(name)
        os.kill(before, signal.SIGKILL)
        await mortal.until_gone([before])
        await enqueue(mortal, f"after {name}")
    for url in (mortal.queue_url, mortal.dag_url):
        await mortal.until_answered("GET", f"{url}/readyz")

    assert await payloads(mortal) == {f"after {name}" for name in CHILDREN}
    await mortal.stop()
    told = await mortal.errors()
    assert [f"{name} was killed by SIGKILL; starting it again" in told for name in CHILDREN] == [True] * 4


@pytest.mark.parametrize(
    ("field", "variable"),
    [
        ("queue_port", "HEADGATE_QUEUE_PORT"),
        ("dag_port", "HEADGATE_DAG_PORT"),
        ("postgres_port", "HEADGATE_PG_PORT"),
        ("redis_port", "HEADGATE_REDIS_PORT"),
    ],
)
async def test_a_taken_port_is_told_by_its_variable(tmp_path: Path, field: str, variable: str) -> None:
    ports = {name: free_port() for name in ("queue_port", "dag_port", "postgres_port", "redis_port")}
    stack = Stack(LocalSettings(data_dir=tmp_path / "data", **ports))
    with socket.create_server(("127.0.0.1", ports[field])):
        with pytest.raises(LocalError, match=rf"port {ports[field]} for .* set {variable} to another"):
            await stack.start()
        await stack.stop()


async def test_what_keeps_the_stack_from_starting_is_told_in_one_line(launcher: Launcher) -> None:
    with socket.create_server(("127.0.0.1", launcher.queue_port)):
        code, errors = await launcher.fail()

    assert code == 1
    assert errors.count("\n") == 1
    assert str(launcher.queue_port) in errors and "HEADGATE_QUEUE_PORT" in errors


async def test_two_launchers_do_not_share_a_directory(running: Launcher) -> None:
    pids = running.pids()

    code, errors = await Launcher(running.data_dir).fail()

    assert code == 1
    assert errors.count("\n") == 1
    assert running.process is not None and f"in use by process {running.process.pid}" in errors
    assert running.pids() == pids and all(map(is_running, pids))


async def test_a_fresh_start_deletes_what_was_there_and_the_number_of_shards_is_decided_once(
    mortal: Launcher,
) -> None:
    await enqueue(mortal, "forgotten")
    kept = mortal.data_dir / "not-ours"
    kept.write_text("stays")
    await mortal.stop()

    await mortal.start("--fresh", "--queue-shards", "2", "--dag-shards", "1")

    assert await payloads(mortal) == set()
    assert kept.read_text() == "stays"
    async with httpx.AsyncClient() as client:
        shards = (await client.get(f"{mortal.queue_url}/v1/shards")).json()["items"]
    await mortal.stop()
    assert sorted(shard["shard"] for shard in shards) == [0, 1]
    code, errors = await mortal.fail("--queue-shards", "3")
    assert code == 1
    assert errors.count("\n") == 1
    assert "2 queue shards, not 3" in errors


def test_the_dag_token_is_for_its_owner_only(running: Launcher) -> None:
    token = running.data_dir / "dag.token"

    assert token.stat().st_mode & 0o777 == 0o600
    assert len(token.read_text()) >= 32


@pytest.mark.parametrize("namespaces", [True, False])
async def test_postgres_runs_whoever_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespaces: bool
) -> None:
    """As root in a user namespace, or as nobody where those are refused; otherwise as the user it is."""
    if not namespaces:
        monkeypatch.setattr(account, "user_namespaces_work", lambda: False)
    settings = PostgresSettings(
        data_dir=tmp_path / "postgres", port=free_port(), run_dir=tmp_path / "run", options=VOLATILE
    )
    postgres = Postgres(settings)
    await postgres.start()
    try:
        connection = await asyncpg.connect(postgres.dsn())
        assert await connection.fetchval("SELECT current_database()") == "headgate"
        await connection.close()
    finally:
        await postgres.stop()
        postgres.remove()


async def test_postgres_is_ready_when_it_says_so_also_after_a_kill(tmp_path: Path) -> None:
    """The killed server's pid file still says "ready"."""
    settings = PostgresSettings(
        data_dir=tmp_path / "postgres", port=free_port(), run_dir=tmp_path / "run", options=VOLATILE
    )
    postgres = Postgres(settings)
    await postgres.start()
    try:
        for _ in range(3):
            os.kill(postgres.child.pid, signal.SIGKILL)
            await postgres.child.wait()
            async with asyncio.timeout(60):
                while not postgres.child.running:
                    # Backends of the killed server may still hold its shared memory.
                    with contextlib.suppress(LocalError):
                        await postgres.start()
            await (await asyncpg.connect(postgres.dsn())).close()
    finally:
        await postgres.stop()


async def test_a_half_made_cluster_is_made_again(tmp_path: Path) -> None:
    unfinished = tmp_path / "postgres.new"
    unfinished.mkdir()
    (unfinished / "PG_VERSION").write_text("18\n")
    settings = PostgresSettings(
        data_dir=tmp_path / "postgres", port=free_port(), run_dir=tmp_path / "run", options=VOLATILE
    )
    postgres = Postgres(settings)

    await postgres.start()

    await postgres.stop()
    assert not unfinished.exists()


async def test_a_pid_that_went_to_another_program_is_left_alone(tmp_path: Path) -> None:
    bystander = Child(
        Command(name="bystander", argv=("sleep", "60")), log_path=tmp_path / "log", pid_path=tmp_path / "other.pid"
    )
    bystander.spawn()
    leftover = tmp_path / "postgres.pid"
    leftover.write_text(f"{bystander.pid} an-earlier-start\n")

    await stop_leftover(leftover, stop_signal=signal.SIGINT)

    assert bystander.running
    assert not leftover.exists()
    await bystander.stop()


async def test_a_leftover_process_is_stopped(tmp_path: Path) -> None:
    leftover = Child(
        Command(name="leftover", argv=("sleep", "60")), log_path=tmp_path / "log", pid_path=tmp_path / "sleep.pid"
    )
    leftover.spawn()

    await stop_leftover(tmp_path / "sleep.pid", stop_signal=signal.SIGTERM)

    assert not leftover.running


async def test_a_child_that_never_lives_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.local.supervisor._PAUSE_S", 0.0)
    child = Child(
        Command(name="doomed", argv=("sh", "-c", "echo 'FATAL: no luck'; exit 3")),
        log_path=tmp_path / "log",
        pid_path=tmp_path / "pid",
    )
    told: list[str] = []

    async def start() -> None:
        child.spawn()

    child.spawn()
    supervisor = Supervisor(told.append)
    supervisor.watch(child, start)
    with pytest.raises(LocalError, match="doomed ended with exit code 3: FATAL: no luck"):
        async with asyncio.timeout(60):
            await supervisor.failure
    await supervisor.close()

    assert len(told) == RESTARTS_MAX


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HEADGATE_HOST", "0.0.0.0"),
        ("HEADGATE_HOST", "example.org"),
        ("HEADGATE_QUEUE_PORT", "0"),
        ("HEADGATE_PG_PORT", "70000"),
        ("HEADGATE_DAG_PORT", "http"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(variable: str, value: str) -> None:
    with pytest.raises(LocalError, match=variable):
        from_environment({variable: value})


async def test_several_processes_share_the_port_and_the_shards(tmp_path: Path) -> None:
    settings = LocalSettings(
        data_dir=tmp_path,
        queue_port=free_port(),
        dag_port=free_port(),
        postgres_port=free_port(),
        redis_port=free_port(),
        queue_shards=2,
        dag_shards=2,
        queue_processes=2,
        dag_processes=2,
        postgres_options=VOLATILE,
    )
    async with Stack(settings) as stack, httpx.AsyncClient() as client:
        for url, names in ((stack.queue_url, {"queue", "queue-2"}), (stack.dag_url, {"dag", "dag-2"})):
            async with asyncio.timeout(60):
                owners: set[str] = set()
                while owners != names:
                    rows = (await client.get(f"{url}/v1/shards")).json()["items"]
                    owners = {row["owner"] for row in rows}
        pids = [child.pid for child in stack.children.values()]
    assert not any(is_running(pid) for pid in pids)
