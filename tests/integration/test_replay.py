"""A recorded run played again: ids and machines of the replay take the place of the recorded ones."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from provisioner.commands.cli import run
from provisioner.hostfactory.trace import TraceError, read_trace
from provisioner.simulator.server import Simulator
from provisioner.tools.replay import LONGEST_WAIT, Replay, ScriptResult, loop_lives, run_script
from tests.conformance.stage import Case, Grid, names, stage
from tests.support.hostfactory.provider import SCRIPTS, HostFactory, requesting


@pytest.fixture
def cloud() -> Iterator[Simulator]:
    with stage() as simulator:
        yield simulator


def case(number: int) -> Case:
    """An instance with a namespace of its own."""
    return Case(number, "", lambda _: None)


def recorded(hf: Grid, trace: Path, name: str, document: object) -> Any:
    """A call that is recorded."""
    called = hf.run([str(SCRIPTS / f"{name}.sh"), "--record", str(trace), "-f", hf.command(name, document)[-1]])
    return called.document


def test_a_recorded_run_ends_the_same_in_another_place(
    tmp_path: Path, cloud: Simulator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    with Grid(tmp_path / "first", cloud, case(1)) as hf:
        recorded(hf, trace, "getAvailableTemplates", {})
        request = recorded(hf, trace, "requestMachines", requesting("T2", 3))["requestId"]
        hf.ended(request)
        machines = names(recorded(hf, trace, "getRequestStatus", {"requests": [{"requestId": request}]})["requests"][0])
        given = [{"name": name, "machineId": name} for name in machines[:2]]
        recorded(hf, trace, "getReturnRequests", {"machines": given})
        back = recorded(hf, trace, "requestReturnMachines", {"machines": given})["requestId"]
        hf.ended(back)
        recorded(hf, trace, "getRequestStatus", {"requests": [{"requestId": back}]})
    assert [event.command for event in read_trace(trace)] == [
        "getAvailableTemplates", "requestMachines", "getRequestStatus", "getReturnRequests", "requestReturnMachines",
        "getRequestStatus",
    ]  # fmt: skip
    with Grid(tmp_path / "second", cloud, case(2)) as hf:
        for name, value in hf.environment.items():
            monkeypatch.setenv(name, value)
        hf.cycles(1)
        assert run(["replay", str(trace)]) == 2
        assert f"{hf.state.path}: a loop runs there" in capsys.readouterr().err
        assert not hf.state.intent.exists(), "nothing was asked"
        assert run(["replay", str(trace), "--yes"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert (sum(report["calls"].values()), sum(report["refused"].values())) == (6, 0)
        assert report["unknown_machines"] == 0
        left = hf.until_cloud(lambda machines: len(machines) == 1, "running")
        assert not set(left) & set(machines), "names are never used twice"


def morgan_stanley(path: Path) -> Path:
    """A trace in the format of its hfreplay: only inputs count, of these five categories."""
    rows = [
        ("request", "aaaa", 100.0, "input", requesting("T2", 2)),
        ("request", "aaaa", 100.5, "output", {"requestId": "aaaa"}),
        ("request-status", "aaaa", 130.0, "input", {"requests": [{"requestId": "aaaa"}]}),
        ("pod", "aaaa-0", 131.0, "input", {"anything": 1}),
        ("return-request", "", 160.0, "input", {"machines": [{"name": "aaaa-0"}, {"name": "aaaa-1"}]}),
        ("return", "rrrr", 190.0, "input", {"machines": [{"name": "aaaa-1", "machineId": "a-uid"}, {"name": "x"}]}),
        ("template", "", 90.0, "input", {}),
    ]  # fmt: skip
    return events(path, *((*row[:4], json.dumps(row[4])) for row in rows))


def events(path: Path, *rows: tuple[object, ...]) -> Path:
    """A trace of these rows; a value has the type that it is given with."""
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE events (category TEXT, id TEXT, timestamp REAL, type TEXT, value)")
        database.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", rows)
    database.close()
    return path


def line(command: str, document: object, output: object = "", *, at: object = 1) -> str:
    """A call as ``--record`` writes it."""
    return json.dumps({"time": at, "command": command, "input": document, "output": output}) + "\n"


class Scripts:
    """Answers as the scripts do, and remembers what they were asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, command: str, document: dict[str, Any]) -> ScriptResult:
        self.asked.append((command, document))
        if command == "getRequestStatus":
            machines = [{"name": f"hf-new-{number}"} for number in range(2)]
            asked = [one for one in document.get("requests", ()) if isinstance(one, dict)]
            return ScriptResult(0, {"requests": [one | {"status": "complete", "machines": machines} for one in asked]})
        return ScriptResult(0, {"requestId": "new" if command == "requestMachines" else "ret-new"})


