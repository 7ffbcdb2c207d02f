"""Cases 47 to 68 of the conformance checklist: getRequestStatus."""

from __future__ import annotations

import itertools
import time

from provisioner.lab.cloud.world import Fault
from provisioner.model import (
    DeleteReason,
    ErrorClass,
    Failure,
    Memory,
    RequestRecord,
    RequestStatus,
    ReturnRecord,
    ReturnResult,
    Slot,
    Verdict,
)
from provisioner.names import machine_name
from provisioner.planning.report import answers as rendering
from tests.conformance.stage import SECONDS, Cases, Grid, loop_time, names, template
from tests.support.parts import make_slot
from tests.support.stores import add_request, add_return
from tests.support.waiting import until

CASES = Cases()
case = CASES.case

NEVER = {"seconds": 3600}
HASTY = {"request_deadline_minutes": 0.03}
HOURS = 7200.0
"""Loop time in which each deadline passes."""


@case(47, "requests is an object → answered with a list of one")
def one_object(hf: Grid) -> None:
    request = hf.request()
    hf.ended(request)
    [entry] = hf.call("getRequestStatus", {"requests": {"requestId": request}})["requests"]
    assert (entry["requestId"], entry["status"]) == (request, "complete")


@case(48, "a list of one, a list of three, acquire and return mixed → one entry for each id")
def lists(hf: Grid) -> None:
    first, second = hf.request("T2", 1), hf.request("T2", 1)
    hf.ended(first)
    return_id = hf.return_machines(*names(hf.ended(second)))
    hf.ended(return_id)
    assert [entry["requestId"] for entry in hf.status(first)] == [first]
    mixed = hf.status(second, return_id, "nosuch", first)
    assert [entry["requestId"] for entry in mixed] == [second, return_id, "nosuch", first]
    assert [entry["status"] for entry in mixed] == ["complete", "complete", "complete_with_error", "complete"]


@case(49, "the same id twice → one entry, or two that are equal", loop=False)
def same_id(hf: Grid) -> None:
    request = hf.request()
    assert [entry["requestId"] for entry in hf.status(request, request)] == [request]


@case(50, "at once after the request → running, machines [] or executing")
def at_once(hf: Grid) -> None:
    hf.fault("slow_start", params=NEVER)
    request = hf.request("T2", 3)
    entry = hf.status(request)[0]
    assert entry["status"] == "running"
    assert names(entry) == names(entry, "executing")
    assert hf.shows(request, *["executing"] * 3)["status"] == "running"


@case(51, "2 of 3 up → running")
def two_of_three(hf: Grid) -> None:
    hf.fault("slow_start", after=2, params=NEVER)
    assert hf.shows(hf.request("T2", 3), "succeed", "succeed", "executing")["status"] == "running"


@case(52, "all up → complete; each succeed and running with name, IP, whole launchtime and a message")
def all_up(hf: Grid) -> None:
    entry = hf.ended(hf.request("T2", 3))
    assert (entry["status"], entry["message"]) == ("complete", "")
    for machine in entry["machines"]:
        assert (machine["result"], machine["status"], machine["message"]) == ("succeed", "running", "")
        assert machine["machineId"] == machine["name"] != ""
        assert machine["privateIpAddress"].count(".") == 3
        assert isinstance(machine["launchtime"], int)
        assert machine["launchtime"] > 0


@case(53, "polled again after complete → the same answer, the same launchtime")
def again(hf: Grid) -> None:
    request = hf.request("T2", 2)
    first = hf.ended(request)
    hf.complete(1)
    hf.cycles()
    assert hf.status(request) == [first]


@case(54, "a VM runs and has no IP yet → executing, running")
def no_address(hf: Grid) -> None:
    hf.fault("no_ip", params=NEVER)
    request = hf.request("T2", 1)
    hf.until_cloud(lambda machines: len(machines) == 1, "running")
    hf.cycles()
    entry = hf.shows(request, "executing")
    assert (entry["status"], entry["machines"][0]["privateIpAddress"]) == ("running", "")


@case(55, "1 of 3 failed, 1 executing → running")
def one_failed(hf: Grid) -> None:
    (hf.conf / "pod.yaml").write_text("restartPolicy: Never\ncontainers: [{name: main, image: busybox}]\n")
    hf.stop_loop()
    hf.start_loop()
    hf.faults(
        Fault("crash", hf.place, limit=1, params={"seconds": 0}),
        Fault("slow_start", hf.place, after=2, params=NEVER),
    )
    request = hf.request("T2", 3)
    until(lambda: _failed(hf) == 1, SECONDS, what="one machine fails")
    entry = hf.shows(request, "succeed", "executing", "executing")
    assert entry["status"] == "running"


