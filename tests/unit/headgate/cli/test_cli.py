"""The command line as its users meet it: output, exit codes, one-line errors."""

import io
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate import wire
from headgate._cli import output
from headgate._cli import program as cli
from headgate._http.transport import VERSION
from tests.unit.headgate.client.test_client import leased
from tests.unit.headgate.conftest import Run
from tests.unit.headgate.fakes import Service, enqueued, problem, shards

DAG = {
    "id": "d1",
    "namespace": "default",
    "name": "nightly",
    "state": "running",
    "created_at": "2030-01-01T00:00:00Z",
    "nodes": {"total": 3, "succeeded": 1, "blocked": 2},
}


def test_enqueue_reads_json_or_text(service: Service, run: Run) -> None:
    service.reply = lambda _m, path, body: shards(1) if "shards" in path else enqueued(body)
    for text, payload in (('{"a": 1}', {"a": 1}), ("hello world", "hello world"), ("7", 7), ("NaN", "NaN")):
        code, out, _ = run("enqueue", "t", text, "--priority", "-3", "--delay", "1.5")
        assert code == 0
        item = service.asked("/enqueue")[-1]["items"][0]
        assert (item["payload"], item["priority"], item["delay_s"]) == (payload, -3, 1.5)
        assert out.splitlines()[0].split() == ["ID", "STATUS"]
        assert out.splitlines()[1].split() == [item["id"], "enqueued"]


def test_enqueue_takes_a_payload_per_line(service: Service, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    service.reply = lambda _m, path, body: shards(1) if "shards" in path else enqueued(body)
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"a":1}\n\ntwo\n'))
    code, out, _ = run("-o", "json", "enqueue", "t", "--lines")
    assert code == 0
    assert [item["payload"] for item in service.asked("/enqueue")[0]["items"]] == [{"a": 1}, "two"]
    assert len(json.loads(out)) == 2


@pytest.mark.parametrize("text", ['{"a": ', "[" * 100_000, '{"a": ' * 100_000, f"[{'9' * 5_000}]", "[NaN]"])
def test_text_that_only_looks_like_json_is_a_usage_error(run: Run, tmp_path: Path, text: str) -> None:
    file = tmp_path / "dag.json"
    file.write_text(text)
    code, _, err = run("dag", "submit", str(file))
    assert code == 2 and "is not JSON" in err and err.count("\n") == 1
    code, _, err = run("enqueue", "t", text)
    assert code == 2
    assert err.startswith("headgate: this is not JSON")


def test_dequeue_prints_what_an_ack_needs(service: Service, run: Run) -> None:
    service.reply = lambda *_: {"items": [leased("i", payload={"a": "\x1b[31mred"})]}
    code, out, _ = run("dequeue", "t", "-o", "json")
    (item,) = json.loads(out)
    assert (code, item["lease_token"], item["dag"]) == (0, "token-i", None)
    assert item["lease_expires_at"] == "2030-01-01T00:00:00+00:00"
    service.reply = lambda *_: {"items": []}
    code, out, err = run("dequeue", "t", "--wait", "0")
    assert (code, out, err) == (0, "", "nothing is ready\n")


@pytest.mark.parametrize(
    ("status", "code"),
    [("acked", 0), ("already_acked", 0), ("not_found", 3), ("lease_lost", 4), ("refused", 1)],
)
def test_ack_exits_by_what_became_of_the_item(service: Service, run: Run, status: str, code: int) -> None:
    service.reply = lambda *_: {"results": [{"id": "i", "status": status}]}
    assert run("ack", "i", "token", "--result", "[1]")[0] == code
    assert service.asked("/ack") == [{"items": [{"id": "i", "lease_token": "token", "output": [1]}]}]


def test_extend_leaves_the_length_to_the_item_or_names_it(service: Service, run: Run) -> None:
    service.reply = lambda *_: {"results": [{"id": "i", "status": "extended"}]}
    held = {"id": "i", "lease_token": "token"}
    assert run("extend", "i", "token")[0] == 0
    assert run("extend", "i", "token", "--lease", "90")[0] == 0
    assert service.asked("/extend") == [{"items": [held]}, {"items": [{**held, "lease_s": 90.0}]}]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (problem(404, "not_found"), 3),
        (problem(409, "dag_finished"), 4),
        (problem(422, "invalid"), 2),
        (problem(401, "unauthorized"), 1),
        (problem(500, "internal"), 1),
        (problem(429, "over_quota", retry_after=60), 5),
        (problem(503, "unavailable"), 5),
        (httpx.ConnectError("refused"), 5),
        (httpx.Response(200, text="<html>"), 1),
    ],
)
def test_errors_are_one_line_and_an_exit_code(service: Service, run: Run, answer: Any, code: int) -> None:
    service.reply = lambda *_: answer
    got, out, err = run("dag", "retry", "d1")
    assert (got, out) == (code, "")
    assert err.startswith("headgate: ")
    assert err.count("\n") == 1


