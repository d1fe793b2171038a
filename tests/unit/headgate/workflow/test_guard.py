"""The guard by itself: whose calls it lets be, and how it is lifted and put back."""

import copy
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate._ids import new_id
from headgate.workflow.errors import Nondeterministic
from headgate.workflow.guard import guard, lifted


async def code() -> None:
    """Some workflow's."""


def test_what_this_package_and_libraries_do_for_the_code_is_let_be() -> None:
    with guard(code):
        copy.deepcopy({"a": [1]})  # asks for addresses, by itself
        new_id(1)  # asks for the clock and chance
    with pytest.raises(Nondeterministic, match="addresses"), guard(code):
        id(code)


@pytest.mark.parametrize("begin", [os.system, os.popen])
def test_a_process_is_refused_before_it_begins(begin: Callable[[str], Any], tmp_path: Path) -> None:
    with pytest.raises(Nondeterministic, match="a thread or process"), guard(code):
        begin(f"touch {tmp_path}/begun")
    assert not list(tmp_path.iterdir())


def test_one_that_was_entered_again_meanwhile_stays() -> None:
    """Code that awaits within `wf.unsafe()` ends that in another event, which has a guard of its own."""
    with guard():
        outer = sys.getprofile()
        unsafe = lifted()
        unsafe.__enter__()
        assert sys.getprofile() is None
        with pytest.raises(Nondeterministic), guard():
            inner = sys.getprofile()
            unsafe.__exit__(None, None, None)
            assert sys.getprofile() is inner is not outer
            time.time()
    assert sys.getprofile() is not outer
    with lifted():
        time.time()