def test_morgan_stanley_s_trace_is_played_with_its_gaps(tmp_path: Path) -> None:
    waits: list[float] = []
    scripts = Scripts()
    replay = Replay(scripts, speed=10, longest_gap=2.5, wait=waits.append)
    replay.play(read_trace(morgan_stanley(tmp_path / "events.db")))
    assert waits == [1.0, 2.5, 2.5, 2.5]
    assert [command for command, _ in scripts.asked] == [
        "getAvailableTemplates", "requestMachines", "getRequestStatus", "getReturnRequests", "getRequestStatus",
        "requestReturnMachines",
    ]  # fmt: skip
    assert scripts.asked[2][1] == {"requests": [{"requestId": "new"}]}
    assert [one["name"] for one in scripts.asked[3][1]["machines"]] == ["hf-new-0", "hf-new-1"]
    assert scripts.asked[5][1]["machines"] == [{"name": "hf-new-1", "machineId": "hf-new-1"}, {"name": "x"}]
    assert replay.report()["unknown_machines"] == 1


def test_a_call_that_is_refused_is_recorded_with_what_was_printed(tmp_path: Path) -> None:
    hf, trace = HostFactory(tmp_path), tmp_path / "trace"
    script, *call = hf.command("requestMachines", requesting("none"))
    refusal = hf.run([script, "--record", str(trace), *call]).refusal
    entry = json.loads(trace.read_text())
    assert (entry["command"], entry["input"], entry["output"]) == ("requestMachines", requesting("none"), refusal)


@pytest.mark.parametrize("options", [["--speed", "nan"], ["--speed", "0"], ["--longest-gap", "nan"]])
def test_a_pace_that_is_none_is_wrong_usage(tmp_path: Path, options: list[str]) -> None:
    trace = tmp_path / "trace"
    trace.write_text("".join(line("getAvailableTemplates", {}, at=at) for at in (1.0, 2.0)))
    assert run(["replay", str(trace), *options]) == 2


def test_a_gap_is_never_longer_than_a_process_can_wait(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text("".join(line("getAvailableTemplates", {}, at=at) for at in (0.0, 1e300)))
    waits: list[float] = []
    Replay(Scripts(), wait=waits.append).play(read_trace(trace))
    assert waits == [LONGEST_WAIT]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "line 1: not JSON"),
        (b"[]\n", "line 1: expected an object"),
        (b'{"time": 1, "command": "rm", "input": {}}\n', "line 1: expected time, command and input"),
        (line("requestMachines", {}, at=float("nan")).encode(), "line 1: expected the time as a finite number .* nan"),
        (line("requestMachines", {}, at=10**400).encode(), "line 1: expected the time as a finite number"),
        pytest.param(
            b'{"time": 1, "command": "requestMachines", "input": {"x": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}}",
            "line 1: not JSON: maximum recursion depth",
            id="nested too deeply",
        ),
        (b"SQLite format 3\0" + b"x" * 100, "file is not a database"),
    ],
)
def test_a_trace_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    trace = tmp_path / "trace"
    trace.write_bytes(content)
    with pytest.raises(TraceError, match=words):
        read_trace(trace)
    assert run(["replay", str(trace)]) == 2
    assert run(["replay", str(tmp_path / "missing")]) == 2


@pytest.mark.parametrize(
    ("when", "value", "words"),
    [
        (None, "{}", "expected the time as a finite number of seconds, got None"),
        ("2024-01-01", "{}", "expected the time as a finite number of seconds, got '2024-01-01'"),
        (1.0, 5, "expected a JSON text, got 5"),
        (1.0, 0, "expected a JSON text, got 0"),
        (1.0, b"\xff{", "not JSON"),
    ],
)
def test_a_row_that_cannot_be_understood_is_named(tmp_path: Path, when: object, value: object, words: str) -> None:
    trace = events(tmp_path / "events.db", ("request", "aaaa", when, "input", value))
    with pytest.raises(TraceError, match=f"events.db: request event aaaa: {words}"):
        read_trace(trace)
    assert run(["replay", str(trace)]) == 2


