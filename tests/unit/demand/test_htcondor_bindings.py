"""The program that queries HTCondor by the Python bindings htcondor2. The bindings' modules are stand-ins here;
``tests/schedulers`` has the real classes."""

from __future__ import annotations

import sys
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from provisioner.demand.htcondor_bindings import main


class Value(IntEnum):
    """A stand-in for classad2.Value. Its values are of an integer type, but must not be used as numbers."""

    Error = 1
    Undefined = 2


class Ad(dict[str, Any]):
    def eval(self, name: str) -> Any:
        return self[name]

    def externalRefs(self, expression: Any) -> list[str]:
        return ["JobStatus", "Owner"]


class Schedd:
    """A stand-in for a schedd. It records the attributes that each query asks for."""

    groups: ClassVar[list[Ad]] = []
    idle = 0
    asked: ClassVar[list[list[str]]] = []

    def __init__(self, location: Ad) -> None:
        pass

    def query(self, constraint: str, projection: Any = (), opts: Any = None) -> list[Ad]:
        self.asked.append([*projection])
        return self.groups if opts == "GroupBy" else [Ad(Idle=self.idle)]


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = SimpleNamespace(
        locateAll=lambda _: [Ad(Name="ap1")], query=lambda *_: [Ad(HFMachine="hf-a-0", Cpus=4, State=Value.Undefined)]
    )
    htcondor2 = SimpleNamespace(
        Collector=lambda pool: collector,
        Schedd=Schedd,
        AdType=SimpleNamespace(Startd="Startd"),
        DaemonType=SimpleNamespace(Schedd="Schedd"),
        QueryOpt=SimpleNamespace(GroupBy="GroupBy", SummaryOnly="SummaryOnly"),
    )
    monkeypatch.setitem(sys.modules, "htcondor2", htcondor2)
    monkeypatch.setitem(sys.modules, "classad2", SimpleNamespace(ClassAd=Ad, ExprTree=str))
    monkeypatch.setattr(Schedd, "asked", [])


def has(monkeypatch: pytest.MonkeyPatch, idle: int, *groups: Ad) -> None:
    monkeypatch.setattr(Schedd, "idle", idle)
    monkeypatch.setattr(Schedd, "groups", [*groups])


def test_groups_are_printed_and_the_constraint_is_grouped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    has(monkeypatch, 20, Ad(JobCount=20, RequestCpus=2))
    assert main(["jobs", "", "ap1,ap1", "JobStatus == 1", "JobCount", "RequestCpus", "RequestGPUs"]) == 0
    assert capsys.readouterr().out == "20 2 undefined\n"
    assert Schedd.asked[0] == ["JobStatus", "Owner", "RequestCpus", "RequestGPUs"]


@pytest.mark.parametrize(("groups", "idle", "code"), [(95, 100, 0), (94, 100, 1), (100, 94, 1), (0, 1, 1), (0, 0, 0)])
def test_groups_and_summary_may_differ_by_a_twentieth(
    monkeypatch: pytest.MonkeyPatch, groups: int, idle: int, code: int
) -> None:
    has(monkeypatch, idle, Ad(JobCount=groups))
    assert main(["jobs", "", "", "JobStatus == 1", "JobCount"]) == code


def test_an_unknown_schedd_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    has(monkeypatch, 1, Ad(JobCount=1))
    assert main(["jobs", "", "ap1,ap9", "JobStatus == 1", "JobCount"]) == 1
    assert "does not know the schedd ap9" in capsys.readouterr().err


def test_slots_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slots", "cm", "", "HFMachine =!= undefined", "HFMachine", "Cpus", "State"]) == 0
    assert capsys.readouterr().out == "hf-a-0 4 undefined\n"


def test_a_missing_package_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "htcondor2", None)
    assert main(["slots", "", "", "HFMachine =!= undefined", "HFMachine"]) == 1
    assert "pip install 'htcondor'" in capsys.readouterr().err
