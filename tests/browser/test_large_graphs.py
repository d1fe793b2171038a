"""A graph that is drawn on a canvas: found, clicked, gone through by keyboard, and its states as they change."""

import json

from playwright.async_api import Browser, Route

from tests.support.console import Site, look, pair

NODES = 400


async def made(site: Site) -> str:
    nodes = [{"key": "root", "topic": "build"}]
    nodes += [{"key": f"step {n}", "topic": "build", "upstream": ["root"]} for n in range(NODES - 2)]  # type: ignore[dict-item]
    nodes += [{"key": "last", "topic": "build", "upstream": ["step 7"]}]  # type: ignore[dict-item]
    dag = await site.post("dags", {"name": "wide", "nodes": nodes}, "dag")
    dag_id: str = dag["id"]
    return dag_id


async def test_a_node_is_found_and_its_state_follows(site: Site, browser: Browser) -> None:
    dag = await made(site)
    async with look(browser, site.queue.url) as opened:
        page = opened.page
        await opened.go(f"dags/{dag}")
        await page.wait_for_selector(".board[data-drawn]")
        await page.get_by_label("find a node").fill("step 7")
        await page.get_by_label("find a node").press("Enter")
        await page.wait_for_function("() => document.querySelector('aside h2')?.textContent === 'step 7'")
        assert "found" in await page.inner_text(".board [role=status]")
        [root] = await site.take("build", 1)
        await site.post("ack", {"items": [pair(root)]})
        await page.wait_for_function(
            "() => document.querySelector('aside .badge')?.textContent.includes('released')"
        )
        before = await page.evaluate("() => document.querySelector('canvas').toDataURL()")
        await page.locator("canvas").press("ArrowLeft")
        await page.locator("canvas").press("+")
        await page.wait_for_function(
            "(before) => document.querySelector('canvas').toDataURL() !== before", arg=before
        )
        await page.get_by_label("close").click()
        await page.get_by_label("whole graph").click()
        box = await page.locator("canvas").bounding_box()
        assert box is not None
        await page.mouse.move(box["x"] + 300, box["y"] + 100)
        await page.mouse.down()
        await page.mouse.move(box["x"] + 340, box["y"] + 140, steps=4)
        await page.mouse.up()
        await page.mouse.wheel(0, -300)


async def test_a_click_on_a_node_opens_it(site: Site, browser: Browser) -> None:
    dag = await made(site)
    async with look(browser, site.queue.url) as opened:
        page = opened.page
        await opened.go(f"dags/{dag}")
        await page.wait_for_selector(".board[data-drawn]")
        # the root stands alone at the left end of what is fitted into the view
        await page.locator("canvas").press("0")
        box = await page.locator("canvas").bounding_box()
        assert box is not None
        for x in range(14, int(box["width"]), 6):
            await page.mouse.click(box["x"] + x, box["y"] + box["height"] / 2)
            if await page.locator("aside h2").count():
                break
        await page.wait_for_function("() => document.querySelector('aside h2')?.textContent === 'root'")


async def test_the_time_that_nodes_took(site: Site, browser: Browser) -> None:
    dag = await made(site)
    [root] = await site.take("build", 1)
    await site.post("ack", {"items": [pair(root)]})
    async with look(browser, site.dag.url) as opened:
        await opened.go(f"dags/{dag}?view=timeline")
        await opened.page.wait_for_selector(".times li")
        assert "the 300 that took longest" in await opened.text()
        assert await opened.page.locator(".lanes .waited").count() == 300
        await opened.page.locator(".times button").first.click()
        await opened.page.wait_for_selector("aside:not([hidden])")


async def test_a_large_graph_is_folded_by_topic_and_a_box_opens_in_place(site: Site, browser: Browser) -> None:
    dag = await made(site)
    async with look(browser, site.queue.url) as opened:
        page = opened.page
        await opened.go(f"dags/{dag}")
        await page.get_by_role("link", name="by prefix").click()
        await page.wait_for_selector(".node text.key")
        words = await page.locator(".node title").all_text_contents()
        assert words == ["root (build)", f"step × {NODES - 2}", "last (build)"]
        [root] = await site.take("build", 1)
        await site.post("ack", {"items": [pair(root)]})
        [first] = await site.take("build", 1)
        await site.post("nack", {"items": [{**pair(first), "final": True}]})
        await page.wait_for_function(
            "() => [...document.querySelectorAll('.node title')]"
            ".some((each) => each.textContent.endsWith(', 1 failed'))"
        )
        await page.locator(".node", has_text="step 1/").click()
        await page.wait_for_selector(".board[data-drawn]")
        await page.get_by_role("button", name="fold again").click()
        await page.wait_for_function("() => document.querySelectorAll('.node').length === 3")