def test_what_others_stored_cannot_steer_the_terminal(service: Service, run: Run) -> None:
    error = "\x1b]0;owned\x07 line\nbreak \u202e"
    item = {"id": "i", "namespace": "n", "topic": "t", "state": "dead", "enqueued_at": DAG["created_at"]}
    service.reply = lambda *_: {"items": [{**item, "error": error}], "next_cursor": None}
    _, out, _ = run("items")
    assert not set(out) & {"\x1b", "\x07", "\u202e"}
    assert len(out.splitlines()) == 2


def test_what_others_stored_inside_a_value_cannot_either() -> None:
    value = {"note": "\u202e\x9b31m\x1b\n\U000e0001é", "done": 1}
    assert json.loads(output.cell(value)) == value
    for show in (output.show_fields, output.show_json):
        out = io.StringIO()
        show({"progress": value}, out)
        assert not set(out.getvalue()) & {"\u202e", "\x9b", "\x1b", "\U000e0001"} and "é" in out.getvalue()
    assert json.loads(out.getvalue()) == {"progress": value}


def test_a_list_says_which_shards_it_lacks(service: Service, run: Run) -> None:
    page: dict[str, Any] = {"items": [], "next_cursor": None, "away": [3, 17]}
    service.reply = lambda *_: page
    for words in (
        ("topics",),
        ("items",),
        ("dead",),
        ("namespaces",),
        ("workers",),
        ("operations", "list"),
        ("dag", "list"),
        ("schedule", "list"),
        ("workflow", "list"),
        ("workflow", "versions"),
        ("top", "--once"),
        ("-o", "json", "topics"),
    ):
        code, _, said = run(*words)
        assert code == 0 and "shards 3, 17 do not answer: what is there is missing here" in said, words
    page["away"] = [1]
    assert "shard 1 does not answer" in run("topics")[2]
    del page["away"]
    assert "answer" not in run("topics")[2]


def test_runs_of_a_shard_that_is_away_are_not_left_out_of_a_cancel(service: Service, run: Run) -> None:
    service.reply = lambda *_: {"items": [], "next_cursor": None, "away": [1]}
    code, _, said = run("workflow", "cancel", "--type", "order")
    assert code == 5 and "nothing was cancelled" in said


def test_tables_line_up_and_json_is_json(service: Service, run: Run) -> None:
    rows = [{"topic": "a", "ready": 5}, {"topic": "longer/name", "ready": 12_345, "oldest_ready_age_s": 1.5}]
    service.reply = lambda *_: {"items": rows, "next_cursor": None}
    _, out, _ = run("topics")
    head, first, second = out.splitlines()
    assert head.index("READY") + 5 == first.index("5") + 1 == second.index("12345") + 5
    assert json.loads(run("topics", "-o", "json")[1])[1]["ready"] == 12_345


def test_purge_asks_first(service: Service, run: Run) -> None:
    service.reply = lambda *_: {"topic": "t", "items": 3}
    code, _, err = run("topic", "purge", "t")
    assert (code, service.calls) == (2, [])
    assert "--yes" in err
    code, out, _ = run("topic", "purge", "t", "--yes")
    assert (code, out.split()[-1]) == (0, "3")


def test_dag_show_lists_nodes_with_what_they_wait_for(service: Service, run: Run) -> None:
    node = {"key": "b", "item_id": "i", "state": "blocked", "topic": "t", "created_at": DAG["created_at"]}
    node["blocked_by"] = [{"kind": "node", "key": "a"}, {"kind": "external", "name": "approval"}, {"kind": "hold"}]
    service.reply = lambda _m, path, _b: {"items": [node], "next_cursor": None} if "/nodes" in path else DAG
    code, out, _ = run("dag", "show", "d1", "--nodes")
    assert code == 0
    assert "1 succeeded" in out
    assert "a, approval, hold" in out
    assert json.loads(run("dag", "show", "d1", "-o", "json")[1])["nodes"]["blocked"] == 2


