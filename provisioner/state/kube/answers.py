"""The answers to HF and the losses. An answer is in the status of its request's object. The losses are in the
ProvisionerState's status.

A request with a terminal answer that HF has not read yet has the phase Ended. Once HF has read the answer, the phase is
Complete or CompleteWithError. The server then refuses every change of the answer. The write that sets this phase also
adds the request's record to a status that lacks the record.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from provisioner.hostfactory import Answer, Loss
from provisioner.model import PendingReason, RequestStatus, Window
from provisioner.names import RETURN_ID_PREFIX
from provisioner.state.errors import StateMissing, StateUnreadable
from provisioner.state.kube.connection import ApiServer
from provisioner.state.kube.holds import ProvisionerObject
from provisioner.state.kube.memory import KubeMemory
from provisioner.state.kube.object_events import MOST, ObjectEvents
from provisioner.state.kube.objects import pack, unpack
from provisioner.state.kube.parts import Item, run_all
from provisioner.state.kube.terminal_answers import KubeTerminalAnswers

Status = dict[str, Any]

MOST_ANSWER = 400_000
"""Maximum number of characters of a packed answer: about the length for ten thousand machines. If an answer is longer,
the messages of its machines are cut."""
TEXT_LENGTHS = (200, 60, 0)
"""Lengths in characters to which the messages of the machines are cut. Each length is tried only if the answer is still
too long with the previous length."""
LONGEST_REASON = 256
KEPT_ENTRIES = 10
"""Maximum number of entries in the timeline of a request's object."""

WAITING, RUNNING, ENDED = "Waiting", "Running", "Ended"
OPEN = (WAITING, RUNNING)
COMPLETE = {RequestStatus.COMPLETE: "Complete", RequestStatus.COMPLETE_WITH_ERROR: "CompleteWithError"}
BY_WINDOW = (PendingReason.WINDOW, PendingReason.BACKOFF)
HELD_BACK = frozenset(PendingReason(name) for name in ("cap", "backoff", "paused", "stopped", "budget", "unseen"))
"""Pending reasons of machines that no cloud was asked for yet. The answers already contain the reasons of all other
missing machines."""
FINAL = frozenset(COMPLETE.values())
"""Phases of a request whose terminal answer HF has read."""


