"""Steps of the demand service on a state of its own: what it finds again, counts, requests and returns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from provisioner.demand.service import ACCOUNT, MOST_UNFIT, DemandService, PreviewedCalls, read_shape
from provisioner.demand.sources import Reading, Shape, SourceError
from provisioner.hostfactory import Answer
from provisioner.hostfactory.script_calls import HostFactory, ScriptFailed
from provisioner.hostfactory.templates import Template
from provisioner.model import Intent, Request
from provisioner.names import NO_TEMPLATE
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateUnreachable
from provisioner.state.kube import objects
from provisioner.state.kube.shards import PART, ShardedScriptState
from provisioner.state.kube.state import KubeState
from tests.support.kube_state_server import MemoryApiServer, ObjectServer
from tests.unit.demand.wishes import Said, demand

SIZE = {"type": ("String", "X86_64"), "ncpus": ("Numeric", "4"), "ncores": ("Numeric", "1"), "nram": ("Numeric", "1")}
AT_ONCE = {"fall_after_seconds": 0.0, "minimum_age_seconds": 0.0, "fall_share": 1.0, "rise_at_once": 1000}
POOLS = {"Small": ("a", "b", "c"), "Large": ("b",)}


class Scripts(HostFactory):
    """The scripts on a state of files or shards, and their refusals by template."""

    def __init__(self, state: Any) -> None:
        super().__init__({})
        self.state, self.refused, self.made = state, set[str](), list[tuple[str, int]]()

    def call(self, script: str, document: Any) -> dict[str, Any]:
        if script == "requestMachines":
            template, count = document["template"]["templateId"], document["template"]["machineCount"]
            if template in self.refused:
                raise ScriptFailed(f"{template} is refused")
            self.made.append((template, count))
            account = document["rc_account"]
            made = self.state.record_request("demo", template, count, created_wall=0.0, rc_account=account)
            return {"requestId": made.id}
        if script == "requestReturnMachines":
            names = [one["name"] for one in document["machines"]]
            return {"requestId": self.state.record_return("demo", names, created_wall=0.0).id}
        if script == "getReturnRequests":
            lost = self.state.lost([one["name"] for one in document["machines"]])
            return {"requests": [{"machine": name, "gracePeriod": loss.grace} for name, loss in lost.items()]}
        answers = self.state.poll([one["requestId"] for one in document["requests"]]).answers
        waiting = {"status": "running", "message": "", "machines": []}
        return {
            "requests": [
                json.loads(answer.text) if answer else waiting | {"requestId": id_} for id_, answer in answers.items()
            ]
        }


def make_service(states: Sequence[Any], calls: HostFactory, source: list[Any]) -> DemandService:
    settings = demand(sources={"jobs": Said(said=source)}, **AT_ONCE)
    templates = [Template(name, 1000, SIZE, (), "", "", "", "", {}) for name in POOLS]
    return DemandService(settings, templates, states, calls)


def answered(id_: str, *names: str) -> Answer:
    machines = [{"name": name, "result": "succeed", "launchtime": 1} for name in names]
    return Answer(json.dumps({"requestId": id_, "status": "complete", "message": "", "machines": machines}), True)


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path)


@pytest.mark.parametrize(("ngpus", "expected"), [("2", 2.0), ("two", 0.0), ("nan", 0.0), ("inf", 0.0), ("-1", 0.0)])
def test_only_a_plain_number_is_a_number_of_gpus(ngpus: str, expected: float) -> None:
    template = Template("Small", 5, {**SIZE, "ngpus": ("Numeric", ngpus)}, (), "", "", "", "", {})
    assert read_shape(template) == Shape(4.0, 1.0, expected)


def test_a_refused_request_stops_no_other_template(state: StateDir) -> None:
    scripts = Scripts(state)
    scripts.refused.add("Small")
    report = make_service([state], scripts, [{"Small": 1, "Large": 2}]).step(0.0)
    assert scripts.made == [("Large", 2)]
    assert report.problem == "Small is refused"


def test_a_process_that_may_have_lost_its_right_makes_no_call(state: StateDir) -> None:
    def check() -> None:
        raise StateUnreachable("the Lease is unknown")

    scripts = Scripts(state)
    scripts.check = check
    report = make_service([state], scripts, [{"Small": 1}]).step(0.0)
    assert (scripts.made, report.problem) == ([], "the Lease is unknown")


def test_idle_machines_are_counted_by_their_template(state: StateDir) -> None:
    small, large = (
        state.record_request("demo", name, 2, created_wall=0.0, rc_account=ACCOUNT).id for name in ("Small", "Large")
    )
    state.status.write({small: answered(small, "s0", "s1"), large: answered(large, "l0", "l1")}, {}, {})
    reading = Reading({"Small": 2, "Large": 2}, dict.fromkeys(["s0", "l0", "l1"], 1.0))
    report = make_service([state], Scripts(state), [reading]).step(0.0)
    assert {template: row["idle"] for template, row in report.templates.items()} == {"Small": 1, "Large": 2}


def test_machines_whose_template_was_lost_are_returned(state: StateDir) -> None:
    state.intent.create("demo")
    state.intent.restore(Intent("demo", 1, {"r": Request("r", NO_TEMPLATE, 2, 0.0, ACCOUNT)}, {}))
    state.status.write({"r": answered("r", "m0", "m1")}, {}, {})
    scripts = Scripts(state)
    service = make_service([state], scripts, [{"Small": 2}])
    reports = [service.step(now) for now in (0.0, 1.0, 2.0)]
    assert [one.names for one in state.intent.read().returns.values()] == [("m0", "m1")]
    assert scripts.made == [("Small", 2)]
    assert reports[-1].templates[NO_TEMPLATE]["asked"] == 0


def test_a_preview_records_nothing_and_does_not_log_that_it_did(
    state: StateDir, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    state.record_request("demo", "Small", 2, created_wall=0.0, rc_account=ACCOUNT)
    before = state.intent.read()
    report = make_service([state], PreviewedCalls([state]), [{"Small": 5}]).step(0.0)
    assert report.templates["Small"] == {"wanted": 5, "asked": 2, "running": 0, "idle": 0}
    assert (state.intent.read(), caplog.messages) == (before, [])


def test_different_jobs_that_fit_no_template_fill_neither_report_nor_log(
    state: StateDir, caplog: pytest.LogCaptureFixture
) -> None:
    unfit = {f"{number} CPUs, {'ü' * 9000}": number for number in range(1, 10_001)}
    service = make_service([state], Scripts(state), [Reading({}, None, unfit)])
    report = service.step(0.0)
    service.step(1.0)
    shown = report.sources["jobs"]["unfit"]
    assert [*shown.values()][:2] == [10_000, 9_999], "the most common descriptions stay"
    assert (len(shown), sum(shown.values())) == (MOST_UNFIT + 1, sum(unfit.values())), "and the others are counted"
    assert sum(one.message == "Jobs fit no template" for one in caplog.records) == MOST_UNFIT + 1, "each once"


def test_the_longest_report_fits_the_kubernetes_api(state: StateDir) -> None:
    """A report with as many templates as the Kubernetes API keeps, and with texts that do not compress, must fit the
    API's limit of size."""
    draw = Random(1)
    names = [f"{draw.getrandbits(200):x}" for _ in range(1000)]
    unfit = {f"{draw.getrandbits(10**5):x}": 1 for _ in range(1000)}
    reading = Reading({name: draw.randrange(1000) for name in names}, None, unfit)
    broken = SourceError(f"{draw.getrandbits(10**6):x}")
    sources = {f"s{number}": Said(said=[reading]) for number in range(5)} | {"broken": Said(said=[broken])}
    templates = [Template(name, 1000, SIZE, (), "", "", "", "", {}) for name in names]
    kube = KubeState(MemoryApiServer(ObjectServer("hf", lambda: 1e6)), "demo")
    scripts = Scripts(state)
    scripts.refused = {*names}
    report = DemandService(demand(sources=sources), templates, [state], scripts).step(0.0)
    kube.write_demand(asdict(report))
    assert kube.read_demand() == asdict(report)
    assert len(report.templates) == 1000


