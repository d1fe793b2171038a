"""What happens to a post once it is sent: thumbnails, moderation, and the feed of each follower.

The author waits for nothing of it. Followers hear of a post that is well, and a broken preview keeps nobody.
"""

import asyncio

from headgate import App, FlowRun

app = App("example-post-processing")


@app.job(max_attempts=3, backoff={"base_s": 0.1})
async def thumbnail(picture: str) -> str:
    await asyncio.sleep(0.2)
    return f"small/{picture}"


@app.job
async def preview(link: str) -> str:
    raise ConnectionError(f"{link} does not answer")


@app.job
async def moderate(text: str) -> dict[str, float]:
    await asyncio.sleep(0.2)
    return {"spam": 0.9 if "win money" in text else 0.1}


@app.job(slots=50)
async def feed(follower: str, thumbs: list[str]) -> str:
    await asyncio.sleep(0.3)
    return f"{follower} sees {len(thumbs)} pictures"


@app.job
async def publish(thumbs: list[str], followers: list[str]) -> object:
    return [feed.call(follower, thumbs) for follower in followers]


@app.job
async def told(feeds: list[str] | None) -> int:
    return len(feeds or ())


def post(text: str) -> tuple[FlowRun, int]:
    flow = app.flow("post")
    thumbs = [thumbnail.call(f"{n}.jpg") for n in range(4)]
    flow.add(preview.call("https://example.org"), required=False)
    feeds = publish.call(thumbs, [f"user {n}" for n in range(40)])
    flow.add(feeds, when=moderate.call(text).value["spam"] < 0.5)
    count = flow.add(told.call(feeds), trigger="none_failed")
    run = flow.start()
    return run, run.result(count, timeout_s=120)


if __name__ == "__main__":
    (_, well), (_, spam) = post("a walk by the sea"), post("win money")
    print(f"told {well} followers of the post, {spam} of the spam")
