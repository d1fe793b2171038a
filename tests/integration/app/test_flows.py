"""Flows: results as arguments, conditions, what grows while it runs, undo, and values that are too large."""

import asyncio
from pathlib import Path
from types import ModuleType

import pytest

from headgate import FileStore, Invalid, JobSkipped

pytestmark = pytest.mark.usefixtures("worker")


async def test_results_become_arguments(media: ModuleType) -> None:
    flow = media.app.flow("album")
    thumbs = [media.resize.call(src) for src in ("a", "b")]
    album = flow.add(media.stitch.call(thumbs, title="summer"))
    run = await flow.start()
    assert await run.aresult(album, timeout_s=60) == "summer: a@640, b@640"
    assert await run.aresult(thumbs[1]) == "b@640"
    assert await run.job(thumbs[0]).astatus() == "succeeded"
    assert await run.await_end(30)
    assert await run.astatus() == "succeeded"

    def blocking() -> str:
        run = flow.start()
        found: str = run.result(album, timeout_s=60)
        return found

    assert await asyncio.to_thread(blocking) == "summer: a@640, b@640"


async def test_chain_chord_and_map(media: ModuleType) -> None:
    flow = media.app.flow("mixed")
    chained = flow.chain(media.resize.call("a"), media.resize, media.length)
    chord = flow.chord([media.resize.call("x"), media.resize.call("y")], media.stitch, title="t")
    mapped = flow.map(media.resize, media.pages.call(3), width=9)
    joined = flow.add(media.stitch.call(mapped, title="all"))
    fixed = flow.map(media.resize, ["p", media.resize.call("q")])
    run = await flow.start()
    assert await run.aresult(chained, 60) == len("a@640@640")
    assert await run.aresult(chord, 60) == "t: x@640, y@640"
    assert await run.aresult(mapped, 60) == ["page 0@9", "page 1@9", "page 2@9"]
    assert await run.aresult(joined, 60) == "all: page 0@9, page 1@9, page 2@9"
    assert await run.aresult(fixed, 60) == ["p@640", "q@640@640"]


async def test_a_function_that_returns_calls_has_their_results(media: ModuleType) -> None:
    job = await media.grow.enqueue(3)
    assert await job.aresult(60) == ["s0@640", "s1@640", "s2@640"]
    nested = await media.count_nested.enqueue(2)
    assert await nested.aresult(60) == {"below": [{"below": [{"end": True}]}]}
    flow = media.app.flow("grown")
    last = flow.add(media.stitch.call(media.grow.call(2), title="g"))
    many = flow.add(media.grow.call(40))
    run = await flow.start()
    assert await run.aresult(many, 60) == [f"s{number}@640" for number in range(40)]
    assert await run.aresult(last, 60) == "g: s0@640, s1@640"
    none = flow = media.app.flow("none")
    last = flow.add(media.stitch.call(media.grow.call(0), title="g"))
    assert await (await none.start()).aresult(last, 60) == "g: "


async def test_a_job_adds_calls_while_it_runs(media: ModuleType) -> None:
    job = await media.crawl.enqueue(2)
    assert await job.await_end(60)
    dag = await asyncio.to_thread(media.app.client.dag(job.id).show)
    assert (dag.state, dag.nodes.succeeded) == ("succeeded", 7)


async def test_a_flow_may_stand_in_the_place_of_a_call(media: ModuleType) -> None:
    innermost = media.app.flow("innermost")
    innermost.map(media.resize, media.pages.call(2), width=1)
    inner = media.app.flow("inner")
    inner.add(media.stitch.call(inner.add(innermost), title="inner"))
    flow = media.app.flow("outer")
    inside = flow.add(inner)
    last = flow.add(media.stitch.call([inside, "z"], title="outer"), when=inside.value != "")
    run = await flow.start()
    assert await run.aresult(last, 60) == "outer: inner: page 0@1, page 1@1, z"
    assert await run.aresult(inside, 60) == "inner: page 0@1, page 1@1"
    wrong = media.app.flow("wrong")
    first = media.resize.call("a")
    wrong.add(media.resize.call(first))
    wrong._last = first
    with pytest.raises(ValueError, match="whose result is the flow's last"):
        flow.add(wrong)