def _failed(hf: Grid) -> int:
    journal = hf.work / "journal.jsonl"
    return journal.read_text().count('"verdict":"failed"') if journal.exists() else 0


@case(56, "1 of 3 failed, the others up → complete_with_error; the failed one says why, the good ones are listed")
def partly(hf: Grid) -> None:
    hf.fault("slow_start", after=2, params=NEVER)
    request = hf.request("T2", 3)
    hf.shows(request, "succeed", "succeed", "executing")
    with loop_time() as ahead:
        ahead.seconds = HOURS
        entry = hf.ended(request)
    assert entry["status"] == "complete_with_error"
    assert len(names(entry, "succeed")) == 2
    [failed] = [machine for machine in entry["machines"] if machine["result"] == "fail"]
    assert failed["message"] != ""
    assert entry["message"] == failed["message"]


@case(57, "all failed → complete_with_error, all fail", **HASTY)
def none_up(hf: Grid) -> None:
    hf.fault("stockout")
    entry = hf.ended(hf.request("T2", 3))
    assert entry["status"] == "complete_with_error"
    assert names(entry, "fail") == names(entry)
    assert len(names(entry)) == 3


@case(58, "pending beyond its time → deleted, fail, the request ends")
def too_slow(hf: Grid) -> None:
    hf.fault("slow_start", params=NEVER)
    request = hf.request("T2", 2)
    hf.shows(request, "executing", "executing")
    with loop_time() as ahead:
        ahead.seconds = HOURS
        entry = hf.ended(request)
        assert (entry["status"], len(names(entry, "fail"))) == ("complete_with_error", 2)
        hf.until_cloud(lambda machines: not machines)


@case(59, "deleted by others after complete → its status stays, the loss is in getReturnRequests")
def taken_later(hf: Grid) -> None:
    request = hf.request("T2", 2)
    before = hf.ended(request)
    lost, kept = names(before)
    assert hf.simulator.preempt(lost) == [lost]
    hf.reclaims(lost, among=[lost, kept])
    hf.until_cloud(lambda machines: machines == [kept])
    assert hf.status(request) == [before]


@case(60, "preempted while its request runs → it never counts as succeeded again; another takes its place")
def taken_early(hf: Grid) -> None:
    hf.fault("slow_start", after=1, params=NEVER)
    request = hf.request("T2", 2)
    [doomed] = names(hf.shows(request, "succeed", "executing"), "succeed")
    hf.simulator.preempt(doomed)
    entry = hf.shows(request, "executing", "executing")
    assert entry["status"] == "running"
    hf.simulator.impose()
    assert doomed not in names(hf.status(request)[0], "succeed")


@case(61, "an unknown id → exit 0, complete_with_error, machines []")
def unknown(hf: Grid) -> None:
    hf.complete(1)
    for id_ in ("abcdefghij", "ret-abcdefghij", "r-010d8f03b13097efd", "../intent.json"):
        [entry] = hf.status(id_)
        assert (entry["requestId"], entry["status"], entry["machines"]) == (id_, "complete_with_error", [])


@case(63, "the cloud's API is down → running for what runs, never an end; what had ended stays ended",
      backoff={"first_seconds": 0.5})  # fmt: skip
def cloud_down(hf: Grid) -> None:
    before = hf.request("T2", 1)
    ended = hf.ended(before)
    hf.fault("unavailable")
    request = hf.request("T2", 1)
    hf.cycles(4)
    assert [entry["status"] for entry in hf.status(before, request)] == ["complete", "running"]
    assert hf.status(before) == [ended]
    hf.simulator.impose()
    assert hf.ended(request)["status"] == "complete"


@case(64, "a return: before the deletion running and executing; then complete, each succeed and terminated")
def given_back(hf: Grid) -> None:
    machines = hf.complete(2)
    hf.fault("hang", target="pods.delete", params={"seconds": 1})
    return_id = hf.return_machines(*machines)
    assert hf.shows(return_id, "executing", "executing")["status"] == "running"
    entry = hf.ended(return_id)
    assert entry["status"] == "complete"
    assert {(machine["result"], machine["status"]) for machine in entry["machines"]} == {("succeed", "terminated")}
    assert names(entry) == machines
    assert hf.cloud() == []


