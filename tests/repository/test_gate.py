"""The gate leaves out a stage only if it passed before and its inputs have not changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gate import __main__ as gate
from tests.gate.results import Result, read
from tests.gate.stages import STAGES, Tree, select

EVERY = {stage.name for stage in STAGES}
ALWAYS = {stage.name for stage in STAGES if stage.is_always_run}


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree()


@pytest.mark.parametrize(
    ("changed", "needed"),
    [
        pytest.param([], set(), id="no change needs no stage"),
        pytest.param(["CHANGELOG.md", ".ci/complete-run.json"], set(), id="notes need no stage"),
        pytest.param(["tests/chaos/test_chaos.py"], {"chaos"}, id="a stage needs its own test code"),
        pytest.param(["provisioner/state/locks.py"], {"slow", "kube", "vm", "crowd", "chaos"}, id="processes load all"),
        pytest.param(["provisioner/backends/mig/api.py"], {"flips"}, id="a kind that is loaded by name"),
        pytest.param(["provisioner/backends/ray/api.py"], {"ray"}, id="a kind that only its own stage tries"),
        pytest.param(["tests/ray/head.py"], {"ray"}, id="a stage needs what its own tests import"),
        pytest.param(["provisioner/lab/cloud/compute/gone.py"], {"flips"}, id="a deleted module is its neighbours'"),
        pytest.param(["provisioner/telemetry/templates/new.html"], {"slow"}, id="data is the modules' beside it"),
        pytest.param(["deploy/terraform/main.tf"], {"checkov", "slow", "kube", "vm"}, id="what no import shows"),
        pytest.param(["setup.cfg"], EVERY, id="dependencies are everybody's"),
        pytest.param(["provisioner/model/enums.py"], EVERY, id="the model is everybody's"),
        pytest.param(["tests/conftest.py"], EVERY, id="what each test shares"),
        pytest.param(["unheard-of.txt"], EVERY, id="an unknown file is everybody's"),
    ],
)
def test_a_change_needs_the_stages_that_read_it(tree: Tree, changed: list[str], needed: set[str]) -> None:
    selection = select(changed, EVERY, tree)

    assert needed <= selection.run.keys()
    if needed in ({"chaos"}, set()):
        assert selection.run.keys() == ALWAYS | needed
    assert selection.run.keys() | selection.left.keys() == EVERY


def test_a_stage_that_did_not_pass_runs_again(tree: Tree) -> None:
    assert "did not pass" in select([], EVERY - {"vm"}, tree).run["vm"]


def test_each_stage_runs_without_a_record(tree: Tree) -> None:
    assert select(None, set(), tree, "no record").run == dict.fromkeys((stage.name for stage in STAGES), "no record")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(None, "no .ci/complete-run.json", id="no file"),
        pytest.param("{", "is not a record", id="a file that is cut off"),
        pytest.param("{}", "is not a record", id="a file without a commit"),
        pytest.param('{"commit": "0123456789", "stages": {}}', "unknown here", id="a commit that the clone lacks"),
    ],
)
def test_a_record_that_cannot_be_used_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, message: str
) -> None:
    file = gate.ROOT / ".ci" / f"{tmp_path.name}.json"
    monkeypatch.setattr(gate, "RECORD", file)
    try:
        if text is not None:
            file.write_text(text)
        changed, _, unknown_message = gate.recorded()
    finally:
        file.unlink(missing_ok=True)

    assert changed is None
    assert message in unknown_message.replace(file.name, "complete-run.json")


REPORT = """<testsuites><testsuite>
<testcase classname="c" name="fine"/>
<testcase classname="c" name="broken"><failure message="no"/></testcase>
<testcase classname="c" name="torn"><error message="no"/></testcase>
<testcase classname="c" name="left"><skipped message="{reason}"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("reason", "require_all", "is_green"),
    [
        pytest.param("needs gcloud", False, True, id="what CI cannot install is accepted"),
        pytest.param("needs gcloud", True, False, id="unless everything is required"),
        pytest.param("Windows only", True, True, id="what no machine avoids is accepted always"),
        pytest.param("needs promtool (Debian package prometheus)", False, False, id="what CI installs is not accepted"),
    ],
)
def test_a_skip_is_accepted_only_for_what_cannot_be_installed(
    tmp_path: Path, reason: str, require_all: bool, is_green: bool
) -> None:
    report, again = tmp_path / "report.xml", tmp_path / "again.json"
    report.write_text(REPORT.format(reason=reason))
    again.write_text(json.dumps({"c::fine": "AssertionError: late"}))

    result = read(Result(True, 1.0), report, again, require_all=require_all)

    assert (result.passed, result.failed, result.skipped.total(), result.is_green) == (1, 2, 1, is_green)
    assert result.record()["passed_only_when_run_again"] == {"c::fine": "AssertionError: late"}