def test_a_request_that_spans_shards_counts_once_and_is_found_again() -> None:
    api = MemoryApiServer(ObjectServer("hf", lambda: 1e6))
    scripts = Scripts(ShardedScriptState(api, "demo", [["a"], ["b"], ["c"]], lambda: POOLS))
    source: list[Any] = [{"Small": PART + 2, "Large": 3}]

    def step(now: float) -> Any:
        """Make a step of a service that has just been started."""
        states = [KubeState(api, f"demo-s{number}") for number in range(3)]
        return make_service(states, scripts, source).step(now).templates

    step(0.0)
    assert scripts.made == [("Small", PART + 2), ("Large", 3)]
    assert {template: row["asked"] for template, row in step(1.0).items()} == {"Small": PART + 2, "Large": 3}
    requests = api.call("GET", objects.collection("hf", objects.REQUESTS)).document["items"]
    parts = sorted(one["metadata"]["name"] for one in requests if one["spec"]["template"] == "Small")
    assert [id_[0] for id_ in parts] == ["0", "1", "2"]
    for id_ in parts:
        text = answered(id_, *(f"hf-{id_}-{number:06}" for number in range((PART + 2) // 3))).text
        answer = objects.pack({"text": text, "ended": True})
        status = {"status": {"phase": "Ended", "epoch": 1, "generation": 1, "answer": answer}}
        path = objects.item("hf", objects.REQUESTS, id_, "status")
        assert api.call("PATCH", path, status, content="application/merge-patch+json").status == 200
    assert step(2.0)["Small"] == {"wanted": PART + 2, "asked": PART + 2, "running": PART + 2, "idle": 0}
    scripts.return_machines([f"hf-{id_}-000000" for id_ in parts])
    assert step(3.0)["Small"]["asked"] == PART - 1
    assert scripts.made[2:] == [("Small", 3)]
