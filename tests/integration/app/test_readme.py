"""The README's program of functions, and the whole of what an app is made of, in files of their own, as a
reader has them."""

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from services.local.stack import ROOT, Stack

PROGRAM = """
from dataclasses import dataclass
from datetime import datetime

from headgate import App

app = App("media")


@dataclass
class Page:
    url: str


@app.job(max_attempts=5, timeout_s=60, slots=8)
async def resize(src: str, width: int = 640) -> str:
    return f"{src}@{width}"


@app.job(batch=100)
def index(pages: list[Page]) -> None:
    print("indexed", len(pages), flush=True)


@app.job
def stitch(thumbs: list[str], title: str) -> str:
    return f"{title}: {thumbs}"


@app.every("nightly", cron="0 3 * * *", tz="Europe/Paris", overlap="skip")
def report(at: datetime) -> None: ...
"""

CALLER = """
import asyncio
from datetime import UTC, datetime, timedelta

from media import Page, app, index, resize, stitch

job = resize.enqueue("s3://a", width=320)
print(job.result(timeout_s=30))
print(resize.enqueue("b", delay_s=0.1, priority=1, key="b").result(timeout_s=30))
print(resize.enqueue("c", at=datetime.now(UTC) + timedelta(seconds=0.1)).result(timeout_s=30))
print(resize.enqueue("d", unique_for_s=60).id == resize.enqueue("d", unique_for_s=60).id)
print(index.enqueue(Page("x")).result(timeout_s=30), index.enqueue([Page("y"), Page("z")]).result(timeout_s=30))
flow = app.flow("album")
thumbs = [resize.call(src) for src in ("a", "b")]
album = flow.add(stitch.call(thumbs, title="summer"))
print(flow.start().result(album, timeout_s=60))


async def main() -> None:
    async with app:
        job = await resize.enqueue("e")
        print(await job.aresult(), await (await flow.start()).aresult(album, timeout_s=60))


asyncio.run(main())
"""
PRINTED = """\
s3://a@320
b@640
c@640
True
None None
summer: ['a@640', 'b@640']
e@640 summer: ['a@640', 'b@640']
"""


def readme() -> str:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    (found,) = [block for block in blocks if "@app.job" in block]
    return str(found)


@pytest.mark.parametrize("name", ["whole", "readme"])
def test_program_runs_as_it_stands(name: str, stack: Stack, tmp_path: Path) -> None:
    namespace = f"media-{secrets.token_hex(4)}"
    program = PROGRAM if name == "whole" else readme()
    (tmp_path / "media.py").write_text(program.replace('App("media")', f'App("{namespace}")'))
    (tmp_path / "caller.py").write_text(
        CALLER if name == "whole" else "import runpy\nrunpy.run_module('media', run_name='__main__')"
    )
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("HEADGATE_")}
    urls = {"HEADGATE_QUEUE_URL": stack.queue_url, "HEADGATE_DAG_URL": stack.dag_url, "PYTHONPATH": str(ROOT)}
    headgate = Path(sys.executable).with_name("headgate")
    command = [str(headgate), "worker", "media:app", "--processes", "4"]
    workers = subprocess.Popen(command, cwd=tmp_path, env={**inherited, **urls})
    try:
        ran = subprocess.run(
            [sys.executable, "caller.py"],
            cwd=tmp_path,
            env={**inherited, **urls},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        workers.terminate()
        workers.wait(40)
    expected = PRINTED if name == "whole" else "".join(f"{line}\n" for line in re.findall(r"\)  # (.*)", readme()))
    assert (ran.stdout, ran.stderr) == (expected, "")