@pytest.mark.parametrize(
    ("requests", "machines"),
    [
        ({"requestId": "r", "machines": {"name": "m"}}, {"r": ("m",)}),
        ([None, {"requestId": ["r"]}], {}),
        ([{"requestId": "r", "machines": [{"status": "x"}, 5, {"name": "m"}]}], {"r": ("m",)}),
        ([{"requestId": "r", "machines": 5}], {"r": ()}),
        ("none", {}),
    ],
)
def test_an_answer_teaches_what_it_names(tmp_path: Path, requests: object, machines: dict[str, tuple[str]]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(line("getRequestStatus", {"requests": []}, {"requests": requests}))
    assert read_trace(trace)[0].machines == machines


@pytest.mark.parametrize(
    ("command", "document", "played"),
    [
        ("getRequestStatus", {"requests": "abc"}, {"requests": "abc"}),
        ("getRequestStatus", {}, {}),
        ("getRequestStatus", {"requests": {}}, {"requests": {}}),
        ("getRequestStatus", {"requests": {"requestId": "old"}}, {"requests": {"requestId": "new"}}),
        ("getRequestStatus", {"requests": [None, {}, {"requestId": 5}, {"requestId": "old"}]},
         {"requests": [None, {}, {"requestId": 5}, {"requestId": "new"}]}),
        ("requestReturnMachines", {"machines": 5}, {"machines": 5}),
        ("getReturnRequests", {"machines": None}, {"machines": None}),
        ("requestReturnMachines", {"machines": {"name": "m1"}}, {"machines": {"name": "hf-new-1"}}),
        ("requestReturnMachines", {"machines": ["m1", {}, {"name": "m1", "machineId": 5}]},
         {"machines": ["m1", {}, {"name": "hf-new-1", "machineId": 5}]}),
    ],
)  # fmt: skip
def test_a_call_keeps_its_form_whether_it_was_refused_or_not(
    tmp_path: Path, command: str, document: object, played: object
) -> None:
    trace = tmp_path / "trace.jsonl"
    answer = {"requests": [{"requestId": "old", "machines": [{"name": "m0"}, {"name": "m1"}]}]}
    trace.write_text(
        line("requestMachines", requesting("T2", 2), {"requestId": "old"})
        + line("getRequestStatus", {"requests": [{"requestId": "old"}]}, answer)
        + line(command, document, "refused")
    )
    scripts = Scripts()
    replay = Replay(scripts, wait=lambda _: None)
    replay.play(read_trace(trace))
    assert scripts.asked[-1] == (command, played)
    assert replay.report()["unknown_machines"] == 0


def test_a_refused_call_counts(tmp_path: Path, cloud: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = Grid(tmp_path, cloud, Case(3, "", lambda _: None, loop=False))
    for name, value in hf.environment.items():
        monkeypatch.setenv(name, value)
    assert run_script("requestMachines", requesting("T0", 1)) == ScriptResult(1, {})
    trace = tmp_path / "trace.jsonl"
    trace.write_text(line("requestMachines", requesting("T0", 1), "no"))
    assert run(["replay", str(trace)]) == 1


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostFactory:
    """A provider instance without a loop."""
    hf = HostFactory(tmp_path)
    for name, value in hf.environment.items():
        monkeypatch.setenv(name, value)
    return hf


def test_a_loop_is_known_by_its_lock_or_its_heartbeat_until_it_has_signed_off(silent: HostFactory) -> None:
    state = silent.state
    assert not loop_lives(state), "nothing ever ran there"
    assert not Path(state.loop_lock.path).exists(), "looking makes no file"
    assert state.loop_lock.acquire(0)
    assert loop_lives(state), "it has begun"
    state.loop_lock.raise_epoch()
    state.loop_lock.release()
    assert not loop_lives(state)
    state.heartbeat.touch()
    assert loop_lives(state), "it beats on a host whose locks are not seen here"
    assert state.loop_lock.acquire(0)
    state.loop_lock.sign_off()
    state.loop_lock.release()
    assert not loop_lives(state), "it has just ended"


def test_where_no_loop_runs_nothing_is_asked(silent: HostFactory, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(line("requestMachines", requesting("T1", 1)))
    assert run(["replay", str(trace)]) == 0
    assert len(silent.state.intent.read().requests) == 1


@pytest.mark.parametrize("form", ["text", "rows", "rows of something else"])
def test_a_trace_without_calls_is_no_success(
    silent: HostFactory, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace"
    if form == "text":
        trace.write_text("")
    else:
        events(trace, *([("pod", "a", 1.0, "input", "{}")] if form.endswith("else") else []))
    assert run(["replay", str(trace)]) == 2
    assert f"{trace}: holds no call of HostFactory's" in capsys.readouterr().err


def test_rows_of_one_second_come_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    commands = [("return", "r"), ("request", "q"), ("template", "t"), ("request", "a"), ("return", "b")]
    trace = events(tmp_path / "events.db", *((name, id_, 7.0, "input", "{}") for name, id_ in commands))
    with closing(sqlite3.connect(trace)) as database:
        database.execute("CREATE INDEX by_category ON events (type, category, id, timestamp, value)")
        database.commit()
    assert [event.request for event in read_trace(trace)] == [id_ for _, id_ in commands]
