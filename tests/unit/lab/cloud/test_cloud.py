"""The conditions of the embedded cloud: faults, timings and switches."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from provisioner.lab.cloud import cloud
from provisioner.lab.cloud.cloud import Conditions


def test_every_mode_that_some_part_asks_for_is_known_and_explained_and_no_other() -> None:
    sources = [path.read_text(encoding="utf-8") for path in Path(cloud.__file__).parent.rglob("*.py")]
    asked = {mode for text in sources for mode in re.findall(r"strikes\(\s*\"([a-z_]+)\"", text, re.IGNORECASE)}
    by_a_variable = {"op_error", "op_gone", "op_stuck", "precondition", "abandoned", "deleted", "preemption"}
    by_a_variable |= {"recreated", "stopped", "clock_skew"}
    assert asked | by_a_variable == cloud.MODES
    explained = {mode for text in sources for mode in re.findall(r"^\* ``([a-z_]+)``: \S", text, re.MULTILINE)}
    assert explained >= cloud.MODES


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "the document: expected an object"),
        ({"fault": []}, "the document: unknown field 'fault'; known: faults, switches, timings"),
        ({"faults": {}}, "faults: expected a list"),
        ({"faults": ["x"]}, r"faults\[0\]: it: expected an object, got 'x'"),
        ({"faults": [{"mode": "quota"}, {"mode": "qota"}]}, r"faults\[1\]: mode: unknown mode 'qota'; known: .*quota"),
        ({"faults": [{"mode": "quota", "target": "["}]}, r"faults\[0\]: target: not a regular expression"),
        ({"faults": [{"mode": "quota", "rate": "1"}]}, r"faults\[0\]: rate: expected a number, got '1'"),
        ({"faults": [{"mode": "quota", "params": 3}]}, r"faults\[0\]: params: expected an object"),
        ({"timings": {"aks": {}}}, "timings: unknown field 'aks'"),
        ({"timings": {"gke": {"strat": 1}}}, "strat: unknown timing"),
    ],
)
def test_mistakes_in_conditions_are_named(document: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Conditions.parse(document)


def test_conditions_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text("faults: [{mode: quota, target: a, params: {limit: 1}}]\ntimings: {gke: {start: 1}}\n")
    conditions = Conditions.read(path)
    assert conditions.faults[0].params == {"limit": 1}
    assert conditions.gke is not None
    assert conditions.gke.start == (1.0, 1.0)
    assert conditions.mig is None


def test_a_file_of_conditions_that_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.yaml"):
        Conditions.read(tmp_path / "none.yaml")
