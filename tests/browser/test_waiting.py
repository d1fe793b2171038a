"""What a page does while a service is slow, or stands still: it says so, and asks no more of it."""

import asyncio

from playwright.async_api import Browser, Request, Route

from tests.support.console import Site, furnish, look

_NOTE = "() => (document.getElementById('note')?.textContent || '').includes('has not answered yet')"


async def test_a_service_that_stands_still_is_not_asked_again_and_again(site: Site, browser: Browser) -> None:
    await furnish(site)
    let = asyncio.Event()
    under_way: set[Request] = set()

    async def stands(route: Route) -> None:
        under_way.add(route.request)
        await let.wait()
        await route.continue_()

    async with look(browser, site.queue.url) as opened:
        page = opened.page
        await page.clock.install()
        await opened.go("overview")
        await page.route("**/v1/**", stands)
        await page.clock.run_for(9_000)
        await page.wait_for_function(_NOTE)
        asked = len(under_way)
        await page.clock.run_for(12_000)
        assert 0 < len(under_way) == asked
        let.set()
        await page.wait_for_function("() => document.getElementById('note').hidden")


async def test_a_service_that_never_answers_is_asked_again_in_the_end(site: Site, browser: Browser) -> None:
    """As where its machine is gone and nothing says so."""
    await furnish(site)
    stands = True
    never = asyncio.Event()

    async def gone(route: Route) -> None:
        if stands:
            await never.wait()
        await route.continue_()

    async with look(browser, site.queue.url) as opened:
        page = opened.page
        await page.add_init_script(
            "const limit = AbortSignal.timeout; AbortSignal.timeout = (ms) => limit.call(AbortSignal, ms / 10);"
        )
        await opened.go("topics")
        await page.route("**/v1/**", gone)
        await page.wait_for_function(
            "() => document.getElementById('note').textContent === 'The service does not answer; trying again.'"
        )
        stands = False
        await page.wait_for_function("() => document.getElementById('note').hidden")
        never.set()
        assert "mail" in await opened.text()
