"""More topics than a page can draw every few seconds: it shows those that hold most, and says so."""

from playwright.async_api import Browser

from tests.support.console import Site, look


async def test_the_page_of_a_topic_asks_for_no_other(site: Site, browser: Browser) -> None:
    """However many there are: what it shows of it costs one row."""
    await site.post("enqueue", {"items": [{"topic": f"t{n:04}"} for n in range(20)]})
    asked: list[str] = []
    async with look(browser, site.queue.url) as opened:
        opened.page.on("request", lambda request: asked.append(request.url) if "/topics" in request.url else None)
        await opened.go("topics/t0019")
        assert "1 ready" in await opened.page.inner_text(".counts")
        assert {url.partition("?")[2] for url in asked if "/v1/" in url} == {"topic=t0019"}


async def test_of_many_topics_those_that_hold_most_are_shown(site: Site, browser: Browser) -> None:
    items = [{"topic": f"t{n:04}"} for n in range(510)]
    await site.post("enqueue", {"items": items})
    await site.post("enqueue", {"items": [{"topic": "t0509"}] * 2})
    async with look(browser, site.queue.url) as opened:
        await opened.go("topics")
        assert await opened.page.locator("tbody tr").count() == 500
        assert await opened.page.get_by_role("link", name="t0509").count() == 1
        text = await opened.text()
        assert "of 510 topics" in text and "512" in text
        await opened.go("search?q=t0505")
        assert "t0505" in await opened.page.inner_text("tbody")