@case(65, "the deletion fails for good → complete_with_error, fail with a message, the machine stays known",
      return_deadline_minutes=0.02)  # fmt: skip
def not_deletable(hf: Grid) -> None:
    machines = hf.complete(1)
    hf.fault("denied", target="pods.delete")
    entry = hf.ended(hf.return_machines(*machines))
    assert entry["status"] == "complete_with_error"
    assert [(machine["name"], machine["result"]) for machine in entry["machines"]] == [(machines[0], "fail")]
    assert entry["machines"][0]["message"] != ""
    slots = [slot for record in hf.state.memory.read().requests.values() for slot in record.slots.values()]
    assert [(slot.name, slot.deletion.is_gone) for slot in slots] == [(machines[0], False)]


@case(66, "a return polled after its record was trimmed → as an unknown id", retention_hours=0)
def trimmed(hf: Grid) -> None:
    return_id = hf.return_machines(*hf.complete(1))
    hf.ended(return_id)
    until(lambda: return_id not in hf.state.intent.read().returns, SECONDS, what="the return is trimmed")
    until(lambda: return_id not in hf.state.status.read_all(), SECONDS, what="its answer is trimmed")
    [entry] = hf.status(return_id)
    assert (entry["status"], entry["machines"]) == ("complete_with_error", [])


@case(67, "1000 machines → one whole document through a pipe, in time", processes=True)
def a_thousand(hf: Grid) -> None:
    hf.write_templates(template("T1", maxNumber=3))
    hf.stop_loop()
    hf.start_loop()
    request = hf.request("T1", 1000)
    hf.ended(request)
    answer = hf.call("getRequestStatus", {"requests": [{"requestId": request}]}, seconds=10)
    assert len(answer["requests"][0]["machines"]) == 1000


@case(68, "every internal state → only the three words for requests and for results", loop=False)
def every_state(hf: Grid) -> None:
    asked = {"created_wall": time.time(), "create_for": hf.instance}
    ids = [add_request(hf.state, "T2", 1, **asked) for _ in range(4)]
    return_ids = [add_return(hf.state, [f"m{number}"], **asked) for number in range(2)]
    ends = (None, RequestStatus.COMPLETE, RequestStatus.COMPLETE_WITH_ERROR, None)
    records = {
        id_: RequestRecord(
            id=id_,
            template="T2",
            count=1,
            read_at=0.0,
            deadline_at=1.0,
            ended=end,
            is_cancelling=number == 3,
            slots=_slots(id_),
        )
        for number, (id_, end) in enumerate(zip(ids, ends, strict=True))
    }
    machines = [slot.name for slot in records[ids[0]].slots.values()]
    results = [None, *ReturnResult]
    settled = {
        name: result for name, result in zip(machines, itertools.cycle(results), strict=False) if result is not None
    }
    returns = {
        id_: ReturnRecord(id=id_, names=tuple(machines), read_at=0.0, deadline_at=1.0, results=settled, ended=end)
        for id_, end in zip(return_ids, (None, RequestStatus.COMPLETE_WITH_ERROR), strict=True)
    }
    memory = Memory(hf.instance, requests=records, returns=returns)
    answers = {id_: answer for id_, (_, answer) in rendering.render_answers(memory, {}, "hf").items()}
    hf.state.status.write(answers, {})
    entries = hf.status(*ids, *return_ids)
    assert {entry["status"] for entry in entries} == {"running", "complete", "complete_with_error"}
    assert {machine["result"] for entry in entries for machine in entry["machines"]} == {"executing", "fail", "succeed"}


def _slots(request: str) -> dict[int, Slot]:
    """Return one slot for each combination of values of those fields on which an answer depends."""
    kinds = itertools.product(
        Verdict, (None, *DeleteReason), (None, 1.0), (None, 2.0), (None, Failure(ErrorClass.STOCKOUT, "none left"))
    )
    return {
        number: make_slot(
            name=machine_name("hf", request, number),
            pool="gke-main",
            verdict=verdict,
            delete=delete,
            submitted_at=submitted,
            ran_at=ran,
            failure=failure,
        )
        for number, (verdict, delete, submitted, ran, failure) in enumerate(kinds)
    }