async def test_a_call_runs_where_its_condition_holds(media: ModuleType) -> None:
    flow = media.app.flow("conditions")
    size = media.length.call("four")
    yes = flow.add(media.resize.call("yes"), when=size.value > 3)
    no = flow.add(media.resize.call("no"), when=size.value == 3)
    after = flow.add(media.resize.call(no))
    either = flow.add(media.stitch.call([yes], title="t"), after=[no], trigger="none_failed")
    run = await flow.start()
    assert await run.aresult(yes, 60) == "yes@640"
    assert await run.aresult(either, 60) == "t: yes@640"
    for skipped in (no, after):
        with pytest.raises(JobSkipped):
            await run.aresult(skipped, 60)
    assert await run.await_end(30)
    assert await run.astatus() == "succeeded"


async def test_what_is_not_required_fails_no_flow(media: ModuleType) -> None:
    flow = media.app.flow("tolerant")
    optional = flow.add(media.boom.call("bad"), required=False)
    run = await flow.start()
    with pytest.raises(ValueError, match="bad"):
        await run.aresult(optional, 60)
    await run.await_end(30)
    assert await run.astatus() == "succeeded"


async def test_a_call_whose_input_failed_raises_that_failure(media: ModuleType) -> None:
    flow = media.app.flow("broken")
    last = flow.add(media.stitch.call([media.resize.call(media.boom.call("bad"))], title="t"))
    run = await flow.start()
    with pytest.raises(ValueError, match="bad") as caught:
        await run.aresult(last, 60)
    assert any("did not run" in note for note in caught.value.__notes__)
    await run.await_end(30)
    await run.aretry()
    await run.await_end(30)
    assert await run.astatus() == "failed"


async def test_what_was_done_is_undone_when_the_flow_fails(media: ModuleType, tmp_path: Path) -> None:
    flow = media.app.flow("undo")
    kept = flow.add(media.keep.call(str(tmp_path / "file"), text="t"))
    flow.add(media.boom.call("bad"), after=[kept])
    run = await flow.start()
    assert await run.await_end(60)
    assert (tmp_path / "file").read_text() == "undone kept t"
    assert await run.astatus() == "failed"


async def test_large_values_go_through_the_store(media: ModuleType) -> None:
    flow = media.app.flow("large")
    text = media.large.call(200_000)
    length = flow.add(media.length.call(text))
    run = await flow.start()
    assert await run.aresult(length, 60) == 200_000
    assert len(await run.aresult(text, 60)) == 200_000
    assert await (await media.length.enqueue("y" * 300_000)).aresult(60) == 300_000


async def test_large_values_without_a_store_end_clearly(media: ModuleType) -> None:
    media.app.store = None
    with pytest.raises(Exception, match="give the app a store"):
        await media.length.enqueue("y" * 300_000)
    with pytest.raises(Exception, match="give the app a store"):
        await (await media.large.enqueue(200_000)).aresult(60)


async def test_one_key_is_one_run(media: ModuleType) -> None:
    flow = media.app.flow("once")
    flow.add(media.resize.call("a"))
    first, second = await flow.start(key="monday"), await flow.astart(key="monday")
    assert first.id == second.id != (await flow.start()).id


def test_flows_that_cannot_be_are_refused(media: ModuleType, tmp_path: Path) -> None:
    flow = media.app.flow("wrong")
    with pytest.raises(ValueError, match="has no calls"):
        flow.start()
    with pytest.raises(TypeError, match="takes a call"):
        flow.add("resize")
    with pytest.raises(ValueError, match="not in flow"):
        flow.key_of(media.resize.call("a"))
    with pytest.raises(TypeError, match=r"use flow\.map"):
        list(media.pages.call(1))
    with pytest.raises(TypeError, match="put both into a flow"):
        media.resize.enqueue(media.resize.call("a"))
    with pytest.raises(KeyError):
        FileStore(tmp_path).get("a/../b")
    assert issubclass(Invalid, Exception)
