"""Cases 83 to 95 of the conformance checklist: getReturnRequests."""

from __future__ import annotations

import requests

from tests.conformance.returns import UNKNOWN
from tests.conformance.stage import PROJECT, SECONDS, TIMINGS, ZONE, Cases, Grid
from tests.support.waiting import PATIENCE, until

CASES = Cases()
case = CASES.case


@case(83, "{} and machines [] → exit 0, requests []")
def nothing_listed(hf: Grid) -> None:
    hf.complete(1)
    for document in ({}, {"machines": []}):
        assert hf.call("getReturnRequests", document)["requests"] == []


@case(84, "all hosts healthy → requests [], the key is there")
def healthy(hf: Grid) -> None:
    machines = hf.complete(3)
    hf.cycles()
    assert hf.reclaimed(*machines) == {}


@case(85, "a VM deleted from the console → named as HF sent it, gracePeriod 0")
def deleted_by_hand(hf: Grid) -> None:
    lost, kept = hf.complete(2)
    url = f"{hf.simulator.compute}projects/{PROJECT}/zones/{ZONE}/instances/{lost}"
    requests.delete(url, timeout=10 * PATIENCE).raise_for_status()
    # While the cloud stops it, it has the seconds that this takes.
    until(lambda: hf.reclaimed(lost, kept) == {lost: 0}, SECONDS, every=0.1, what="the lost VM is gone")
    sent = f"{lost}.c.demo-project.internal"
    answer = hf.call("getReturnRequests", {"machines": [{"name": sent, "machineId": lost}, {"name": kept}]})
    assert answer["requests"] == [{"machine": sent, "machineId": lost, "gracePeriod": 0}]


@case(86, "asked again while HF still lists it → reported again")
def again(hf: Grid) -> None:
    lost, kept = hf.complete(2)
    hf.simulator.preempt(lost)
    hf.reclaims(lost, among=[lost, kept])
    for _ in range(2):
        hf.cycles()
        assert list(hf.reclaimed(lost, kept)) == [lost]


@case(87, "HF returned it and lists it no more → no longer reported")
def settled(hf: Grid) -> None:
    lost, kept = hf.complete(2)
    hf.simulator.preempt(lost)
    hf.reclaims(lost, among=[lost, kept])
    assert hf.ended(hf.return_machines(lost))["status"] == "complete"
    assert hf.reclaimed(kept) == {}


@case(88, "a notice → gracePeriod is the whole seconds left, and falls")
def noticed(hf: Grid) -> None:
    doomed, kept = hf.complete(2)
    hf.simulator.impose(timings={"gke": {**TIMINGS["gke"], "preempt_grace": 40}})
    hf.simulator.preempt(doomed)
    hf.reclaims(doomed, among=[doomed, kept])
    first = hf.reclaimed(doomed, kept)[doomed]
    assert 0 < first <= 40
    until(lambda: hf.reclaimed(doomed, kept)[doomed] < first, SECONDS, every=0.2, what="the grace period falls")
    assert hf.reclaimed(doomed, kept)[doomed] >= 0


@case(89, "an unknown host → reported only if its name has our shape, no brake holds and two observations lack it")
def unknown(hf: Grid) -> None:
    [machine] = hf.complete(1)
    hf.reclaims(UNKNOWN, among=["ip-10-0-57-7.ec2.internal", "sym-1", UNKNOWN, machine])
    hf.stop_loop()
    for name in ("memory.json", "status.json"):
        (hf.work / name).unlink()
    hf.start_loop()
    until(lambda: hf.state.memory.exists() and hf.state.memory.read().brake, SECONDS, what="the brake is latched")
    hf.cycles(3)
    assert hf.reclaimed(UNKNOWN, machine) == {}


@case(90, "a lost host that HF does not list → not reported")
def not_listed(hf: Grid) -> None:
    lost, kept = hf.complete(2)
    hf.simulator.preempt(lost)
    hf.reclaims(lost)
    assert hf.reclaimed(kept) == {}
    assert hf.call("getReturnRequests", {})["requests"] == []


@case(91, "a host with a running return → not reported as ours to take, and the return goes on")
def being_returned(hf: Grid) -> None:
    lost, kept = hf.complete(2)
    hf.simulator.preempt(lost)
    hf.reclaims(lost, among=[lost, kept])
    return_id = hf.return_machines(lost, kept)
    assert hf.reclaimed(lost, kept) == {}
    assert hf.ended(return_id)["status"] == "complete"


@case(92, "the cloud's list fails → requests [], no host is reported")
def list_fails(hf: Grid) -> None:
    machines = hf.complete(2)
    hf.fault("unavailable")
    hf.stop_loop()  # the watch ends with it: the next loop has to list, and cannot
    hf.start_loop()
    hf.cycles(3)
    assert hf.reclaimed(*machines, UNKNOWN) == {}


@case(93, "entries without machineId → matched by name")
def by_name(hf: Grid) -> None:
    lost, kept = hf.complete(2)
    hf.simulator.preempt(lost)
    hf.reclaims(lost, among=[lost, kept])
    answer = hf.call("getReturnRequests", {"machines": [{"name": kept}, {"name": lost.upper()}]})
    assert [entry["machine"] for entry in answer["requests"]] == [lost.upper()]


@case(94, "5000 hosts in the list → answered in time", processes=True)
def many(hf: Grid) -> None:
    machines = [{"name": name, "machineId": name} for name in hf.complete(1)]
    machines += [{"name": f"host-{number}", "machineId": f"host-{number}"} for number in range(4999)]
    assert hf.call("getReturnRequests", {"machines": machines}, seconds=10)["requests"] == []


@case(95, "a return that HF asked for and that is complete → never listed")
def own_returns(hf: Grid) -> None:
    first, second = hf.complete(2)
    hf.ended(hf.return_machines(first))
    hf.cycles()
    assert hf.reclaimed(first, second) == {}
