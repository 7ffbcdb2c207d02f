"""Tests of Slurm's three programs: their requests, returns and records, calls that are repeated, and refusals."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hf_scripts import commands, slurm_programs
from provisioner.hostfactory import slurm_file
from provisioner.state.directory import SLURM_NODES_FILE, StateDir
from provisioner.state.errors import StateError
from provisioner.state.intent_file import IntentStore
from provisioner.state.kube.shards import PART
from provisioner.state.slurm_nodes import NodeRecord, SlurmNodes
from tests.support.hostfactory.in_process import Here


class Slurm(Here):
    """A provider instance whose caller is Slurm."""

    def __init__(self, directory: Path, capture: pytest.CaptureFixture[str]) -> None:
        super().__init__(directory, capture)
        (self.conf / slurm_file.FILE).write_text(json.dumps({"nodes": {"c[1-9]": "T1"}, "partitions": {"big": "T2"}}))
        self.records = SlurmNodes(str(self.work / SLURM_NODES_FILE))

    def program(self, name: str, *arguments: str, **environment: str) -> tuple[int, str]:
        """Return exit code and stdout of one of Slurm's programs."""
        document = slurm_programs.make_document([*arguments])
        code = commands.run(name, document, self.environment | environment, slurm_programs.PROGRAMS)
        return code, self.capture.readouterr().out.removesuffix("\n")

    def requests(self) -> list[tuple[str, int, str]]:
        """Return template, number and account of each recorded request."""
        if not self.state.intent.exists():
            return []
        return [(one.template, one.count, one.rc_account) for one in self.state.intent.read().requests.values()]

    def have_machine(self, node: str, machine: str) -> None:
        """Note the machine of a node, as the demand service does."""
        before = self.records.read()
        self.records.change(before, before | {node: before[node]._replace(machine=machine)})


