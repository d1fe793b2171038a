"""The guard by itself: whose calls it lets be, and how it is lifted and put back."""

import copy
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

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


@pytest.mark.parametrize(
    "look", [socket.getaddrinfo, socket.gethostbyname, socket.gethostbyname_ex, socket.gethostbyaddr]
)
def test_a_name_is_not_looked_up_in_the_network(look: Callable[..., Any]) -> None:
    place = ("localhost", 80) if look is socket.getaddrinfo else ("localhost",)
    with pytest.raises(Nondeterministic, match="the network"), guard(code):
        look(*place)


def test_an_id_made_of_the_time_is_the_clock() -> None:
    with pytest.raises(Nondeterministic, match=r"the clock.*wf\.uuid"), guard(code):
        uuid.uuid1()


def test_a_time_zone_is_read_for_the_code() -> None:
    with guard(code):
        ZoneInfo.no_cache("Europe/Paris")


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
