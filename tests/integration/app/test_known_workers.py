"""A worker of its own process on the whole stack: it is listed, a cancel reaches it, and SIGKILL is seen."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from headgate import Client
from services.local.stack import ROOT, Stack

CODE = """\
import sys, time
from pathlib import Path
from headgate import AsyncClient, Job, Worker

queue_url, dag_url, namespace, folder = sys.argv[1:]
client = AsyncClient(queue_url=queue_url, dag_url=dag_url, namespace=namespace)
worker = Worker(client, name="mine", version="v7", lease_s=3)

@worker.task("long", slots=2)
def long(job: Job) -> None:
    job.progress(1, 4, "begun")
    while not job.cancelled:
        time.sleep(0.01)
    Path(folder, job.id).touch()

worker.main()
"""

T = TypeVar("T")


def test_a_worker_is_listed_hears_of_a_cancel_and_is_gone_when_it_was_killed(
    stack: Stack, media: ModuleType, tmp_path: Path
) -> None:
    client: Client = media.app.client
    where = [stack.queue_url, stack.dag_url, media.app.namespace, str(tmp_path)]
    process = subprocess.Popen([sys.executable, "-c", CODE, *where], cwd=ROOT)
    try:
        item = client.enqueue_one("long").id or ""
        found = until(lambda: [worker for worker in client.workers.all() if worker.running == 1])
        assert [(one.name, one.version, one.slots) for one in found] == [("mine", "v7", 2)]
        progress = until(lambda: client.item(item).progress)
        assert (progress.done, progress.total, progress.note) == (1, 4, "begun")
        client.cancel([item])
        until((tmp_path / item).exists)
        process.send_signal(signal.SIGKILL)
        process.wait()
        until(lambda: not client.workers.all())
        assert [worker.name for worker in client.workers.all(gone=True)] == ["mine"]
    finally:
        process.kill()
        client.close()


def until(look: Callable[[], T]) -> T:
    deadline_s = time.monotonic() + 20
    while not (found := look()):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return found