def test_dag_submit_takes_a_file_and_refuses_what_is_none(service: Service, run: Run, tmp_path: Path) -> None:
    service.reply = lambda *_: DAG
    file = tmp_path / "dag.json"
    file.write_text(json.dumps({"name": "x", "nodes": [{"key": "a", "topic": "t"}]}))
    assert run("dag", "submit", str(file))[0] == 0
    assert service.asked("/dags")[0]["nodes"] == [{"key": "a", "topic": "t"}]
    file.write_text("[1]")
    assert run("dag", "submit", str(file))[0] == 2
    file.write_text("{")
    assert run("dag", "submit", str(file))[0] == 2
    code, _, err = run("dag", "submit", str(tmp_path / "missing"))
    assert code == 2
    assert "No such file" in err


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 1), ("cancelled", 1)])
def test_watch_ends_with_the_dag_and_its_verdict(service: Service, run: Run, state: str, code: int) -> None:
    states = ["running", "running", state, state, state]
    failed = {"key": "b", "item_id": "i", "state": "failed", "topic": "t", "created_at": DAG["created_at"]}

    def reply(_method: str, path: str, _body: Any) -> Any:
        if "/nodes" in path:
            return {"items": [{**failed, "error": "Traceback\nValueError: no"}], "next_cursor": None}
        return {**DAG, "state": states.pop(0)}

    service.reply = reply
    got, out, err = run("dag", "watch", "d1")
    assert (got, state in out) == (code, True)
    assert ("b failed: ValueError: no" in err) == (code == 1)


def test_events_are_printed_as_they_come_and_as_json_a_line(service: Service, run: Run) -> None:
    told = [
        {"id": "1", "kind": "dag", "state": "running", "paused": True},
        {"id": "2", "kind": "node", "key": "a\x1b[2J", "state": "released", "generation": 2},
        {"id": "3", "kind": "dag", "state": "succeeded"},
    ]
    events = [{"at": "2030-01-01T12:00:00.5Z", "dag": "d1", **event} for event in told]
    text = "retry: 1000\n\n" + "".join(f"id: {e['id']}\ndata: {json.dumps(e)}\n\n" for e in events)
    service.reply = lambda *_: httpx.Response(200, text=text, headers={"content-type": "text/event-stream"})
    code, out, _ = run("dag", "events", "d1", "--after", "0")
    assert code == 0
    assert service.calls[0][1].endswith("/dags/d1/events?after=0")
    assert [line.split(None, 2)[2] for line in out.splitlines()] == [
        "running    the DAG paused",
        "released   a?[2J generation 2",
        "succeeded  the DAG",
    ]
    code, out, _ = run("dag", "events", "d1", "-o", "json")
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["1", "2", "3"]


def test_cancel_of_nodes_leaves_the_dag(service: Service, run: Run) -> None:
    service.reply = lambda *_: {"results": [{"key": "a", "status": "cancelling"}]}
    code, out, _ = run("dag", "cancel", "d1", "a", "--reason", "no need")
    assert (code, out.split()) == (0, ["KEY", "STATUS", "a", "cancelling"])
    assert service.calls == [
        ("POST", "/v1/namespaces/default/dags/d1/nodes/cancel", {"nodes": ["a"], "reason": "no need"})
    ]


@pytest.mark.parametrize(
    ("words", "body"),
    [
        ([], {}),
        (["a", "b"], {"nodes": ["a", "b"]}),
        (["a", "--down"], {"from": ["a"]}),
        (["--all"], {"all": True}),
        (["a=b", "--payload", "a=b", '{"x": 1}'], {"nodes": ["a=b"], "payloads": {"a=b": {"x": 1}}}),
    ],
)
def test_retry_says_which_nodes(service: Service, run: Run, words: list[str], body: Any) -> None:
    service.reply = lambda *_: DAG
    code, _, _ = run("dag", "retry", "d1", *words)
    assert (code, service.asked("/retry")) == (0, [body])


def test_progress_is_a_live_line_on_a_terminal_and_few_lines_elsewhere() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    now = 0.0
    terminal, file = Terminal(), io.StringIO()
    shows = [output.Progress(out, clock=lambda: now) for out in (terminal, file)]
    for done in range(100):
        now += 0.1
        counts = {"total": 99, "succeeded": done, "blocked": 99 - done}
        dag = wire.Dag.model_validate({**DAG, "nodes": counts, "state": "succeeded" if done == 99 else "running"})
        for progress in shows:
            progress.update(dag)
    assert terminal.getvalue().count("\r") == 100
    assert "\n" not in terminal.getvalue()
    assert 5 <= file.getvalue().count("\n") <= 7
    assert "99/99" in file.getvalue().splitlines()[-1]
    assert "10.0 nodes/s" in terminal.getvalue()