async def test_a_sub_dag_is_shown_among_the_nodes_of_its_parent(site: Site, browser: Browser) -> None:
    inner = {"nodes": [{"key": "in", "topic": "t"}, {"key": "out", "topic": "t", "upstream": ["in"]}]}
    nodes = [{"key": "part", "dag": inner}, {"key": "last", "topic": "t", "upstream": ["part"]}]
    dag = await site.post("dags", {"nodes": nodes}, "dag")
    [item] = await site.take("t", 1)
    async with look(browser, site.dag.url) as opened:
        page = opened.page
        await opened.go(f"dags/{dag['id']}?node=part")
        await page.get_by_role("button", name="show it here").click()
        await page.wait_for_function("() => document.querySelectorAll('.node').length === 4")
        lines = await page.locator(".edges path").evaluate_all(
            "(all) => all.map((each) => [each.dataset.up, each.dataset.down])"
        )
        assert sorted(lines) == [["part", "part ▸ in"], ["part ▸ in", "part ▸ out"], ["part ▸ out", "last"]]
        await site.post("ack", {"items": [pair(item)]})
        await page.wait_for_function(
            "() => document.querySelectorAll('.node.s-succeeded').length === 1", timeout=30_000
        )
        await page.locator(".node", has_text="▸ out").click()
        await page.wait_for_function("() => document.querySelector('aside h2')?.textContent === 'out'")
        await page.locator(".node", has_text="part").first.click()
        await page.get_by_role("button", name="fold it again").click()
        await page.wait_for_function("() => document.querySelectorAll('.node').length === 2")


async def test_of_a_graph_without_room_a_part_is_shown_first(site: Site, browser: Browser) -> None:
    dag = await made(site)
    nodes = [{"key": f"n{n}", "state": "blocked", "topic": "t", "generation": 1} for n in range(5_000)]
    nodes[4_000]["state"] = "failed"
    edges = [{"upstream": f"n{n - 1}", "downstream": f"n{n}"} for n in range(1, 5_000)]
    graph = {"id": dag, "name": "long", "state": "running", "nodes": nodes, "edges": edges}
    async with look(browser, site.queue.url) as opened:
        page = opened.page
        await page.route(
            "**/graph?format=json",
            lambda route: route.fulfill(content_type="application/json", body=json.dumps(graph)),
        )
        await opened.go(f"dags/{dag}")
        await page.wait_for_selector(".board[data-drawn]")
        assert await page.inner_text(".board [role=status]") == "5,000 nodes; a part is shown"
        box = await page.locator("canvas").bounding_box()
        assert box is not None
        async with page.expect_request(lambda request: "/node?key=n4000" in request.url):
            await page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


async def test_ten_thousand_nodes_are_drawn_and_moved(site: Site, browser: Browser) -> None:
    dag = await made(site)
    nodes = [{"key": f"n{n}", "state": "blocked", "topic": "t", "generation": 1} for n in range(10_000)]
    edges = [{"upstream": f"n{n // 3}", "downstream": f"n{n}"} for n in range(1, 10_000)]
    edges += [{"upstream": f"n{n - 7}", "downstream": f"n{n}"} for n in range(7, 10_000, 2)]
    graph = {"id": dag, "name": "wide", "state": "running", "nodes": nodes, "edges": edges}

    async def instead(route: Route) -> None:
        await route.fulfill(content_type="application/json", body=json.dumps(graph))

    async with look(browser, site.queue.url) as opened:
        page = opened.page
        await page.route("**/graph?format=json", instead)
        await opened.go(f"dags/{dag}")
        await page.wait_for_selector(".board[data-drawn]")
        frames = await page.evaluate(
            """async () => {
                const canvas = document.querySelector('canvas');
                const frame = () => new Promise((done) => requestAnimationFrame(done));
                const begun = performance.now();
                for (let at = 0; at < 30; at += 1) {
                    const key = at % 2 ? 'ArrowLeft' : 'ArrowRight';
                    canvas.dispatchEvent(new KeyboardEvent('keydown', { key }));
                    await frame();
                }
                return 30000 / (performance.now() - begun);
            }"""
        )
        print(f"{frames:.0f} frames a second")
        assert frames > 0
        # One that nobody sees has no size, as while its page is left: nothing is drawn, nothing said.
        for display in ("none", "block"):
            await page.evaluate(
                "(display) => { document.querySelector('canvas').style.display = display; }", display
            )
            await page.evaluate("() => new Promise((done) => setTimeout(done, 300))")
        blank = (
            "() => { const c = document.querySelector('canvas'); return c.getContext('2d')"
            ".getImageData(0, 0, c.width, c.height).data.every((each) => each === 0); }"
        )
        assert not await page.evaluate(blank)
