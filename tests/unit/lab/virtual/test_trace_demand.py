"""A recorded trace as the demand of a scenario."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provisioner.commands.cli import run
from provisioner.lab.trace import Event
from provisioner.lab.virtual.scenario_file import read
from provisioner.lab.virtual.trace_demand import levels_of
from provisioner.schema.validation import ConfigError


def asks(at: float, request: str, count: object, template: str = "T1") -> Event:
    document = {"template": {"templateId": template, "machineCount": count}}
    return Event(at, "requestMachines", document, request)


def gives(at: float, id_: str, *names: str) -> Event:
    return Event(at, "requestReturnMachines", {"machines": [{"name": name} for name in names]}, id_)


def lists(at: float, request: str, *names: str) -> Event:
    return Event(at, "getRequestStatus", {}, machines={request: names})


TRACE = [
    lists(100, "r0", "unknown"),
    asks(110, "r1", 10),
    asks(115, "r2", 4, "T2"),
    lists(120, "r1", "a", "b"),
    lists(120, "r2", "c"),
    gives(150, "b1", "a", "c"),
    gives(160, "b2", "a", "b"),
]


@pytest.mark.parametrize(
    ("events", "template", "levels"),
    [
        pytest.param(TRACE, None, ((10, 10), (15, 14), (50, 12), (60, 11)), id="requests add, returns take away"),
        pytest.param(TRACE, "T2", ((10, 0), (15, 4), (50, 3), (60, 3)), id="of one template"),
        pytest.param(TRACE, "T3", (), id="of a template without a request"),
        pytest.param([asks(0, "", 5), asks(1, "r", 2)], None, ((1, 2),), id="what was refused counts nothing"),
        pytest.param([asks(0, "r", 2), gives(1, "", "a")], None, ((0, 2),), id="nor does a return that was refused"),
        pytest.param([asks(0, "r", 1), gives(1, "b", "x", "y")], None, ((0, 1), (1, 0)), id="never below none"),
        pytest.param(
            [asks(0, "r", 3), gives(1, "b", "r-1")], "T1", ((0, 3), (1, 2)), id="a machine named by its request"
        ),
        pytest.param([asks(0, "r", "many")], None, (), id="a count that is none"),
        pytest.param([asks(5, "r", 1), asks(5, "s", 2)], None, ((0, 3),), id="two calls at once"),
    ],
)
def test_levels(events: list[Event], template: str | None, levels: tuple[tuple[float, int], ...]) -> None:
    assert levels_of(events, template) == levels


def line(at: float, command: str, document: object, output: object) -> str:
    return json.dumps({"time": at, "command": command, "input": document, "output": output}) + "\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    given = [{"name": "a"}, {"name": "b"}]
    (tmp_path / "day.jsonl").write_text(
        line(1000, "requestMachines", {"template": {"templateId": "T1", "machineCount": 3}}, {"requestId": "r"})
        + line(1240, "requestReturnMachines", {"machines": given}, {"requestId": "b"})
    )
    return tmp_path


def written(directory: Path, **demand: Any) -> Path:
    """Write a scenario file whose demand is a trace beside the file."""
    demands = [{"trace": "day.jsonl", **demand}, {"machines": 1, "at_minutes": 20}]
    scenario = {"about": "A day.", "hours": 0.5, "pools": {"a": {"boot_seconds": 20}}, "demand": demands}
    path = directory / "own.yaml"
    path.write_text(json.dumps(scenario))
    return path


def test_a_trace_is_wanted_as_it_was_recorded(trace: Path) -> None:
    scenario = read(written(trace, at_minutes=1))["own"]
    levels = [sum(demand.level(60 * minute) for demand in scenario.demand) for minute in (0, 1, 4, 5, 19, 20)]
    assert levels == [0, 3, 3, 1, 1, 2]


def test_a_scenario_with_a_trace_plays(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", str(written(trace)), "--seeds", "1", "--no-baselines", "--jobs", "1", "-o", "json"]
    assert run(arguments) == 0
    runs = json.loads(capsys.readouterr().out)["scenarios"]["own"]["controllers"]["provisioner"]["runs"]
    assert runs["1"]["measures"]["created"] == 4


@pytest.mark.parametrize(
    ("demand", "words"),
    [
        ({"trace": "none.jsonl"}, "own.demand.0.trace: DIR/none.jsonl: No such file or directory"),
        ({"trace": "own.yaml"}, "own.demand.0.trace: DIR/own.yaml: line 1: expected time, command and input of a call"),
        ({"trace": 3}, "own.demand.0.trace: expected a text, got 3"),
        ({"recorded": "T9"}, "own.demand.0.trace: day.jsonl asks for no machine of 'T9'"),
        ({"recorded": 3}, "own.demand.0.recorded: expected a text, got 3"),
        ({"machines": 3}, "own.demand.0.machines: unknown setting; there are 'trace', "),
        ({"template": "U"}, "own.demand.0.template: unknown template 'U'; there are 'T'"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_mistake_is_reported_with_its_place(trace: Path, demand: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(written(trace, **demand))
    assert f"  {words}" in str(caught.value).replace(str(trace), "DIR")


def test_levels_are_no_setting(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("{about: A, pools: {a: {}}, demand: [{machines: 1, levels: [[0, 1]]}]}")
    with pytest.raises(ConfigError, match=r"own\.demand\.0\.levels: unknown setting"):
        read(path)