@pytest.mark.parametrize("argv", [["--help"], ["dag", "--help"], ["dag", "run", "--help"], ["enqueue", "--help"]])
def test_help_teaches(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 0
    assert len(capsys.readouterr().out) > 300


@pytest.mark.parametrize("argv", [[], ["dag"], ["quotas"], ["operations"], ["dag", "-o", "json"]])
def test_a_name_that_needs_a_command_teaches_which_there_are(run: Run, argv: list[str]) -> None:
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert "commands:" in err and "examples:" in err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["dag", "sumbit", "f"], "headgate dag: there is no command 'sumbit'; did you mean submit?"),
        (["enqeue", "t"], "headgate: there is no command 'enqeue'; did you mean enqueue"),
        (["quotas", "zzz"], "headgate quotas: there is no command 'zzz'\n`headgate quotas --help`"),
    ],
)
def test_a_misspelt_command_is_told_what_was_meant(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith(said)


def test_a_misspelt_option_is_told_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["enqueue", "t", "1", "--delay-s", "3"])
    assert caught.value.code == 2
    assert "unrecognized arguments: --delay-s 3; did you mean --delay?" in capsys.readouterr().err


def test_a_dag_is_shown_without_what_goes_without_saying(service: Service, run: Run) -> None:
    made = {"key": "sdk-0123", "open": True, "finished_at": "2030-01-01T00:01:30Z", "priority": {"inherit": 0}}
    service.reply = lambda *_: {**DAG, **made}
    code, out, _ = run("dag", "show", "d1", "--dag-url", "http://dags/")
    shown = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert code == 0
    assert (shown["is"], shown["took"], shown["nodes"]) == ("open", "90 s", "3 total, 2 blocked, 1 succeeded")
    assert shown["page"] == "http://dags/ui#/default/dags/d1"
    assert not {"key", "held", "on_failure", "last_event_id", "priority"} & shown.keys()


def test_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"headgate {VERSION}\n"


def test_up_without_the_services_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "headgate_server", None)
    assert cli.main(["up"]) == 2
    assert 'pip install "headgate[server]"' in capsys.readouterr().err


def test_to_import_the_program_runs_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    """As a process that a program starts by `multiprocessing` does, and what lists a package's modules."""
    runpy.run_module("headgate.__main__", run_name="__mp_main__")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m headgate --help | true"
    found = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert found.stderr == ""


def test_no_service_at_all_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _delay_s: None)
    assert cli.main(["topics", "--queue-url", "http://127.0.0.1:9"]) == 5
    captured = capsys.readouterr()
    assert "cannot connect to the queue service at http://127.0.0.1:9" in captured.err
    assert captured.err.count("\n") == 1
    assert cli.main(["topics", "--queue-url", "localhost"]) == 2


def test_a_dag_is_shown_by_its_key(service: Service, run: Run) -> None:
    there: list[Any] = [{**DAG, "key": "order/77"}]
    service.reply = lambda _m, path, _b: {"items": there, "next_cursor": None} if "?" in path else there[0]
    assert json.loads(run("dag", "show", "--key", "order/77", "-o", "json")[1])["id"] == "d1"
    assert service.calls[0][1] == "/v1/namespaces/default/dags?key=order%2F77&limit=1000"
    assert json.loads(run("dag", "list", "--key", "order/77", "-o", "json")[1])[0]["key"] == "order/77"
    there.clear()
    code, _, err = run("dag", "show", "--key", "order/78")
    assert (code, "no DAG has the key 'order/78'" in err) == (3, True)


@pytest.mark.parametrize("named", [(), ("d1", "--key", "k")])
def test_a_dag_is_named_by_id_or_key_and_not_by_both(run: Run, named: tuple[str, ...]) -> None:
    code, _, err = run("dag", "show", *named)
    assert (code, "by its id or by --key" in err) == (2, True)


def test_a_submit_says_that_the_key_was_another_dags(service: Service, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "dag.json"
    file.write_text(json.dumps({"key": "order/77", "nodes": [{"key": "a", "topic": "t"}]}))
    for same, told in ((True, ""), (False, "a DAG of the key 'order/77' was there, made of something else")):
        service.reply = lambda *_, same=same: {**DAG, "existing": True, "same": same}
        code, _, err = run("dag", "submit", str(file))
        assert (code, err.startswith(told), bool(err)) == (0, True, not same)
