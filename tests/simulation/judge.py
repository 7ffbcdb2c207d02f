"""The judge, which checks in each simulation that the loop kept the laws.

The judge trusts only the model of the cloud and HF's own acts. Each check is an assertion that names its law. Times are
world time, so that a wrong clock of the loop is noticed. ``gained`` is the loop time that a restart may have added.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from provisioner.backends.gke.own_pods import ID_LABEL
from provisioner.hostfactory import Answer
from provisioner.lab.cloud.kubernetes import pod_status
from provisioner.loop.cycle_report import CycleReport
from provisioner.model import (
    NO_HOLDS,
    Create,
    Delete,
    DeleteReason,
    HoldKind,
    Memory,
    Observation,
    Phase,
    RequestRecord,
    RequestStatus,
    ReturnRecord,
    Slot,
    Snapshot,
    Verdict,
)
from provisioner.names import split_name
from provisioner.planning.cleanup.orphans import FEW_ORPHANS, ORPHAN_SHARE
from provisioner.planning.core.draft import TRANSITIONS
from provisioner.planning.core.holds import DRAINED, GIVEN_UP
from provisioner.planning.core.slots import CANCELLED_BY_OPERATOR, CANCELLED_MESSAGE
from provisioner.planning.report.answers import AGED, RETURNED_EARLY
from provisioner.state.errors import Condition, StateMissing
from tests.simulation.laws import Law

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation, Wanted

CANCELLING = '"status":"running","message":"cancelling'
"""Text of an answer while a cancel is announced. A request whose answer HF has read may also get it for a moment."""

LATENESS = 60.0
"""Two of the longest pauses between cycles at the end of a simulation, in seconds."""

NOTHING = '{"machines":[]}'
OWNED = (Verdict.OPEN, Verdict.SUCCEEDED)
POOLS = {"ns-alpha": "alpha", "ns-gamma": "gamma"}


class TrueMachine(NamedTuple):
    """A machine in the state that it has in the model of the cloud."""

    name: str
    pool: str
    uid: str
    running: bool
    request: str


def machines_of(sim: Simulation) -> dict[str, TrueMachine]:
    """Return every machine that carries our identity, in any state, by name."""
    found = {}
    for pod in sim.cluster.pods.select(""):
        parts, managed = split_name(sim.limits.prefix, pod.name), pod.document["metadata"]["managedFields"]
        made = managed[0]["manager"].startswith("hf-provisioner:")
        if pod.namespace in POOLS and parts and (made or pod.labels.get(ID_LABEL)):
            running = pod_status.machine_phase(pod.document) == "running"
            request = parts[0]
            found[pod.name] = TrueMachine(pod.name, POOLS[pod.namespace], pod.uid, running, request)
    for member in sim.mig.members.values():
        parts = split_name(sim.limits.prefix, member.name)
        vm = member.vm
        running = vm is not None and vm.status == "RUNNING" and member.action == "NONE"
        found[member.name] = TrueMachine(
            member.name, "beta", str(vm.id) if vm else "", running, parts[0] if parts else ""
        )
    for name, document in sim.groups.vms.shelf("p", "r1-a").after("", 0.0):
        parts = split_name(sim.limits.prefix, name)
        if name not in found and parts:  # it was taken out of the group
            running = document["status"] == "RUNNING"
            found[name] = TrueMachine(name, "beta", str(document["id"]), running, parts[0])
    return found


class Judge:
    """A judge with its own records. It raises AssertionError as soon as a law is broken."""

    def __init__(self, sim: Simulation) -> None:
        self.holds = NO_HOLDS
        """The limits that the last cycle obeyed."""
        self._sim = sim
        self.gained = 0.0
        self.superseded = False
        """True while a superseded loop runs, which must not act."""
        self.disturbed: set[str] = set()
        """Machines that the driver took away."""
        self.orphans: dict[str, float] = {}
        self.accepted: set[str] = set()
        """Orphans that an operator saw and released."""
        self.foreigners: set[str] = set()
        self._asked: dict[str, tuple[str, float]] = {}
        """The pool and the time of the first create, by name."""
        self._refused: set[str] = set()
        self._cancelled: set[str] = set()
        self._unspoken: AssertionError | None = None
        self._first_run: dict[str, str] = {}
        """The uid of each machine that ever ran."""
        self._in_sight: set[str] = set()
        """Pools that this cycle sees well enough to act in."""
        self._shown: set[str] = set()
        """Names of open slots that this cycle is shown as running."""
        self._no_room: set[str] = set()
        """Machines that an observation has shown to have no room."""
        self._seen_running: set[str] = set()
        """The same machines over all whole cycles."""
        self._slots: dict[str, tuple[Verdict, str]] = {}
        self._next: dict[str, int] = {}
        self._answers: dict[str, Answer] = {}
        self._ended_at: dict[str, float] = {}
        self._returned_before: set[str] = set()
        """Machines that HF returned before this cycle."""
        self._unheard_before: set[str] = set()
        """Requests whose terminal answer HF had not read before this cycle."""
        self._polled_before: dict[str, float] = {}
        """The last poll of each request before this cycle."""
        self._foreign_returns: dict[str, set[str]] = {}
        """Existing machines of others that a return request names, by return request."""
        self._returned_late: set[str] = set()
        """Machines that HF returned after it had read their request's terminal answer."""
        self._dead: set[str] = set()
        """Names whose slot was closed in a memory that was lost."""
        self._given_back: set[str] = set()
        """Names that HF ever returned."""
        self._orphan_deletes: list[float] = []
        self.too_many = False
        """True once so many orphans were seen that the brake must latch."""
        self._lost: set[str] = set()
        """Kinds of state files that were ever lost or replaced by an old copy."""
        self.wiped = False
        """True once the state directory was empty although there were machines."""
        self._marks: list[object] = []

    # --- what the loop does -------------------------------------------------------------------------------------------

    def check_creates(self, creates: Sequence[Create]) -> None:
        """Check creates that are about to be sent."""
        assert not (creates and self.superseded), f"{Law.ONE_LOOP}: a superseded loop creates"
        memory = self._sim.memory() if creates else None
        for create in creates:
            assert create.pool in self._in_sight, f"{Law.SEEN_WHOLE}: {create.name} is created, its pool is not seen"
            assert not self._sim.limits.pools[create.pool].is_paused, f"{create.pool} is paused and is asked"
            hold = self.holds.against(create.pool) or self.holds.of_kind(HoldKind.CANCEL).get(create.request)
            assert hold is None, f"{create.name} is created although {hold} holds it back"
            slot = _slot(memory, create.name)
            assert slot is not None, f"{Law.RECORDED}: {create.name} is not in memory.json when it is created"
            assert slot.verdict is Verdict.OPEN, f"{Law.NAMED_ONCE}: {create.name} is {slot.verdict} and is created"
            assert slot.submitted_at is not None, (
                f"{Law.RECORDED}: that {create.name} is submitted is not in memory.json"
            )
            assert slot.pool == create.pool, f"{Law.NAMED_ONCE}: {create.name} of {slot.pool} goes to {create.pool}"
            pool, _ = self._asked.setdefault(create.name, (create.pool, self._sim.world.now))
            assert pool == create.pool, f"{Law.NAMED_ONCE}: {create.name} is created in {pool} and in {create.pool}"
            fits = create.name not in self._returned_before or self.wiped
            assert fits, f"{Law.PROVEN}: {create.name} was returned and is created"
            wanted = self._sim.requests.get(create.request)
            assert wanted is None or wanted.reported is None or self.wiped, (
                f"{Law.STAYS}: {create.name} is created for an ended request"
            )
            assert create.name not in self._dead, f"{Law.NAMED_ONCE}: {create.name} was closed and is created"
            assert create.name not in self._seen_running, f"{Law.PROVEN}: {create.name} was seen running and is created"
            if self._sim.alters:
                self.disturbed.add(create.name)

    def note_refusal(self, create: Create) -> None:
        """Note a create that was answered with an error."""
        self._refused.add(create.name)

    def check_applied(self) -> None:
        """Check a create that took effect. If a law is broken, keep the error for ``raise_errors``, because the loop
        would catch an error that is raised here."""
        try:
            self.check_cloud()
        except AssertionError as error:
            self._unspoken = self._unspoken or error

    def raise_errors(self) -> None:
        """Raise the errors that were found inside a batch."""
        if self._unspoken is not None:
            raise self._unspoken

    def check_delete(self, delete: Delete) -> None:
        """Check a delete that is about to be sent."""
        assert not self.superseded, f"{Law.ONE_LOOP}: a superseded loop deletes"
        assert self.holds.stop is None, f"all is stopped, and {delete.name} is deleted"
        name, reason = delete.name, delete.reason
        assert delete.pool in self._in_sight, f"{Law.SEEN_WHOLE}: {delete.pool} is not seen and {name} is deleted"
        self._check_memory()
        slot = _slot(self._sim.memory(), name)
        assert slot is None or slot.verdict not in OWNED, f"{Law.RECORDED}: the close of {name} is not in memory.json"
        machine = self._sim.machines().get(name)
        if reason is DeleteReason.ORPHANED:
            self._judge_orphan(name, delete.pool)
        elif machine is not None and delete.uid in ("", machine.uid):
            assert name in self._asked or name in self.orphans, f"{Law.REASONED}: {name} is not ours and is deleted"
            self._judge_delete(name, reason, machine)

    def _judge_delete(self, name: str, reason: DeleteReason, machine: TrueMachine) -> None:
        sim, now = self._sim, self._sim.world.now + self.gained
        seen_running = name in self._seen_running or name in self._shown
        healthy = machine.running and name not in self.disturbed and self._first_run.get(name) == machine.uid
        wanted = self._wanted(name)
        pool, asked = self._asked.get(name, (machine.pool, 0.0))
        limits = sim.limits.pools[pool]
        why = f"{Law.PROVEN}: {name} is deleted as {reason}"
        match reason:
            case DeleteReason.RETURNED:
                assert name in self._given_back, f"{why}, but HF did not return it"
            case DeleteReason.CANCELLED:
                assert name in self._cancelled, f"{why}, but its slot is not"
            case DeleteReason.TIMED_OUT | DeleteReason.WITHDRAWN:
                assert not (healthy and seen_running), f"{why}, but it was seen running"
                patience = (
                    limits.spill_after_seconds if reason is DeleteReason.WITHDRAWN else limits.boot_deadline_seconds
                )
                late = wanted is not None and now - wanted.asked >= sim.limits.request_deadline_seconds
                late = late or (reason is DeleteReason.WITHDRAWN and name in self._no_room)
                late = late or self._memory_was_lost  # the time of its request may be lost with the files
                late = late or (reason is DeleteReason.TIMED_OUT and wanted is not None and self._many_run(wanted, now))
                assert now - asked >= patience or late, f"{why} after only {now - asked:.0f} s"
            case DeleteReason.FAILED | DeleteReason.LOST:
                unknown = name in self._refused and not seen_running
                unknown = unknown or (self._memory_was_lost and not self._is_reported(name))
                assert not healthy or unknown, f"{why}, but it is healthy"
            case _:
                raise AssertionError(f"{Law.REASONED}: {reason} is no reason to delete {name}")

    def _many_run(self, wanted: Wanted, now: float) -> bool:
        """Return True if the request is older than the template's ``straggler_after_seconds``. The loop may then give
        up the machines that are still missing."""
        template = self._sim.limits.templates[wanted.template]
        return bool(template.straggler_after_seconds) and now - wanted.asked >= template.straggler_after_seconds

    def _judge_orphan(self, name: str, pool: str) -> None:
        sim, now = self._sim, self._sim.world.now
        memory = sim.memory()
        assert memory is not None
        assert memory.brake is None, f"{Law.SLOWLY}: {name} is deleted as an orphan although the brake is latched"
        assert not self.too_many, f"{Law.SLOWLY}: {name} is deleted as an orphan although there were too many of them"
        parts = split_name(sim.limits.prefix, name)
        known = parts is not None and parts[0] in sim.hf.intent.read().requests
        # A rebuilt memory has, of an ended request, only the machines that were reported to HF.
        assert not known or self._memory_was_lost, f"{Law.SLOWLY}: orphan {name} is deleted, its request is in intent"
        assert name not in self.hosts(), f"{Law.PROVEN}: {name} is HF's and is deleted as an orphan"
        since = self.orphans.get(name, 0.0)
        assert now + self.gained - since >= sim.limits.orphans.grace_seconds, (
            f"{Law.SLOWLY}: orphan {name} got no grace"
        )
        self._orphan_deletes.append(now)
        recent = [at for at in self._orphan_deletes if at + self.gained > now - 3600]
        fits = self.gained or len(recent) <= sim.limits.orphans.cap_per_hour
        assert fits, f"{Law.SLOWLY}: too many orphans in an hour"

    def note_lost_files(self, kinds: Collection[str]) -> None:
        """Note lost state files. If memory is lost, the loop knows only the answers that were reported to HF."""
        self._lost |= set(kinds)
        if "memory" in kinds:
            self._dead |= {name for name, (verdict, _) in self._slots.items() if verdict not in OWNED}
            self._orphan_deletes.clear()
            self._slots.clear()
            self._next.clear()
            self._marks = []

    @property
    def _memory_was_lost(self) -> bool:
        return "memory" in self._lost

    @property
    def _answers_were_lost(self) -> bool:
        """Return True if memory and status, which have the reported answers, were lost.

        HF then gets a rebuilt answer.
        """
        return {"memory", "status"} <= self._lost

    # --- what is true -------------------------------------------------------------------------------------------------

    def check_cloud(self) -> None:
        """Check the cloud: caps hold at every instant, and foreign machines stay."""
        machines = self._sim.machines()
        owned: Counter[tuple[str, str]] = Counter()
        starting: Counter[tuple[str, str]] = Counter()
        for machine in machines.values():
            if machine.running:
                self._first_run.setdefault(machine.name, machine.uid)
            wanted = self._sim.requests.get(machine.request)
            if machine.name in self._asked and wanted is not None:
                assert machine.pool == self._asked[machine.name][0], f"{Law.NAMED_ONCE}: {machine.name} is in two pools"
                owned[machine.pool, wanted.template] += 1
                starting[machine.pool, wanted.template] += machine.name not in self._first_run
        for (pool, template), count in owned.items():
            limits = self._sim.limits.pools[pool]
            cap = limits.max_machines
            # After a wipe the directory is new, and a lagging list may miss machines made before.
            fits = cap is None or count <= cap or self.wiped
            assert fits, f"{Law.PROVEN}: {count} machines of {template} in {pool}, cap {cap}"
            pending = starting[pool, template]
            fits = pending <= limits.max_pending or self.wiped
            assert fits, f"{Law.PROVEN}: {pending} of {template} pending in {pool}"
        for name in self.foreigners:
            assert self._sim.cluster.pods.get("ns-alpha", name), f"{Law.REASONED}: {name} was not ours and is gone"

    def begin_cycle(self, observations: Mapping[str, Observation], now: float) -> None:
        """Note the observations with which a cycle begins."""
        self.holds = self._sim.hf.holds.read()
        self._returned_before = set(self._sim.returned)
        self._unheard_before = {id_ for id_, wanted in self._sim.requests.items() if wanted.reported is None}
        self._polled_before = {id_: wanted.polled for id_, wanted in self._sim.requests.items()}
        self._shown = set()
        self._in_sight = set()
        for observation in observations.values():
            if (
                not isinstance(observation, Snapshot)
                or now - observation.began_at > self._sim.limits.pools[observation.pool].stale_after_seconds
            ):
                continue
            self._in_sight.add(observation.pool)
            self._no_room |= {name for name, machine in observation.machines.items() if machine.spills_at_once}
            running = {name for name, machine in observation.machines.items() if machine.phase is Phase.RUNNING}
            running -= self._dead
            self._shown |= {name for name in running if self._slots.get(name, (Verdict.OPEN,))[0] in OWNED}
            strange = sum(name in self.orphans and name not in self.accepted for name in observation.machines)
            self.too_many |= self._sim.life.reconciler.memory is not None and strange > max(
                FEW_ORPHANS, ORPHAN_SHARE * len(observation.machines)
            )

    # --- what the loop recorded and published ---------------------------------------------------------------------

    def after_cycle(self, report: CycleReport | None) -> None:
        """Check the files after a cycle. ``report``: None if the cycle ended early, by a crash or a problem."""
        whole = report is not None
        if whole:
            self._seen_running |= self._shown
        self.check_cloud()
        marks = self._sim.store.marks()
        if marks != self._marks:
            self._check_memory()
        if marks != self._marks or whole:
            self._check_answers(whole=whole)
        self._marks = marks

    def _check_memory(self) -> None:
        memory = self._sim.memory()
        if memory is None:
            assert self._memory_was_lost, "memory.json is gone"
            return
        if self._memory_was_lost and self._sim.hf.memory.condition() is Condition.OLDER:
            return  # a restored copy, which the loop does not believe
        desired: Counter[str] = Counter()
        for record in memory.requests.values():
            owned = 0
            for slot in record.slots.values():
                self._check_slot(slot)
                owned += slot.verdict in OWNED
            fits = owned <= record.count or self._memory_was_lost
            assert fits, f"{Law.PROVEN}: {owned} machines for the {record.count} of {record.id}"
            desired[record.template] += owned
            numbers = record.next_slot, max(record.slots, default=-1)
            assert numbers[0] >= self._next.get(record.id, 0), f"{Law.NAMED_ONCE}: {record.id} counts slots backwards"
            assert numbers[0] > numbers[1], f"{Law.NAMED_ONCE}: {record.id} reuses numbers"
            self._next[record.id] = record.next_slot
        for template, limits in self._sim.limits.templates.items():
            limit, count = limits.max_machines, desired[template]
            fits = limit is None or count <= limit or self._memory_was_lost
            assert fits, f"{Law.PROVEN}: {count} machines of {template}, maxNumber {limit}"

    def _check_slot(self, slot: Slot) -> None:
        before, pool = self._slots.get(slot.name, (slot.verdict, slot.pool))
        assert not slot.is_set_aside, f"{slot.name} was set aside"
        assert slot.pool == pool, f"{Law.NAMED_ONCE}: {slot.name} moved from {pool} to {slot.pool}"
        allowed = slot.verdict is before or _reachable(before, slot.verdict)
        assert allowed, f"{Law.STAYS}: {slot.name} went from {before} to {slot.verdict}"
        self._slots[slot.name] = (slot.verdict, slot.pool)
        if slot.deletion.reason is DeleteReason.CANCELLED and slot.name not in self._cancelled:
            self._cancelled.add(slot.name)
            polled = self._polled_before[slot.name.split("-")[1]]
            silent = self._sim.world.now + self.gained - polled >= self._sim.limits.cancel_after_seconds
            asked = slot.name.split("-")[1] in self.holds.of_kind(HoldKind.CANCEL)
            is_returned = slot.name in self._returned_before
            assert is_returned or silent or asked, f"{Law.PROVEN}: {slot.name} is cancelled without cause"

    def _check_answers(self, *, whole: bool) -> None:
        if "status" in self._lost and not whole:
            return  # perhaps a restored copy, which the loop had no time to replace
        try:
            answers = self._sim.hf.status.read_all()
        except StateMissing:
            nothing = not self._sim.requests or not self._sim.hf.intent.exists()
            assert not whole or nothing, "no status.json after a whole cycle"
            return
        for id_, wanted in self._sim.requests.items():
            answer = answers.get(id_)
            if answer is not None:
                self._check_answer(id_, answer, whole=whole)
            elif whole and not self._may_be_forgotten(id_):
                old = self._sim.world.now + self.gained - self._ended_at.get(id_, float("inf"))
                assert old >= self._sim.limits.retention_seconds, f"the answer of {id_} is gone after {old:.0f} s"
                cancelled = id_ in self._answers and CANCELLED_MESSAGE in self._answers[id_].text
                assert wanted.reported is not None or cancelled or self._memory_was_lost
        for id_ in self._sim.returns.keys() & answers.keys():
            self._check_constant(id_, answers[id_])

    def _check_answer(self, id_: str, answer: Answer, *, whole: bool) -> None:
        self._check_constant(id_, answer)
        wanted, entry = self._sim.requests[id_], json.loads(answer.text)
        succeeded = _succeeded(entry)
        fits = len(succeeded) <= wanted.count or self._memory_was_lost
        assert fits, f"{Law.PROVEN}: {len(succeeded)} machines for the {wanted.count} of {id_}"
        if entry["status"] == RequestStatus.COMPLETE and not self._memory_was_lost:
            assert len(succeeded) == wanted.count, f"{id_} is complete with {len(succeeded)} of {wanted.count}"
        for name in succeeded:
            assert name in self._first_run, f"{name} never ran and is reported so"
            is_returned = name in self._returned_before and name not in self._returned_late
            is_returned = is_returned and not self._may_be_forgotten(self._sim.returned.get(name, ""))
            assert not (is_returned and whole), f"{Law.PROVEN}: {name} was returned and is reported running again"

    def _check_constant(self, id_: str, answer: Answer) -> None:
        """Check that an answer stays once it is terminal (law: a terminal answer stays).

        It may change only if HF has not read it yet, and the request was cancelled or HF returned machines of the
        request. After a loss of memory, details may be missing.
        """
        before = self._answers.get(id_)
        if before is not None and before.ended and before.text != answer.text:
            wanted = self._sim.requests.get(id_)
            unheard = wanted is not None and wanted.reported is None
            # The message of an operator's cancel stands in the place of the one about an early return.
            texts = RETURNED_EARLY, CANCELLED_BY_OPERATOR, CANCELLING
            just_heard = id_ in self._unheard_before and any(text in answer.text for text in texts)
            allowed = just_heard or (unheard and CANCELLED_MESSAGE in answer.text)
            # A rebuilt memory has no address and no launch time of a machine that is gone.
            allowed = allowed or (self._memory_was_lost and _results(before.text) == _results(answer.text))
            allowed = allowed or self._answers_were_lost
            assert allowed, f"{Law.STAYS}: the terminal answer of {id_} became {answer.text}, was {before.text}"
        self._answers[id_] = answer
        if answer.ended:
            self._ended_at.setdefault(id_, self._sim.world.now)

    # --- what HF does -------------------------------------------------------------------------------------------------

    def note_answer(self, id_: str, answer: Answer) -> None:
        """Check an answer that HF has just read, and note it."""
        self._check_heard(id_, answer)
        if not answer.ended:
            return
        if id_ in self._sim.requests:
            wanted = self._sim.requests[id_]
            wanted.reported = wanted.reported or answer.text
            # HF read the answer before the loop could remove machines that HF returned meanwhile
            self._returned_late |= self._sim.returned.keys() & set(_succeeded(json.loads(answer.text)))
        else:
            self._sim.returns[id_] = answer.text
            wrong = self.foreigners & self._foreign_returns.get(id_, set()) & set(_succeeded(json.loads(answer.text)))
            assert not wrong, f"{Law.REASONED}: {wrong} is not ours and is reported as returned"

    def note_unknown(self, id_: str) -> None:
        """Check a poll of an id that is no longer in the files. The script prints for such an id that the request has
        ended without machines."""
        before = self._answers.get(id_)
        wanted = self._sim.requests.get(id_)
        if not self._may_be_forgotten(id_):
            assert before is not None, f"{id_} is unknown before it was answered"
            assert before.ended, f"{id_} is unknown before it ended"
            if wanted is not None and wanted.reported is None:
                # A rebuilt memory assumes that HF has read an answer unless some file says otherwise.
                left = CANCELLED_MESSAGE in before.text or self._memory_was_lost
                assert left, f"{id_} left the files before it was reported to HF"
        if wanted is not None:
            wanted.reported = wanted.reported or NOTHING
        elif self._sim.returns[id_] is None:  # HF still has the machines that it wanted to return
            self._sim.returns[id_] = NOTHING
            self._sim.returned = {name: request for name, request in self._sim.returned.items() if request != id_}

    def _may_be_forgotten(self, id_: str) -> bool:
        """Return True if losses of files explain that the id is unknown: intent was lost, and either memory was lost,
        too, or the loop has never answered a poll of the id."""
        return "intent" in self._lost and (self._memory_was_lost or id_ not in self._answers)

    def _check_heard(self, id_: str, answer: Answer) -> None:
        wanted = self._sim.requests.get(id_)
        reported = wanted.reported if wanted else self._sim.returns.get(id_)
        assert reported in (None, answer.text) or self.wiped, f"{Law.STAYS}: HF got {reported}, now {answer.text}"
        if wanted:
            wanted.listed |= {machine["name"] for machine in json.loads(answer.text)["machines"]}

    def note_returned(self, id_: str, names: Iterable[str]) -> None:
        """Note the machines of a new return request."""
        self._foreign_returns[id_] = self.foreigners.intersection(names)
        self._given_back |= set(names)
        for name in names:
            wanted = self._wanted(name)
            if wanted is not None and wanted.reported is not None:
                self._returned_late.add(name)

    def hosts(self) -> set[str]:
        """Return the hosts that HF believes it has."""
        reported = [wanted.reported for wanted in self._sim.requests.values() if wanted.reported]
        return {name for text in reported for name in _succeeded(json.loads(text))} - set(self._sim.returned)

    def check_reported_lost(self, names: Sequence[str]) -> None:
        """Check the machines that getReturnRequests names, so that HF returns them."""
        machines, reported = self._sim.machines(), self._reported()
        for name in names:
            machine = machines.get(name)
            healthy = machine is not None and machine.running and name not in self.disturbed
            if reported.get(name) == AGED:
                self._judge_age(name)
                continue
            if reported.get(name) in (DRAINED, GIVEN_UP):
                self._judge_asked_back(name)
                continue
            gone = not healthy or machine is None or self._first_run.get(name) != machine.uid
            assert gone, f"{Law.PROVEN}: {name} is healthy and is reported lost"

    def _judge_asked_back(self, name: str) -> None:
        """Check a machine that HF is asked to return because of an operator's drain or cancel. Such a hold must
        exist."""
        drained, cancelled = self.holds.of_kind(HoldKind.DRAIN), self.holds.of_kind(HoldKind.CANCEL)
        assert self._asked[name][0] in drained or name in cancelled, f"no hold asks for {name}"

    def _judge_age(self, name: str) -> None:
        """Check a machine that HF is asked to return because of its age. It must have reached its lifetime, and HF must
        have it."""
        wanted = self._wanted(name)
        assert wanted is not None
        lifetime = self._sim.limits.templates[wanted.template].max_lifetime_seconds
        asked = self._asked[name][1]
        assert lifetime is not None, f"{Law.PROVEN}: {name} has no lifetime and is reported as aged"
        age = self._sim.world.now + self.gained - asked
        assert age >= lifetime, f"{Law.PROVEN}: {name} is reported as aged after {age:.0f} s"
        assert self._is_reported(name), f"{Law.PROVEN}: {name} is reported as aged, and HF does not know of it"

    def _is_reported(self, name: str) -> bool:
        """Return True if a terminal answer that HF has read names the machine as succeeded."""
        requests = self._sim.requests.values()
        return any(wanted.reported and name in _succeeded(json.loads(wanted.reported)) for wanted in requests)

    def _wanted(self, name: str) -> Wanted | None:
        """Return the request to which a machine's name belongs; None if it is unknown."""
        parts = split_name(self._sim.limits.prefix, name)
        return self._sim.requests.get(parts[0]) if parts else None

    # --- the end --------------------------------------------------------------------------------------------------

    def find_unsettled(self) -> list[str]:
        """Return what is not settled yet after the last fault: open requests, unwanted machines, and losses that are
        not reported."""
        sim, problems = self._sim, []
        reported = {id_: wanted.reported for id_, wanted in sim.requests.items()} | sim.returns
        problems += [f"{Law.ENDS}: {id_} has not ended" for id_, answer in reported.items() if answer is None]
        memory = sim.memory()
        latched = memory is not None and memory.brake is not None
        machines, hosts = sim.machines(), self.hosts()
        for name in machines.keys() - hosts:
            is_spared = name in self.orphans and (latched or self._orphans_go_slowly())
            if not is_spared and not (self._memory_was_lost and _is_shown(memory, name)):
                problems.append(f"{Law.PROVEN}: {name} exists and is not wanted")
        if not latched:
            problems += [
                f"{name} is gone and not reported to HF" for name in hosts - machines.keys() - self._reported().keys()
            ]
        return problems

    def _orphans_go_slowly(self) -> bool:
        """Return True if the loop has deleted as many orphans within the last hour as it may, so that further orphans
        have to wait."""
        recent = sum(at > self._sim.world.now - 3600 for at in self._orphan_deletes)
        return recent >= self._sim.limits.orphans.cap_per_hour

    def check_deadlines(self) -> None:
        """Check that no open record is long past its deadline. Call it only while the loop can work."""
        memory, now = self._sim.life.reconciler.memory, self._sim.life.clock.now()
        records: dict[str, RequestRecord | ReturnRecord] = {**memory.requests, **memory.returns} if memory else {}
        for record in records.values():
            late = now - record.deadline_at
            assert record.ended or late < LATENESS, f"{Law.ENDS}: {record.id} is {late:.0f} s past its deadline"

    def check_end(self) -> None:
        """Check that everything is settled at the end of a simulation."""
        problems = self.find_unsettled()
        assert not problems, "; ".join(problems)

    def _reported(self) -> Mapping[str, object]:
        try:
            return self._sim.hf.status.read_lost()
        except StateMissing:
            return {}


def _is_shown(memory: Memory | None, name: str) -> bool:
    """Return True if an operator can see the name of the machine, either as an orphan or as a machine that HF does not
    have in its list."""
    slot = _slot(memory, name)
    is_succeeded = slot is not None and slot.verdict is Verdict.SUCCEEDED
    return memory is not None and (name in memory.orphans.since or is_succeeded)


def _slot(memory: Memory | None, name: str) -> Slot | None:
    for record in memory.requests.values() if memory else ():
        for slot in record.slots.values():
            if slot.name == name:
                return slot
    return None


def _reachable(before: Verdict, after: Verdict) -> bool:
    """Return True if a slot can get from one verdict to the other in one or two steps, because one write may contain
    two steps."""
    return after in TRANSITIONS[before] or any(after in TRANSITIONS[between] for between in TRANSITIONS[before])


def _results(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the status in an answer, and each machine's name with its result.

    Leave out other facts about the machine.
    """
    entry = json.loads(text)
    return entry["status"], [(machine["name"], machine["result"]) for machine in entry["machines"]]


def _succeeded(entry: Mapping[str, Any]) -> list[str]:
    return [machine["name"] for machine in entry["machines"] if machine["result"] == "succeed"]
