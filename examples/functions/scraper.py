"""A site is read page by page: each adds those that it links to while the flow runs, and none is read twice."""

import asyncio

from headgate import App, Job

app = App("example-scraper")

# Two hundred pages, each linking to three others.
SITE = {f"/{n}": [f"/{(3 * n + step) % 200}" for step in (1, 2, 3)] for n in range(200)}


@app.job(slots=20, max_attempts=5, backoff={"base_s": 0.1}, timeout_s=20)
async def read(job: Job, url: str) -> int:
    await asyncio.sleep(0.05)
    links = SITE[url]
    for link in links:
        await job.add(read.call(link), key=link)  # a page that is known by this key is not added again
    return len(links)


def main() -> None:
    flow = app.flow("scrape")
    first = flow.add(read.call("/0"), key="/0")
    run = flow.start()
    assert run.wait(timeout_s=120)
    nodes = app.client.dag(run.id).nodes("succeeded")
    print(f"{run.status()}: read {len(nodes)} pages; the first has {run.result(first)} links")


if __name__ == "__main__":
    main()
