"""The SQL loader: a header that disagrees with its body never gets as far as a database."""

from pathlib import Path

import pytest

from shared.postgres.sql import Statement, load


def write(tmp_path: Path, **files: str) -> Path:
    for name, text in files.items():
        (tmp_path / f"{name}.sql").write_text(text)
    return tmp_path


def test_blocks_become_statements(tmp_path: Path) -> None:
    text = "-- About.\n\n-- name: one(a, b)\n-- why\nSELECT $1, $2, $1;\n\n-- name: two()\nSELECT 1;\n"
    found = load(write(tmp_path, first=text, second="-- name: three(x)\nSELECT $1;"))

    assert {statement.name for statement in found} == {"one", "two", "three"}
    assert found.one.parameters == ("a", "b")
    assert found.one.text.endswith("SELECT $1, $2, $1")
    assert found.two.parameters == ()


def test_arguments_are_bound_by_name() -> None:
    statement = Statement("s", ("a", "b"), "SELECT $1, $2")

    assert statement.args(b=2, a=1) == (1, 2)
    for wrong in ({"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 2}, {}):
        with pytest.raises(KeyError):
            statement.args(**wrong)


@pytest.mark.parametrize(
    "text",
    [
        "-- name: s(a)\nSELECT 1;",
        "-- name: s()\nSELECT $1;",
        "-- name: s(a, b)\nSELECT $1;",
        "-- name: s(a)\nSELECT $2;",
        "-- name: s(a)\nSELECT 1; -- $1 in a comment does not count",
        "-- name: s()\nSELECT 1;\n-- name: s()\nSELECT 2;",
    ],
)
def test_a_header_that_disagrees_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="s"):
        load(write(tmp_path, file=text))


def test_one_name_in_two_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="twice"):
        load(write(tmp_path, a="-- name: s()\nSELECT 1", b="-- name: s()\nSELECT 1"))


def test_a_name_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = load(write(tmp_path, a="-- name: s()\nSELECT 1")).nothing


def test_ten_parameters_are_not_one(tmp_path: Path) -> None:
    names = ", ".join(f"p{n}" for n in range(11))
    body = ", ".join(f"${n + 1}" for n in range(11))

    assert len(load(write(tmp_path, a=f"-- name: s({names})\nSELECT {body}")).s.parameters) == 11


def test_a_list_of_columns_stands_once_for_all_files(tmp_path: Path) -> None:
    one = "-- columns: item_columns\nid::text, name,\nstate\n\n-- name: all()\nSELECT {item_columns} FROM item;"
    two = "-- name: some(x)\nSELECT {item_columns:i} FROM item i WHERE i.id = $1;"
    found = load(write(tmp_path, one=one, two=two))
    assert found.all.text == "SELECT id::text, name, state FROM item"
    assert found.some.text == "SELECT i.id::text, i.name, i.state FROM item i WHERE i.id = $1"


def test_a_list_of_columns_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="named item_columns"):
        load(write(tmp_path, file="-- name: all()\nSELECT {item_columns} FROM item;"))


def test_a_part_stands_once_for_all_files_and_its_comment_is_not_sent(tmp_path: Path) -> None:
    one = "-- part: found_part\n-- Why.\nfound AS (\n    SELECT $1::int AS x)\n\n-- name: no()\nSELECT;"
    two = "-- name: some(x)\nWITH {found_part}\nSELECT x FROM found;\n\n-- name: all()\nSELECT 1;"
    statements = load(write(tmp_path, one=one, two=two))
    assert statements.some.text == "WITH found AS (\n    SELECT $1::int AS x)\nSELECT x FROM found"
    assert statements.all.text == "SELECT 1"


def test_a_part_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="named found_part"):
        load(write(tmp_path, file="-- name: all()\nWITH {found_part} SELECT 1;"))
