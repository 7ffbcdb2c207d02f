"""Cases 96 to 100 of the conformance checklist: the whole life of machines, a restart of HF, an upgrade, a wrong clock,
and recorded documents."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from tests.conformance.stage import SECONDS, Ahead, Cases, Grid, loop_time, names
from tests.support.hostfactory.provider import golden
from tests.support.parts import alter
from tests.support.waiting import until

CASES = Cases()
case = CASES.case

FIRST_VERSION = Path(__file__).parent / "state-1"
"""A state directory as the first release wrote it. It has one complete request of two machines, and one complete return
request."""


@case(96, "a whole life of 100 hosts → every machine ends, the cloud is empty", slow=True)
def whole_life(hf: Grid) -> None:
    machines = hf.complete(60) + hf.complete(40)
    assert hf.cloud("running") == sorted(machines)
    lost = machines[::20]
    hf.simulator.preempt(*lost)
    hf.reclaims(*lost, among=machines)
    return_ids = [hf.return_machines(*machines[first : first + 50]) for first in (0, 50)]
    for return_id in return_ids:
        entry = hf.ended(return_id)
        assert (entry["status"], len(names(entry, "succeed"))) == ("complete", 50)
    assert hf.cloud() == []
    assert hf.reclaimed(*machines) == {}


@case(
    97,
    "HF restarted with an empty database while machines run → none is removed; after a day without a list that names "
    "them they are shown, until HF learns of them again; removed only if that is configured",
    slow=True,
)
def forgotten(hf: Grid) -> None:
    request = hf.request("T2", 3)
    machines = names(hf.ended(request))
    hf.reclaimed(*machines)
    for _ in range(3):
        assert hf.reclaimed() == {}
        hf.cycles()
    assert unlisted(hf) == [], "a list may name only some"
    learnt, *others = machines
    a_day_passes(hf, machines)
    assert hf.reclaimed() == {}
    hf.cycles()
    assert unlisted(hf) == sorted(machines)
    assert hf.metric(UNLISTED) == 3
    assert hf.reclaimed(learnt) == {}
    until(lambda: unlisted(hf) == sorted(others), SECONDS, every=0.2, what="HF's list is noted")
    until(lambda: hf.metric(UNLISTED) == 2, SECONDS, what="the metric follows")

    with loop_time() as ahead:
        goes_on_listing(hf, ahead, 3600, learnt)
        assert hf.cloud("running") == sorted(machines), "their end is not configured"
        hf.configure(delete_unlisted_after_hours=25.5)
        hf.cycles()
        assert hf.cloud("running") == sorted(machines), "25 hours are not 25.5"

        def only_the_learnt_is_left() -> bool:
            goes_on_listing(hf, ahead, 120, learnt)  # the same list is news to the loop only every five minutes
            return hf.cloud() == [learnt]

        until(only_the_learnt_is_left, SECONDS, every=0.0, what="the others go")
        assert ahead.seconds >= 3600 + 1800
        hf.reclaims(*others, among=machines)
        assert hf.metric(UNLISTED) == 0
    assert hf.cloud("running") == [learnt]
    assert names(hf.status(request)[0], "succeed") == machines, "a terminal answer stays"


UNLISTED = "hf_provisioner_machines_unlisted"


def goes_on_listing(hf: Grid, ahead: Ahead, seconds: float, *hosts: str) -> None:
    """Let ``seconds`` of loop time pass. HF lists these hosts often enough that it does not count as absent."""
    end = ahead.seconds + seconds
    while ahead.seconds < end:
        ahead.seconds += 120  # and what the calls take on a busy machine: HF counts as away after 300
        hf.reclaimed(*hosts)
        hf.cycles()


def a_day_passes(hf: Grid, machines: list[str]) -> None:
    """Change memory as if HF had last listed these machines a day ago."""
    hf.stop_loop()
    memory = hf.state.memory.read()
    hf.state.memory.write(alter(memory, unlisted=dict.fromkeys(machines, memory.written.time - 86_400)))
    hf.start_loop()


def unlisted(hf: Grid) -> list[str]:
    """Return the machines that HF seems to have forgotten, as `provisioner status` lists them."""
    shown: list[str] = json.loads(hf.shown())["unlisted"]
    return shown


@case(98, "the provider is upgraded between request and status → old ids are still answered", loop=False)
def upgraded(hf: Grid) -> None:
    shutil.copytree(FIRST_VERSION, hf.work, dirs_exist_ok=True)
    answers = json.loads((FIRST_VERSION / "answers.json").read_text())
    assert hf.status(*answers) == list(answers.values())
    memory = hf.state.memory.read()
    assert {*memory.requests, *memory.returns} == set(answers)
    assert hf.request() in hf.state.intent.read().requests


@case(
    99,
    "this host's clock is an hour off → launchtime is the cloud's, positive, not in the future",
    loop=False,
    processes=True,
)
def skewed_clock(hf: Grid) -> None:
    now = time.time
    for skew in (-3600, 3600):
        began = int(now()) - 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time", lambda skew=skew: now() + skew)
            hf.start_loop()
            entry = hf.ended(hf.request("T2", 1))
            hf.stop_loop()
        assert began <= entry["machines"][0]["launchtime"] <= now() + 60


@case(100, "the recorded documents as inputs → templates, request, return, status and losses as above")
def recorded(hf: Grid) -> None:
    assert hf.call("getAvailableTemplates", golden("getAvailableTemplates-input"))["templates"]
    document = golden("requestMachines-input")
    document["template"]["templateId"] = "T2"  # the recorded one is not in the fixture
    request = hf.call("requestMachines", document)["requestId"]
    assert len(names(hf.ended(request), "succeed")) == document["template"]["machineCount"]
    assert hf.call("getReturnRequests", golden("getReturnRequests-input"))["requests"] == []
    return_id = hf.call("requestReturnMachines", golden("requestReturnMachines-input"))["requestId"]
    asked = golden("getRequestStatus-input")
    asked["requests"][0]["requestId"] = return_id
    until(lambda: hf.status(return_id)[0]["status"] != "running", SECONDS, every=0.2)
    [entry] = hf.call("getRequestStatus", asked)["requests"]
    assert entry["status"] == "complete"
    assert {(machine["result"], machine["status"]) for machine in entry["machines"]} == {("succeed", "terminated")}
    assert len(hf.cloud()) == document["template"]["machineCount"]
