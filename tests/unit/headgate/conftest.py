"""The command line in this process, against a service that answers what a test says."""

from collections.abc import Callable

import pytest

from headgate._cli import commands
from headgate._cli import program as cli
from headgate._client.aio.client import AsyncClient
from headgate._client.blocking.client import Client
from headgate._http.transport import RetryPolicy
from tests.unit.headgate.fakes import Service, problem

ONCE = RetryPolicy(attempts_max=1)

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def service() -> Service:
    return Service(lambda *_: problem(404, "not_found", detail="there is no such object"))


@pytest.fixture
def run(service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command against `service`: exit code, standard output, standard error."""
    client = Client(queue_url="http://q", dag_url="http://d", transport=service, retry=ONCE)
    monkeypatch.setattr(commands, "client_of", lambda _args: client)
    monkeypatch.setattr(
        commands, "async_client_of", lambda _args: AsyncClient(dag_url="http://d", transport=service, retry=ONCE)
    )

    def run(*argv: str) -> tuple[int, str, str]:
        code = cli.main(argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
