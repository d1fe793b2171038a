"""Names of tenants that differ in what nobody sees, or in their spaces alone, look different on pages."""

from playwright.async_api import Browser

from tests.support.console import Site, look


async def test_names_that_look_alike_are_told_apart(site: Site, browser: Browser) -> None:
    """Whatever nobody sees in them is shown, and what scripts and emoji need is left as it is."""
    unseen = (
        "\u200b",
        "\u200d",
        "\u00ad",
        "\u034f",
        "\u2060",
        "\u2800",
        "\u3164",
        "\ufe0f",
        "\ufeff",
        "\U000e0067",
    )
    whole = (
        "می\u200cخواهم",
        "👩\u200d💻",
        "❤\ufe0f\u200d🔥",
        "1\ufe0f\u20e3",
        "🏴\U000e0067\U000e0062\U000e007f",
        "क्\u200dष",
    )
    nodes = [{"key": f"de{mark}ploy", "topic": "t"} for mark in ("", *unseen)]
    dag = await site.post("dags", {"name": " ".join(whole), "nodes": nodes}, "dag")
    async with look(browser, site.queue.url) as opened:
        await opened.go(f"dags/{dag['id']}?view=nodes")
        text = await opened.text()
        assert [f"⟨U+{ord(mark):04X}⟩" for mark in unseen if f"de⟨U+{ord(mark):04X}⟩ploy" not in text] == []
        assert [mark for mark in unseen if f"de{mark}ploy" in text] == []
        assert " ".join(whole) in await opened.page.inner_text("h1")


async def test_names_that_differ_in_spaces_look_different(site: Site, browser: Browser) -> None:
    """On the graph, in lists and in titles; wide spaces of scripts that have them stay as they are."""
    names = (
        "de ploy",
        "de  ploy",
        "de\u00a0ploy",
        "de\u2003ploy",
        "de\u3000ploy",
        "de ploy ",
        " de ploy",
        "出\u3000荷",
    )
    dag = await site.post(
        "dags", {"name": "de  ploy", "nodes": [{"key": key, "topic": "t"} for key in names]}, "dag"
    )
    async with look(browser, site.queue.url) as opened:
        await opened.go(f"dags/{dag['id']}?view=nodes")
        assert "de  ploy" in await opened.page.inner_text("h1")
        keys = opened.page.locator("td[data-name=key]")
        shown = await keys.all_inner_texts()
        assert sorted(shown) == sorted(
            (
                "de ploy",
                "de  ploy",
                "de⟨U+00A0⟩ploy",
                "de⟨U+2003⟩ploy",
                "de⟨U+3000⟩ploy",
                "de ploy⟨U+0020⟩",
                "⟨U+0020⟩de ploy",
                "出\u3000荷",
            )
        )
        await opened.go(f"dags/{dag['id']}")
        await opened.page.wait_for_selector(".node text.key")
        widths = await opened.page.evaluate(
            "() => Object.fromEntries([...document.querySelectorAll('.node text.key')].map("
            "(each) => [each.textContent, each.getComputedTextLength()]))"
        )
        assert widths["de  ploy"] > widths["de ploy"] + 1
