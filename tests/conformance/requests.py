"""Cases 33 to 46 of the conformance checklist: requestMachines."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
from itertools import permutations

from tests.conformance.stage import SECONDS, Cases, Grid, names
from tests.support.hostfactory.provider import golden, requesting
from tests.support.waiting import PATIENCE, until

CASES = Cases()
case = CASES.case

F_GETPIPE_SZ = 1032
"""Linux's number of the fcntl command that returns the capacity of a pipe."""


@case(33, "T1 x 3 → an id and a message; then running, then complete with 3 succeed")
def three(hf: Grid) -> None:
    answer = hf.call("requestMachines", requesting("T1", 3))
    assert set(answer) == {"requestId", "message"}
    entry = hf.ended(answer["requestId"])
    assert entry["status"] == "complete"
    assert [machine["result"] for machine in entry["machines"]] == ["succeed"] * 3
    assert hf.cloud("running") == sorted(names(entry))


@case(34, "two identical calls → two ids, 6 machines")
def twice(hf: Grid) -> None:
    first, second = hf.request("T1", 3), hf.request("T1", 3)
    assert first != second
    machines = names(hf.ended(first)) + names(hf.ended(second))
    assert hf.cloud() == sorted(machines)
    assert len(machines) == 6


@case(37, "machineCount is the text 3 → accepted as 3", loop=False)
def count_as_text(hf: Grid) -> None:
    request = hf.call("requestMachines", requesting("T1", "3"))["requestId"]
    assert hf.state.intent.read().requests[request].count == 3


@case(39, "T1 x 11, more than maxNumber → 10 succeed, 1 fails at once naming the cap; those that run count")
def beyond_the_cap(hf: Grid) -> None:
    entry = hf.ended(hf.request("T1", 11))
    assert entry["status"] == "complete_with_error"
    assert len(names(entry, "succeed")) == 10
    [failed] = [machine for machine in entry["machines"] if machine["result"] == "fail"]
    assert "maxNumber of 10" in failed["message"]
    again = hf.ended(hf.request("T1", 1))
    assert (again["status"], names(again, "succeed")) == ("complete_with_error", [])
    assert hf.cloud() == sorted(names(entry, "succeed"))


@case(40, "T2 (no limit) x 10000 → accepted in time", loop=False, processes=True)
def ten_thousand(hf: Grid) -> None:
    assert hf.call("requestMachines", requesting("T2", 10_000), seconds=30)["requestId"]


@case(42, "LSF's body with rc_account and userData → accepted, rcAccount in the machines")
def lsf(hf: Grid) -> None:
    document = golden("requestMachines-input-lsf")
    request = hf.call("requestMachines", document | requesting("T1", 2))["requestId"]
    machines = hf.ended(request)["machines"]
    assert [machine["rcAccount"] for machine in machines] == [document["rc_account"]] * 2


@case(43, "quota or capacity error of the cloud → accepted, then complete_with_error with the reason; no id is lost",
      request_deadline_minutes=0.02)  # fmt: skip
def no_quota(hf: Grid) -> None:
    hf.fault("quota", params={"limit": 1})
    entry = hf.ended(hf.request("T2", 3))
    assert entry["status"] == "complete_with_error"
    failed = [machine["message"] for machine in entry["machines"] if machine["result"] == "fail"]
    assert len(failed) == 2
    assert all("quota" in message and "Error Code: " in message for message in (entry["message"], *failed))


@case(44, "names are unique across requests, DNS-1123, of 63 characters at most, none a prefix of another")
def good_names(hf: Grid) -> None:
    machines = hf.complete(12) + hf.complete(12)
    assert len(set(machines)) == 24
    assert all(re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name) for name in machines)
    assert not any(one.startswith(other) for one, other in permutations(machines, 2))


@case(45, "x 1000 → answered in time, whatever the creates take", pool={"max_machines": 2}, processes=True)
def a_thousand(hf: Grid) -> None:
    request = hf.call("requestMachines", requesting("T2", 1000), seconds=30)["requestId"]
    assert hf.shows(request, "succeed", "succeed")["status"] == "running"


@case(46, "killed after the request is durable, before its id is printed → made, never polled, and cancelled",
      cancel_after_minutes=0.02, processes=True)  # fmt: skip
def killed_before_printing(hf: Grid) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"x" * fcntl.fcntl(writer, F_GETPIPE_SZ))  # now a process that prints waits
    process = subprocess.Popen(hf.command("requestMachines", requesting("T2", 2)), env=hf.environment, stdout=writer)
    try:
        until(lambda: hf.recorded() == 1, SECONDS, what="the request is recorded")
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        assert process.wait(30 * PATIENCE) == -signal.SIGKILL
    finally:
        os.close(reader)
        os.close(writer)
    [request] = hf.state.intent.read().requests
    hf.until_cloud(lambda machines: len(machines) == 2)

    def cancelled() -> bool:
        hf.reclaimed()  # HF lives: it makes other calls
        return not hf.cloud()

    until(cancelled, SECONDS, every=0.2, what="its machines are deleted")
    entry = hf.status(request)[0]
    assert entry["status"] == "complete_with_error"
    assert "Cancelled" in entry["message"]
