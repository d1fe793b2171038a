"""Make: what is read without Make, what is left to `make -pn`, and that nothing is run."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import Cycle
from headgate.importing import Fault
from tests.support.examples import examples
from tests.unit.headgate.importing.test_importing import edges_of, noted, read

MAKEFILE = """\
# a comment
CC := gcc
SRC = main.c \\
      util.c
OBJS = main.o util.o
OBJS += $(EXTRA_$(CC))
.PHONY: all clean
all: prog docs   # what is made by default
prog: main.o util.o | out
\t$(CC) -o $@ $^
\t# a comment of the shell
out: ; mkdir -p out
main.o: main.c defs.h
\tcc -c \\
\t  main.c
util.o: $(firstword $(SRC))
docs:: a.md
docs:: b.md | out
%.x: %.y
\tnever
a$$b c\\ d: prog
prog: CFLAGS = -g
ifeq ($(X),1)
all: hidden
  ifdef Y
  endif
endif
define LINES
no: rule
endef
include other.mk
"""


def test_a_makefile_is_read_as_far_as_it_goes() -> None:
    found = read("make", MAKEFILE, topic="t", topics={".o": "cc", "docs": "doc"})
    assert edges_of(found) == {
        ("prog", "all"),
        ("docs", "all"),
        ("main.o", "prog"),
        ("out", "prog"),
        ("out", "docs"),
        ("prog", "a$b"),
        ("prog", "c d"),
    } - ({("util.o", "prog")} if "util.o" not in found.dag.nodes else set())
    nodes = found.dag.nodes
    assert "hidden" not in nodes and "no" not in nodes and "%.x" not in nodes
    assert (nodes["main.o"].topic, nodes["docs"].topic, nodes["prog"].topic) == ("cc", "doc", "t")
    assert nodes["prog"].options["payload"]["recipe"] == ["$(CC) -o $@ $^", "# a comment of the shell"]
    assert nodes["main.o"].options["payload"]["recipe"] == ["cc -c \\\n\t  main.c".replace("\\\n", "\n")]
    assert nodes["out"].options["payload"]["recipe"] == ["mkdir -p out"]
    effects = noted(found)
    for what in (
        "pattern rules",
        "conditionals",
        "include",
        "functions and unknown variables",
        "double-colon rules",
    ):
        assert effects[what] == "changed", what
    for what in ("define", "target-specific variables", "order-only prerequisites", "source files"):
        assert effects[what] == "left out", what


def test_nothing_of_a_makefile_is_run(tmp_path: Any) -> None:
    trap = tmp_path / "trap"
    source = f"X := $(shell touch {trap})\nY != touch {trap}\na: $(X) $(Y)\nb: a\n\ttouch {trap}\ninclude {trap}\n"
    found = read("make", source)
    assert list(found.dag.nodes) == ["b"] and not trap.exists()


def test_goals_bring_what_they_need_and_no_more() -> None:
    source = "all: a b\na: c\nb: c\nc:\nother: c\n"
    assert set(read("make", source, goals=("a",)).dag.nodes) == {"a", "c"}
    with pytest.raises(Fault, match="no rule for 'z'"):
        read("make", source, goals=("z",))


def test_variables_that_grow_without_end_are_refused() -> None:
    bomb = "A0 = xxxxxxxxxx\n" + "".join(f"A{i} = {f'$(A{i - 1})' * 10}\n" for i in range(1, 15))
    with pytest.raises(Fault, match="expand to over"):
        read("make", bomb + "a: $(A14)\n")
    looped = read("make", "A = $(A)\na: $(A)\nb:\n")
    assert list(looped.dag.nodes) == ["b"]


def test_the_data_base_of_make_is_read_between_its_marks() -> None:
    source = """\
cc -c main.c
# GNU Make 4.3
# Make data base, printed on Sat
# Variables
MAKE = make
# Implicit Rules
%.o: %.c
#  recipe to execute (built-in):
\t$(COMPILE.c) $<
# Files
# Not a target:
main.c:
#  Implicit rule search has been done.

prog: main.o | out
#  recipe to execute (from 'Makefile', line 2):
\tcc -o prog main.o

main.o: main.c
# Not a target:
.c.o:
\t$(COMPILE.c) $<
out:
# files hash-table stats:
# VPATH Search Paths
ghost: prog
"""
    found = read("make", source)
    assert set(found.dag.nodes) == {"prog", "main.o", "out"}
    assert edges_of(found) == {("main.o", "prog"), ("out", "prog")}
    assert found.dag.nodes["prog"].options["payload"]["recipe"] == ["cc -o prog main.o"]


@pytest.mark.parametrize("source", ["", "# nothing\n", "A = b\n", "ifdef X\n", "define X\n", "no rule here\n"])
def test_a_file_without_rules_is_refused(source: str) -> None:
    with pytest.raises(Fault):
        read("make", source)


@settings(max_examples=examples(100, nightly=300), deadline=None)
@given(st.text("ab:=$(){}|;#\\\t\n %.&?+!_ifdefendefine", max_size=80))
def test_no_makefile_is_more_than_read_or_refused(source: str) -> None:
    with contextlib.suppress(Fault, Cycle):
        read("make", source)
