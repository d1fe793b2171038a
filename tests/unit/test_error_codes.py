"""Every code that a caller can meet stands in docs/errors.md with its status, and no other does."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import get_args

import headgate.errors
import services
import shared
from headgate.errors import HeadgateError
from services.local.stack import ROOT
from services.queue.errors import RefusalCode
from shared.errors import ServiceError
from shared.http import edge, refusals

PAGE = (ROOT / "docs" / "errors.md").read_text()


def subclasses(of: type) -> Iterator[type]:
    yield of
    for cls in of.__subclasses__():
        yield from subclasses(cls)


def load_all() -> None:
    for package in (services, shared):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def service_codes() -> set[tuple[str, int]]:
    load_all()
    raised = {(cls.code, cls.status) for cls in subclasses(ServiceError) if not cls.__name__.startswith("_")}  # type: ignore[attr-defined]
    framework = {(code, status) for status, code in (*edge._CODES.items(), *refusals._CODES.items())}
    return raised | framework


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_code_of_the_services_is_explained_with_its_status() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", section("Calls that are refused"), re.MULTILINE)

    assert {(code, int(status)) for code, status in rows} == service_codes()


def test_every_code_of_an_element_is_explained() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", section("Elements that are refused"), re.MULTILINE)

    assert sorted(rows) == sorted(get_args(RefusalCode))


def test_every_code_of_the_sdk_is_explained() -> None:
    own = {cls.code for cls in subclasses(HeadgateError) if cls.__module__ == headgate.errors.__name__}  # type: ignore[attr-defined]
    rows = re.findall(r"^\| `(\w+)` \|", section("Codes of the SDK's own"), re.MULTILINE)

    assert set(rows) == own - {code for code, _ in service_codes()}