@pytest.fixture
def slurm(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Slurm:
    return Slurm(tmp_path, capfd)


def resume_file(directory: Path, *jobs: dict[str, Any]) -> str:
    path = directory / "resume.json"
    path.write_text(json.dumps({"all_nodes_resume": "ignored", "jobs": jobs}))
    return str(path)


def test_a_resume_records_one_request_for_each_template(slurm: Slurm, tmp_path: Path) -> None:
    file = resume_file(
        tmp_path,
        {"partition": "grid", "nodes_resume": "c[1-2],x1"},
        {"partition": "big", "nodes_resume": "x[1-2]", "features": None},
    )
    assert slurm.program("slurm_resume", "c[1-2],x[1-2]", SLURM_RESUME_FILE=file)[0] == 0
    assert slurm.requests() == [("T1", 2, "slurm"), ("T2", 2, "slurm")]
    small, big = slurm.state.intent.read().requests
    assert slurm.records.read() == {
        "c1": NodeRecord(small),
        "c2": NodeRecord(small),
        "x1": NodeRecord(big),
        "x2": NodeRecord(big),
    }
    line = slurm.log[-1]
    assert (line["severity"], line["command"], line["hostlists"]) == ("INFO", "slurm_resume", ["c[1-2],x[1-2]"])
    assert line["requests"] == {small: "T1", big: "T2"}


def test_a_repeated_resume_requests_only_what_is_new(slurm: Slurm) -> None:
    for hostlist in ("c[1-2]", "c[1-2]", "c[2-3]"):
        assert slurm.program("slurm_resume", hostlist)[0] == 0
    assert slurm.requests() == [("T1", 2, "slurm"), ("T1", 1, "slurm")]


def test_a_request_has_no_more_machines_than_one_shard_serves(slurm: Slurm) -> None:
    """A request must not have more machines than one shard serves. If it spanned shards, intent would record only its
    parts, and not the id that the program gets."""
    (slurm.conf / slurm_file.FILE).write_text('{"nodes": {"c[1-250]": "T1"}}')
    assert slurm.program("slurm_resume", "c[1-250]")[0] == 0
    assert [count for _, count, _ in slurm.requests()] == [PART, PART, 50]
    assert set(Counter(record.request for record in slurm.records.read().values()).values()) == {PART, 50}


def test_a_node_without_a_template_does_not_hinder_the_others(slurm: Slurm) -> None:
    assert slurm.program("slurm_resume", "c1,x1") == (1, "slurm_resume: slurm.json: has no template for node x1")
    assert list(slurm.records.read()) == ["c1"]
    (refused,) = slurm.state.refused_calls()
    assert (refused.script, refused.recent, "node x1" in refused.text) == ("slurm_resume", 1, True)
    assert slurm.log[-1]["problem"] == "slurm_resume: slurm.json: has no template for node x1"


def test_a_refused_request_leaves_no_record(slurm: Slurm) -> None:
    (slurm.conf / slurm_file.FILE).write_text('{"nodes": {"c1": "T0", "c2": "T1", "c3": "gone"}}')
    code, problem = slurm.program("slurm_resume", "c[1-2]")
    assert code == 1
    assert 'nodes.c1: expected one of T1, T2, got "T0"' in problem, "its maxNumber is 0"
    assert 'nodes.c3: expected one of T1, T2, got "gone"' in problem
    assert list(slurm.records.read()) == ["c2"]


def test_the_resume_file_of_slurm_22_05_names_no_partition(slurm: Slurm, tmp_path: Path) -> None:
    file = resume_file(tmp_path, {"job_id": 1, "nodes": "c1,x1"})
    problem = "slurm_resume: slurm.json: has no template for node x1"
    assert slurm.program("slurm_resume", "c1,x1", SLURM_RESUME_FILE=file) == (1, problem)
    assert slurm.requests() == [("T1", 1, "slurm")]


@pytest.mark.parametrize(
    "content", ["", "[]", '{"jobs": [{"nodes_resume": "x1"}]}', '{"jobs": 3}', '{"jobs": [3]}', "{"]
)
def test_an_unusable_resume_file_is_reported_and_the_known_nodes_are_served(
    slurm: Slurm, tmp_path: Path, content: str
) -> None:
    (tmp_path / "resume.json").write_text(content)
    code, problem = slurm.program("slurm_resume", "c1", SLURM_RESUME_FILE=str(tmp_path / "resume.json"))
    assert (code, problem.split(": ")[1]) == (1, "SLURM_RESUME_FILE")
    assert slurm.requests() == [("T1", 1, "slurm")]


def test_a_partition_of_another_form_hinders_no_node(slurm: Slurm, tmp_path: Path) -> None:
    file = resume_file(
        tmp_path, {"partition": ["big"], "nodes_resume": "x1"}, {"partition": "big", "nodes_resume": "x2"}
    )
    code, problem = slurm.program("slurm_resume", "c1,x[1-2]", SLURM_RESUME_FILE=file)
    assert (code, problem) == (1, "slurm_resume: slurm.json: has no template for node x1")
    assert slurm.requests() == [("T1", 1, "slurm"), ("T2", 1, "slurm")]


@pytest.mark.parametrize("program", ["slurm_suspend", "slurm_resume_fail"])
def test_a_suspend_returns_the_machines_once(slurm: Slurm, program: str) -> None:
    slurm.program("slurm_resume", "c[1-3]")
    slurm.have_machine("c1", "hf-aaaaaaaaaa-000000")
    assert slurm.program(program, "c[1-2]") == (0, '["hf-aaaaaaaaaa-000000"]')
    assert slurm.program(program, "c[1-2]") == (0, "[]")
    assert list(slurm.recorded()[1].values()) == [("hf-aaaaaaaaaa-000000",)]
    assert list(slurm.records.read()) == ["c3"]


def test_a_resume_after_a_suspend_requests_again(slurm: Slurm) -> None:
    for program in ("slurm_resume", "slurm_suspend", "slurm_resume"):
        assert slurm.program(program, "c1")[0] == 0
    assert slurm.requests() == [("T1", 1, "slurm")] * 2


def test_a_return_that_cannot_be_recorded_keeps_the_records(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.program("slurm_resume", "c1")
    slurm.have_machine("c1", "hf-aaaaaaaaaa-000000")

    def refuse(*_: object, **__: object) -> None:
        raise StateError("the disk is full")

    monkeypatch.setattr(StateDir, "record_return", refuse)
    assert slurm.program("slurm_suspend", "c1") == (1, "the disk is full")
    assert slurm.records.read()["c1"].machine == "hf-aaaaaaaaaa-000000"


def test_a_crash_after_the_request_leaves_no_half_record(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    add = IntentStore.add

    def crash(self: IntentStore, *arguments: Any, **more: Any) -> None:
        add(self, *arguments, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(IntentStore, "add", crash)
    with pytest.raises(KeyboardInterrupt):
        slurm.program("slurm_resume", "c1")
    assert slurm.records.read() == {}
    monkeypatch.setattr(IntentStore, "add", add)
    assert slurm.program("slurm_resume", "c1")[0] == 0
    assert list(slurm.records.read()) == ["c1"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "expected one argument, a hostlist: not enough values to unpack (expected 1, got 0)"),
        (["c1", "c2"], "expected one argument, a hostlist: too many values to unpack (expected 1)"),
        (["c["], "expected one argument, a hostlist: 'c[': 'c[' is no name of nodes"),
    ],
)
def test_a_wrong_call_records_nothing(slurm: Slurm, arguments: list[str], problem: str) -> None:
    assert slurm.program("slurm_resume", *arguments) == (1, problem)
    assert slurm.requests() == []


def test_a_missing_file_and_a_missing_environment_are_named(slurm: Slurm) -> None:
    (slurm.conf / slurm_file.FILE).unlink()
    code, problem = slurm.program("slurm_resume", "c1")
    assert code == 1
    assert slurm_file.FILE in problem
    assert slurm.program("slurm_suspend", "c1", HF_PROVIDER_WORKDIR="") == (
        1,
        "HF_PROVIDER_WORKDIR: is not set, nor HF_WORKDIR, HF_TOP or PRO_DATA_DIR",
    )
