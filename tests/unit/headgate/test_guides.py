"""The code of docs/guides.md is one program, and its test passes."""

import importlib
import re
import sys
from pathlib import Path

import pytest

from services.local.stack import ROOT


def test_the_guides_run_as_one_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "guides.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    (tmp_path / "shop_of_the_guides.py").write_text("\n".join(blocks))
    monkeypatch.syspath_prepend(tmp_path)
    shop = importlib.import_module("shop_of_the_guides")
    try:
        shop.test_an_order_is_invoiced_and_reported()
    finally:
        del sys.modules["shop_of_the_guides"]