class KubeAnswers:
    """The published answers, which scripts print. Only the loop writes answers, and each write contains only the
    changed answers."""

    def __init__(
        self,
        api: ApiServer,
        objects: Callable[[], Mapping[str, Item]],
        own: ProvisionerObject,
        memory: KubeMemory,
        terminal: KubeTerminalAnswers,
        threads: Executor | None = None,
    ) -> None:
        """Store the collaborators. ``objects``: function that returns the objects of requests and return requests by
        id."""
        self._objects, self._own, self._memory = objects, own, memory
        self._terminal, self._events, self._threads = terminal, ObjectEvents(api), threads
        self._reasons: dict[str, str] = {}
        """Reasons why machines without a slot are missing, by request id. The answers lack these reasons, because an
        answer describes only machines with a slot."""
        self._written: dict[str, tuple[Answer, Status]] = {}
        """The answer of each request, and the status of the request's object, as this process last wrote or read
        them."""
        self._reported = frozenset[str]()
        """Ids of the answers that were reported to HF, as of the last write. An answer that was reported since is
        missing here. This does no harm: the request's phase stays Ended, in this phase scripts print the settled
        answer, and ``finish`` publishes the settled answer later."""
        self._answered: frozenset[str] = frozenset()
        """Ids of the answers in the last call of ``write``. ``signature`` changes if the object of such an id vanishes
        or appears again, because a recovery may make the object again without a status."""

    # --- reading ------------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Return True if a loop has published losses."""
        return "status" in (self._own.latest() or {})

    def signature(self) -> object:
        """Return a value that changes if the brake changes or etcd is restored. The value also changes if the object of
        an answer vanishes or appears again. Return None before any loop has written."""
        brake = self._memory.latest and self._memory.latest.brake
        return (self._memory.restored, brake, self._answered - self._objects().keys()) if self.exists() else None

    def read_all(self) -> dict[str, Answer]:
        """Return every published answer. Raises StateUnreadable."""
        published = {id_: one["status"] for id_, one in self._objects().items() if "answer" in one.get("status", {})}
        return {id_: self._read(id_, status) for id_, status in published.items()}

    def _read(self, id_: str, status: Status) -> Answer:
        found: Answer = unpack(status["answer"], id_, lambda answer: Answer(**answer))
        return found

    def read_lost(self) -> Mapping[str, Loss]:
        """Return every published loss. Raises StateMissing or StateUnreadable."""
        status = (self._own.latest() or {}).get("status")
        if status is None:
            raise StateMissing(f"{self._own.name}: no loop has published losses yet.")
        published = unpack(status["lost"], f"{self._own.name}: status.lost", dict) if "lost" in status else {}
        return {name: Loss(*loss) for name, loss in published.items()}

    def set_aside(self) -> str:
        """Do nothing, because the loop replaces an unreadable answer at its next write. Return an empty path."""
        return ""

    def forget_written(self) -> None:
        """Forget the written answers, so that the next write compares with the objects again. Called after a restore of
        etcd."""
        self._written.clear()

    # --- writing ------------------------------------------------------------------------------------------------------

    def write(self, answers: Mapping[str, Answer], lost: Mapping[str, Loss], available: Mapping[str, int]) -> None:
        """Publish the answers, then the losses and ``available``. ``available``: how many further machines each
        template may have. Raises StateStale if a newer loop has written."""
        gone: Counter[str] = Counter(name.rsplit("-", 2)[1] for name in lost if name.count("-") > 1)
        objects, self._events.left = self._objects(), MOST
        self._written = {id_: known for id_, known in self._written.items() if id_ in answers and id_ in objects}
        self._answered, self._reported = frozenset(answers), self._terminal.ids()
        known = [id_ for id_ in answers if id_ in objects]
        run_all(lambda id_: self._publish(id_, objects[id_], answers[id_], gone[id_]), known, self._threads)
        self._publish_losses(lost, available)

    def _publish(self, id_: str, found: Item, answer: Answer, lost: int) -> None:
        former, status = self._written.get(id_) or (None, found.get("status", {}))
        if former is None and "answer" in status:
            with suppress(StateUnreadable):
                former = self._read(id_, status)
        if former == answer and status.get("lost", 0) == lost:
            self._written[id_] = answer, status
        else:
            self._write(id_, found, answer, lost, status)

    def _write_again(self, id_: str, found: Item) -> None:
        answer, status = self._written[id_]
        self._write(id_, found, answer, status.get("lost", 0), status)

    def _write(self, id_: str, found: Item, answer: Answer, lost: int, before: Status) -> None:
        if before.get("phase") in FINAL:  # HF has read this answer, and the server refuses another answer.
            new: Status = {} if id_.startswith(RETURN_ID_PREFIX) else {"lost": lost}
        else:
            new = make_status(id_, found["spec"], answer, lost, before)
            if new["phase"] in OPEN and new.get("reason") == "":
                new["reason"] = self._reasons.get(id_, "")
            if answer.ended and id_ in self._reported:
                reported = self._terminal.settled_before(id_) or answer
                status = RequestStatus(json.loads(reported.text)["status"])
                new |= {"answer": _pack(reported), "phase": COMPLETE[status]}
        changed = {name: value for name, value in new.items() if before.get(name) != value}
        if (written := self._memory.patch(id_, changed)) is not None:
            self._written[id_] = answer, written["status"]
            self._record(found, before, written["status"])

    def _record(self, found: Item, before: Status, status: Status) -> None:
        """Write an Event if the request has just ended with failed machines. Also write an Event if a reason for
        missing machines appears in an object without a reason."""
        is_open, note = status["phase"] in OPEN, status["conditions"][0]["message"]
        if not is_open and before.get("phase", WAITING) in OPEN and status.get("failed"):
            self._events.record(found, "MachinesFailed", note)
        elif is_open and status.get("reason") and not before.get("reason"):
            self._events.record(found, "MachinesMissing", status["reason"])

    def explain(self, unmet: Any) -> None:
        """Publish in a request's object why machines are missing, if the request's answer contains no reason. Raises
        StateError.

        ``unmet``: for each request id, the documents of ``Unmet``.
        """
        objects, former, self._events.left = self._objects(), self._reasons, MOST
        windows = self._memory.latest.windows if self._memory.latest else {}
        known = {id_: objects[id_]["spec"]["template"] for id_ in unmet if id_ in objects}
        self._reasons = {id_: _find_unmet(unmet[id_], windows, template) for id_, template in known.items()}
        changed = [id_ for id_, reason in self._reasons.items() if former.get(id_, "") != reason]
        written = [id_ for id_ in changed if id_ in self._written]
        run_all(lambda id_: self._write_again(id_, objects[id_]), written, self._threads)

    def _publish_losses(self, lost: Mapping[str, Loss], available: Mapping[str, int]) -> None:
        before = (self._own.latest() or {}).get("status", {})
        brake = self._memory.latest and self._memory.latest.brake
        running = sum(status.get("running", 0) - status.get("lost", 0) for _, status in self._written.values())
        new: Status = {
            "running": max(0, running),
            "brake": f"{brake.reason}: {brake.detail}"[:LONGEST_REASON] if brake else "",
            "lost": pack({name: [*loss] for name, loss in lost.items()}),
            "available": {**dict.fromkeys(before.get("available", {})), **available},
        }
        changed = {name: value for name, value in new.items() if before.get(name) != value}
        if changed or not before:
            self._own.patch({"status": {**changed, **self._memory.marks, "observed": _moment()}}, "status")
            former, found = before.get("brake", ""), self._own.latest()
            if found and new["brake"] != former:
                reason = "BrakeLatched" if brake else "BrakeReleased"
                self._events.record(found, reason, new["brake"] or former, warns=brake is not None)

    def finish(self, reported: frozenset[str]) -> None:
        """Set the final phase of each request whose answer HF has read. If the log of memory is long, also move the
        requests' records from the log into the requests' objects. Raises StateError."""
        objects, self._reported = self._objects(), reported
        ended = [id_ for id_ in self._written.keys() & reported if self._written[id_][1].get("phase") == ENDED]
        unsaved = [id_ for id_ in self._memory.save() if id_ in self._written]

        def write(id_: str) -> None:
            if id_ in objects and id_ in ended:
                self._write_again(id_, objects[id_])
            else:
                self._memory.patch(id_, {})

        run_all(write, sorted({*ended, *unsaved}), self._threads)


