"""The hundred cases of the conformance checklist of the HostFactory interface, each by its number.

By default, the scripts' commands run in this process, on the embedded cloud. Cases about processes start the scripts as
HostFactory does. The slow tests play every case in this way too. Every answer passes its schema.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hf_scripts import commands
from provisioner.lab.cloud.compute.settings import Switches
from provisioner.lab.cloud.server import Simulator
from tests.conformance import life, reclaims, requests, returns, status, templates, transport
from tests.conformance.kube_stage import KubeGrid
from tests.conformance.stage import MIG_CASES, Case, Grid, stage
from tests.support.clouds.switches import FLIPS
from tests.support.hostfactory.in_process import InProcess
from tests.support.hostfactory.provider import requesting

PARTS = (transport, templates, requests, status, returns, reclaims, life)
PLAYED = [case for part in PARTS for case in part.CASES]


REQUEST, POLL, RETURN = "requestMachines", "getRequestStatus", "requestReturnMachines"
COUNT = "template.machineCount: "
WHOLE = COUNT + "expected a whole number from 1 to 100000, got "


class Refused(NamedTuple):
    """A document that a command refuses: exit 1, one line that names the file, the place in it and the value."""

    number: int
    command: str
    document: object
    words: str
    """The rest of the line after the file's name."""


REFUSED = [
    Refused(35, REQUEST, requesting("T9"), 'template.templateId: expected one of T1, T2, T0, got "T9"'),
    Refused(36, REQUEST, requesting("T1", 0), WHOLE + "0"),
    Refused(36, REQUEST, requesting("T1", -1), WHOLE + "-1"),
    Refused(36, REQUEST, requesting("T1", 1.5), WHOLE + "1.5"),
    Refused(36, REQUEST, requesting("T1", "abc"), WHOLE + '"abc"'),
    Refused(36, REQUEST, requesting("T1", None), WHOLE + "null"),
    Refused(36, REQUEST, {"template": {"templateId": "T1"}}, COUNT + "is missing"),
    Refused(38, REQUEST, {}, "template: is missing"),
    Refused(38, REQUEST, {"template": "T1"}, 'template: expected an object, got "T1"'),
    Refused(38, REQUEST, requesting(""), 'template.templateId: expected a text, got ""'),
    Refused(
        41, REQUEST, requesting("T0", 1), "template.templateId: maxNumber of T0 is 0, so no machine may be requested"
    ),
    Refused(62, POLL, {"requests": []}, "requests: the list is empty"),
    Refused(62, POLL, {}, "requests: is missing"),
    Refused(62, POLL, {"requests": [{}]}, "requests[0].requestId: is missing"),
    Refused(62, POLL, {"requests": {"requestId": None}}, "requests.requestId: expected a text, got null"),
    Refused(62, POLL, {"requests": [{"requestId": 7}]}, "requests[0].requestId: expected a text, got 7"),
    Refused(79, RETURN, {"machines": []}, "machines: the list is empty"),
    Refused(79, RETURN, {}, "machines: is missing"),
    Refused(79, RETURN, {"machines": [{"name": "a"}, {}]}, "machines[1]: name and machineId are missing"),
]
"""The refused documents, one line each."""


ABOUT_FILES = {17, 68, 89, 98}
"""Cases that damage, remove or write files of the state."""


def _named(number: int, condition: str) -> str:
    """Return a test's id. Replace the arrow, because pytest would print it as an escape sequence."""
    return f"{number:03d}: {condition}".replace("→", "->")


@pytest.fixture
def cloud() -> Iterator[Simulator]:
    """Yield a new cloud for each run of a case. A case needs several clouds, because it runs in several ways, and again
    after a failure."""
    with stage() as simulator:
        yield simulator


def _cases(cases: Iterable[Case], *marks: pytest.MarkDecorator) -> list[Any]:
    return [pytest.param(case, id=_named(case.number, case.condition), marks=marks) for case in cases]


@pytest.mark.parametrize("case", _cases(case for case in PLAYED if not case.slow))
def test_case(case: Case, cloud: Simulator, tmp_path: Path) -> None:
    with Grid(tmp_path, cloud, case) as hf:
        case.play(hf)


@pytest.mark.parametrize("case", _cases((case for case in PLAYED if case.slow or not case.processes), pytest.mark.slow))
def test_case_as_processes(case: Case, cloud: Simulator, tmp_path: Path) -> None:
    with Grid(tmp_path, cloud, replace(case, processes=True)) as hf:
        case.play(hf)


@pytest.mark.flips
@pytest.mark.parametrize("switches", FLIPS, indirect=True)
@pytest.mark.parametrize("case", _cases(case for case in PLAYED if case.number in MIG_CASES))
def test_case_with_undocumented_behaviours_flipped(case: Case, switches: Switches, tmp_path: Path) -> None:
    with stage() as cloud, Grid(tmp_path, cloud, case) as hf:
        assert cloud.call(lambda world: world.groups.switches) == switches
        case.play(hf)


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: _named(row.number, f"{row.words} → exit 1"))
@pytest.mark.parametrize(
    "as_processes", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["in this process", "as processes"]
)
def test_case_refused(row: Refused, as_processes: bool, tmp_path: Path) -> None:
    hf = InProcess(tmp_path)
    hf.as_processes = as_processes
    assert hf.run(hf.command(row.command, row.document)).refusal == f"{hf.input}: {row.words}"
    assert list(hf.work.iterdir()) == [], "nothing is recorded"


def test_every_case_of_the_checklist_is_here() -> None:
    played = Counter(case.number for case in PLAYED)
    assert set(played.values()) == {1}
    assert sorted({*played, *(row.number for row in REFUSED)}) == list(range(1, 101))


KEPT_ANYWHERE = [case for case in PLAYED if not (case.slow or case.processes or case.number in ABOUT_FILES)]


@pytest.mark.slow
@pytest.mark.parametrize("case", _cases(KEPT_ANYWHERE))
def test_case_with_the_state_in_kubernetes(
    case: Case, cloud: Simulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with KubeGrid(tmp_path, cloud, case) as hf:
        monkeypatch.setattr(commands, "open_script_state", hf.script_state)
        case.play(hf)
