"""Cases 69 to 82 of the conformance checklist: requestReturnMachines."""

from __future__ import annotations

import requests

from tests.conformance.stage import SECONDS, Cases, Grid, loop_time, names
from tests.support.waiting import PATIENCE, until

CASES = Cases()
case = CASES.case

UNKNOWN = "hf-zzzzzzzzzz-000007"
COPY = "hf-zzzzzzzzzz-000008"
"""A pod with the labels of one of ours, made by another client."""


def returned_entry(hf: Grid, machines: object) -> dict[str, object]:
    """Make a return request, and wait until it has ended. Return the answer to it. ``machines``: the value of
    ``machines`` in HF's input."""
    return hf.ended(hf.call("requestReturnMachines", {"machines": machines})["requestId"])


def results(entry: dict[str, object]) -> dict[str, str]:
    """Return each machine's result."""
    return {machine["name"]: machine["result"] for machine in entry["machines"]}  # type: ignore[attr-defined]


@case(69, "a list with name and machineId → a request id")
def both(hf: Grid) -> None:
    machines = hf.complete(2)
    entry = returned_entry(hf, [{"name": name, "machineId": name} for name in machines])
    assert (entry["status"], results(entry)) == ("complete", dict.fromkeys(machines, "succeed"))


@case(70, "one object with a name → a request id")
def one_object(hf: Grid) -> None:
    [machine] = hf.complete(1)
    assert returned_entry(hf, {"name": machine})["status"] == "complete"
    assert hf.cloud() == []


@case(71, "name alone → found by name; machineId alone → found by id")
def either(hf: Grid) -> None:
    first, second, third = hf.complete(3)
    entry = returned_entry(hf, [{"name": first}, {"machineId": second}])
    assert results(entry) == {first: "succeed", second: "succeed"}
    assert hf.cloud() == [third]


@case(72, "name and machineId disagree → machineId wins, logged; the other host is left alone")
def disagreeing(hf: Grid) -> None:
    first, second = hf.complete(2)
    assert results(returned_entry(hf, [{"name": first, "machineId": second}])) == {second: "succeed"}
    assert hf.cloud() == [first]
    assert [line["name_is_not_machine_id"] for line in hf.log if "name_is_not_machine_id" in line] == [[first]]


@case(73, "the machine has gone already → an id, then complete and succeed")
def gone_already(hf: Grid) -> None:
    [machine] = hf.complete(1)
    hf.simulator.preempt(machine)
    hf.until_cloud(lambda machines: not machines)
    entry = returned_entry(hf, [{"name": machine, "machineId": machine}])
    assert (entry["status"], results(entry)) == ("complete", {machine: "succeed"})


@case(74, "unknown → succeed once two observations lack it; not ours → fail, untouched, unless adopt_prefixes names it",
      adopt_prefixes=["sym-"])  # fmt: skip
def unknown_machines(hf: Grid) -> None:
    kept = hf.complete(1)
    lookalike = kept[0].removesuffix("000000") + "\u0660" * 6
    pods = f"{hf.simulator.kubernetes}/api/v1/namespaces/{hf.place}/pods"
    labels = requests.get(f"{pods}/{kept[0]}", timeout=10 * PATIENCE).json()["metadata"]["labels"]
    for name, marks in (("other-1", {}), (COPY, labels), ("sym-1", {}), ("sym-2", labels)):
        pod = {"metadata": {"name": name, "labels": marks}, "spec": {"containers": [{"name": "main", "image": "b"}]}}
        requests.post(pods, json=pod, timeout=10 * PATIENCE).raise_for_status()
    gone, foreign = [UNKNOWN, lookalike, "sym-1", "sym-2"], ["other-1", COPY]
    entry = returned_entry(hf, [{"name": name} for name in gone + foreign])
    assert results(entry) == dict.fromkeys(gone, "succeed") | dict.fromkeys(foreign, "fail")
    assert entry["status"] == "complete_with_error"
    left_alone = [machine["message"] for machine in entry["machines"] if machine["result"] == "fail"]  # type: ignore[attr-defined]
    assert all("left alone" in message for message in left_alone)
    assert hf.cloud() == sorted([*kept, *foreign])


@case(75, "known, unknown and already returned mixed → one id that covers all")
def mixed(hf: Grid) -> None:
    first, second, third = hf.complete(3)
    returned_entry(hf, {"name": first})
    entry = returned_entry(hf, [{"name": name} for name in (first, second, UNKNOWN)])
    assert (entry["status"], set(results(entry).values())) == ("complete", {"succeed"})
    assert set(results(entry)) == {first, second, UNKNOWN}
    assert hf.cloud() == [third]


@case(76, "a machine in two return requests → both complete")
def two_returns(hf: Grid) -> None:
    machines = hf.complete(2)
    first, second = hf.return_machines(*machines), hf.return_machines(machines[0])
    assert [hf.ended(id_)["status"] for id_ in (first, second)] == ["complete", "complete"]
    assert hf.cloud() == []


@case(77, "a machine twice in one call → handled once")
def doubled(hf: Grid) -> None:
    [machine] = hf.complete(1)
    entry = returned_entry(hf, [{"name": machine}, {"name": machine, "machineId": machine}, {"machineId": machine}])
    assert [one["name"] for one in entry["machines"]] == [machine]  # type: ignore[attr-defined]


@case(78, "full and short name of a host → the same host")
def full_name(hf: Grid) -> None:
    first, second = hf.complete(2)
    assert results(returned_entry(hf, [{"name": f"{first}.c.demo-project.internal"}])) == {first: "succeed"}
    assert results(returned_entry(hf, [{"name": second.upper()}])) == {second: "succeed"}


@case(80, "the machine is still being made → cancelled; its request ends with a fail for it")
def unfinished(hf: Grid) -> None:
    hf.fault("slow_start", params={"seconds": 3600})
    request = hf.request("T2", 1)
    [machine] = names(hf.shows(request, "executing"))
    assert returned_entry(hf, {"name": machine})["status"] == "complete"
    entry = hf.ended(request)
    assert (entry["status"], results(entry)) == ("complete_with_error", {machine: "fail"})
    assert hf.cloud() == []


@case(81, "100 and 1000 machines in a call → answered in time", loop=False, processes=True)
def many(hf: Grid) -> None:
    for count in (100, 1000):
        machines = [{"name": f"hf-zzzzzzzzzz-{number:06d}"} for number in range(count)]
        assert hf.call("requestReturnMachines", {"machines": machines}, seconds=30)["requestId"]


@case(82, "the cloud's API is down → recorded, an id returned, deleted later")
def cloud_down(hf: Grid) -> None:
    machines = hf.complete(2)
    hf.fault("unavailable")
    return_id = hf.return_machines(*machines)
    hf.cycles()
    assert hf.status(return_id)[0]["status"] == "running"
    hf.simulator.impose()
    with loop_time() as ahead:
        ahead.seconds = 10  # it is asked for again
        until(lambda: hf.cloud() == [], SECONDS, what="the machines are deleted")
        assert hf.ended(return_id)["status"] == "complete"