def make_status(id_: str, spec: Mapping[str, Any], answer: Answer, lost: int, before: Status) -> Status:
    """Return the new status for the object of a request or return request. ``lost``: number of the request's lost
    machines. ``before``: the object's present status."""
    entry = json.loads(answer.text)
    results = Counter(machine["result"] for machine in entry["machines"])
    succeeded, pending, failed = results["succeed"], results["executing"], results["fail"]
    # Keep this phase while a cancel is announced, because only in this phase do scripts ask for settled answers.
    is_ended = answer.ended or before.get("phase") == ENDED
    phase = ENDED if is_ended else RUNNING if succeeded else WAITING
    status: Status = {"phase": phase, "answer": _pack(answer)}
    if id_.startswith(RETURN_ID_PREFIX):
        wanted = len(spec["names"])
        status |= {"total": wanted, "returned": succeeded, "failed": failed}
        text = f"{succeeded} of {wanted} returned"
    else:
        wanted = spec["count"]
        text = f"{succeeded} of {wanted} run" + (f", {failed} failed" if failed else "")
        reason = _find_reason(entry)
        status |= {"requested": wanted, "running": succeeded, "pending": pending, "failed": failed, "lost": lost}
        status["reason"] = reason if succeeded < wanted else ""
        status["timeline"] = _add_entry(before.get("timeline", []), text)
    is_complete = succeeded >= wanted
    reason = "AllMachines" if is_complete else "Ended" if answer.ended else "MachinesMissing"
    message = f"{text}. {_find_reason(entry)}".strip()[:1024]
    facts = [("Complete", is_complete and answer.ended), ("Progressing", not answer.ended)]
    status["conditions"] = _conditions(before.get("conditions", []), facts, reason, message)
    return status


def _find_reason(entry: Mapping[str, Any]) -> str:
    """Return the most frequent reason why machines are missing."""
    texts = Counter(machine["message"] for machine in entry["machines"] if machine["result"] != "succeed")
    texts.pop("", None)
    found: str = texts.most_common(1)[0][0] if texts else entry["message"]
    return found[:LONGEST_REASON]


def _find_unmet(unmet: list[Item], windows: Mapping[tuple[str, str], Window], template: str) -> str:
    """Return the first reason why machines are held back before a cloud was asked for them. Return an empty text if
    there is none, or if the machines wait only for a window that does not back off."""
    for one in unmet:
        window = windows.get((one["pool"], template))
        failure = window.backs_off_from if window and one["reason"] in BY_WINDOW else None
        if failure or one["reason"] in HELD_BACK:
            text = f"{failure.error}: {failure.text}" if failure else one.get("text", "")
            return ": ".join(filter(None, (one["pool"], one["reason"], text)))[:LONGEST_REASON]
    return ""


def _add_entry(timeline: list[dict[str, str]], text: str) -> list[dict[str, str]]:
    if timeline and timeline[-1]["text"] == text:
        return timeline
    return [*timeline, {"time": _moment(), "text": text}][-KEPT_ENTRIES:]


def _conditions(before: list[Status], facts: list[tuple[str, bool]], reason: str, message: str) -> list[Status]:
    """Return the object's conditions in the form that ``kubectl wait`` reads. ``facts``: each condition's type, and
    True if the condition is true.

    A condition's time changes only if its status changes.
    """
    former = {one["type"]: one for one in before}
    conditions = []
    for kind, is_true in facts:
        status, old = str(is_true), former.get(kind, {})
        since = old["lastTransitionTime"] if old.get("status") == status else _moment()
        conditions.append(
            {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}
        )
    return conditions


def _pack(answer: Answer) -> str:
    """Return the packed answer. If the answer is too long for its object, the messages of its machines are cut."""
    packed = pack({"text": answer.text, "ended": answer.ended})
    for length in TEXT_LENGTHS:
        if len(packed) <= MOST_ANSWER:
            break
        entry = json.loads(answer.text)
        for machine in entry["machines"]:
            machine["message"] = machine["message"][:length]
        text = json.dumps(entry, separators=(",", ":"), ensure_ascii=False)
        packed = pack({"text": text, "ended": answer.ended})
    return packed


def _moment() -> str:
    """Return the present time by this host's clock. The time is shown to operators and never compared."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
