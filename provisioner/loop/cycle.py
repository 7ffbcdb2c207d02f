"""One cycle: take what was seen, read what is wanted, plan, record, act, remember.

The order is the promise: nothing is asked of a cloud before memory.json says so (law 3), and every instruction between
two steps may be the last one of this process. Clock, stores and actors are arguments, so that the same code runs in
production and in virtual time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal

from provisioner.files.atomic import StateError, StateMissing, StateUnreadable
from provisioner.hostfactory.answer import Answer
from provisioner.loop.actors import Actors, Results, batches
from provisioner.loop.clock import Clock
from provisioner.loop.contact import Contacts
from provisioner.model import (
    Brake,
    BrakeReason,
    Close,
    Contact,
    DeferReason,
    Delete,
    Intent,
    Limits,
    Look,
    Memory,
    Outcome,
    Plan,
    Snapshot,
    Unobserved,
)
from provisioner.names import split_name
from provisioner.planning import answers
from provisioner.planning.outcomes import remember
from provisioner.planning.plan import World, make_plan, make_trim
from provisioner.planning.rebuild import Remains, fresh, rebuild
from provisioner.planning.relocation import moved
from provisioner.planning.settlements import keep_claims
from provisioner.state.directory import StateDir

log = logging.getLogger(__name__)

LONE_MEMORY = (
    "memory.json stands without its lock file: it may be an old copy. "
    "`provisioner recover` names the machines that it does not know."
)


class SupersededError(Exception):
    """A newer loop has taken over: this one must not write or act again (law 10)."""


@dataclass(frozen=True, slots=True)
class CycleReport:
    """What one cycle saw and did, for metrics, health, log and people."""

    number: int
    now: float
    seconds: float
    looks: Mapping[str, Look]
    memory: Memory | None
    """None while there is nothing to work from."""
    plan: Plan | None
    """None when planning was skipped or impossible."""
    deferred: Mapping[tuple[str, str, DeferReason], int]
    results: Sequence[Results] = ()
    """Batches that ended since the cycle before."""
    closes: Sequence[Close] = ()
    problem: str = ""
    """Why this cycle could not do its work."""
    lock_wait: float | None = None
    """Seconds this cycle waited for intent's lock, if it needed it."""

    @property
    def result(self) -> Literal["ok", "partial", "failed"]:
        """``ok``, ``partial`` (some action or look failed) or ``failed``."""
        if self.problem:
            return "failed"
        failed = any(outcome.failure for results in self.results for outcome in results.outcomes)
        return "partial" if failed or not all(isinstance(look, Snapshot) for look in self.looks.values()) else "ok"


@dataclass(slots=True)
class _Last:
    """What the cycle before went by: when it is all the same and nothing is due, there is nothing to plan."""

    inputs: tuple[object, ...] = ()
    held: object = None
    """Keeps alive what ``inputs`` knows by identity."""
    due: float = float("-inf")
    deferred: Mapping[tuple[str, str, DeferReason], int] = field(default_factory=dict)
    written: Memory | None = None
    memory_file: object = None
    """What memory.json looked like when it was last written or read: another was put there by somebody else."""
    status_file: object = None
    rendered: answers.Rendered = field(default_factory=dict)
    lost: Mapping[str, object] = field(default_factory=dict)
    available: Mapping[str, int] = field(default_factory=dict)
    counted: tuple[Memory, Limits] | None = None
    """What ``available`` was counted from."""
    published: bool = False
    unpublished: bool = False
    """A memory was recorded whose answers could not be published."""
    signature: object = None
    intent: Intent | None = None
    agreed: Set[str] = frozenset()
    """Ids that HF was told of, and that memory knows to have ended."""
    newest: int = 0
    """The newest generation of intent.json ever written: above intent's own when an old copy was put back."""


@dataclass(frozen=True, slots=True)
class Mandate:
    """As which loop a process writes and acts, and how long it may begin to (law: one writer per file, one loop)."""

    epoch: int = 0
    check: Callable[[], None] = lambda: None
    """Raises SupersededError when a newer loop's epoch stands in the state directory."""
    stopping: Callable[[], bool] = lambda: False
    """The process is to end: no further call is started."""
    act_seconds: float = 2.0
    """Seconds in which the calls of one cycle are started."""


class Reconciler:
    """Holds one state directory's memory between cycles."""

    def __init__(
        self,
        *,
        clock: Clock,
        state: StateDir,
        actors: Actors,
        limits: Limits,
        provisioner: str,
        mandate: Mandate = Mandate(),
    ) -> None:
        self.limits = limits
        self.memory: Memory | None = None
        self._clock = clock
        self._state = state
        self._actors = actors
        self._provisioner = provisioner
        self._mandate = mandate
        self._contacts = Contacts(state)
        self._last = _Last()
        self._number = 0
        self._lock_wait: float | None = None
        self._moved: Set[str] = frozenset()
        """Pools that are elsewhere than their machines, as it was logged."""
        self._missed: float | None = None
        """Since when memory.json is known to be lost."""

    def cycle(self, looks: Mapping[str, Look]) -> CycleReport:
        """One pass. Raises SupersededError; whatever else goes wrong is in the report."""
        self._number += 1
        began = time.monotonic()
        results = self._actors.collect()
        plan: Plan | None = None
        closes: list[Close] = []
        problem = ""
        self._lock_wait = None
        now = self._clock.now()
        closes += self._remember(results, now)
        try:
            self._take_in(looks, now)
            if self.memory is not None:
                looks = self._without_moved(looks, self.memory)
                if self._last.unpublished:
                    # A plan may rely on what the one before let HF know (a cancel does).
                    self._publish(now)
                plan = self._plan(looks, now)
                self._record(plan.memory if plan else self.memory, now)
                self._publish(now)
            if plan is not None:
                closes += plan.closes
                self._act(plan)
                self._forget(plan)
                self._warn_writers()
        except StateError as error:
            problem = str(error)
            self._last.inputs = ()
        self._journal(results, closes)
        return CycleReport(
            number=self._number,
            now=now,
            seconds=time.monotonic() - began,
            looks=looks,
            memory=self.memory,
            plan=plan,
            deferred=self._last.deferred,
            results=results,
            closes=closes,
            problem=problem,
            lock_wait=self._lock_wait,
        )

    def settle(self) -> None:
        """Record the outcomes of the last batches, before the loop ends. Raises StateError, SupersededError."""
        now = self._clock.now()
        results = self._actors.collect()
        closes = self._remember(results, now)
        if self.memory is not None:
            self._record(self.memory, now)
        self._journal(results, closes)

    def strangers(self) -> frozenset[str]:
        """Names that HF gave back or lists and that are no slot of ours: pools are asked whether they hold them."""
        if self.memory is None:
            return frozenset()
        names = {name for back in self.memory.returns.values() if back.ended is None for name in back.names}
        return frozenset(name for name in names if not self._is_slot(self.memory, name))

    def _is_slot(self, memory: Memory, name: str) -> bool:
        parts = split_name(self.limits.prefix, name)
        return parts is not None and parts[0] in memory.requests and parts[1] in memory.requests[parts[0]].slots

    def preview(self, looks: Mapping[str, Look]) -> Plan | None:
        """What the next cycle would do; nothing is written, nothing is done. Raises StateError."""
        now = self._clock.now()
        self._load(looks, now)
        if self.memory is None or self._last.intent is None:
            return None
        contact = self._contacts.read(now, self._last.intent)
        looks = self._without_moved(looks, self.memory)
        return make_plan(World(self._last.intent, looks, contact), self.memory, self.limits, now)

    def trim(self, *, dry_run: bool) -> tuple[str, ...]:
        """Let what may leave the files leave them, without a look at any pool; the ids. Raises StateError.

        ``dry_run``: only say which.
        """
        now = self._clock.now()
        left: tuple[str, ...] = ()
        while plan := self._trim_plan(now):
            left = tuple(dict.fromkeys((*left, *plan.forget)))
            if dry_run:
                break
            # In the cycle's order. First marks and intent, then, as intent lacks them, memory and status.
            self._record(plan.memory, now)
            self._publish(now)
            self._forget(plan)
        return left

    def _trim_plan(self, now: float) -> Plan | None:
        """The next step; None when there is none (any more)."""
        self._load({}, now)
        if self.memory is None or self._last.intent is None:
            return None
        contact = self._contacts.read(now, self._last.intent)
        plan = make_trim(self._last.intent, contact, self.memory, self.limits, now)
        return plan if plan.forget or plan.memory is not self.memory else None

    # --- read -----------------------------------------------------------------------------------------------------

    def _take_in(self, looks: Mapping[str, Look], now: float) -> None:
        """Load; and record at once what a lost intent or a person says of the brake."""
        try:
            self._load(looks, now)
        except StateMissing:
            self._latch_lost_intent(now)
            raise
        if self.memory is not None and self._state.recovery_asked():
            seen = (*self.memory.orphans, *self.memory.unlisted)
            self._record(replace(self.memory, brake=None, accepted=seen), now)
            self._state.recovery_done()

    def _load(self, looks: Mapping[str, Look], now: float) -> None:
        """Intent, and at the first time memory. Looks were taken before: a machine without a request is an orphan."""
        intent = self._read_intent()
        if intent is not None and intent.provisioner != self._provisioner:
            raise StateError(
                f"{self._state.path}: belongs to HF's provider instance {intent.provisioner!r}, but this loop serves "
                f"{self._provisioner!r}. Set HF_PROVIDER_NAME, or use another state directory."
            )
        if self.memory is None and intent is not None:
            self._load_memory(intent, looks, now)
        elif self.memory is not None and intent is not None and self._is_contradicted(self.memory, intent):
            self.memory = self._rebuilt(intent, looks, now, BrakeReason.MEMORY_OLDER)
        if self.memory is not None and self.memory.epoch != self._mandate.epoch:
            self.memory = replace(self.memory, epoch=self._mandate.epoch)
        if self.memory is not None and intent is not None and intent.generation < self._last.newest:
            # The plan sees by its own generation that intent is older.
            newest = max(self._last.newest, self.memory.generation)
            self.memory = self.memory if self.memory.generation == newest else replace(self.memory, generation=newest)

    def _read_intent(self) -> Intent | None:
        """None before HF's first request. Raises StateMissing for a file that vanished."""
        signature = self._state.intent.signature()
        if signature is not None and signature == self._last.signature:
            return self._last.intent
        try:
            self._last.intent, self._last.newest = self._state.intent.read_newest()
            self._last.signature = signature
        except StateMissing:
            if self.memory is None and not (self._state.memory.existed() or self._state.intent.existed()):
                return None
            raise
        return self._last.intent

    def _latch_lost_intent(self, now: float) -> None:
        if self.memory is None:
            if not self._state.memory.exists() or self._state.memory.is_older():
                return  # nothing to work from, and nothing to write it into: a person has to recover intent first
            self.memory = self._taken_up(self._state.memory.read(), now)
        if self.memory.brake is None:
            brake = Brake(BrakeReason.INTENT_LOST, now, "intent.json is missing.")
            self._record(replace(self.memory, brake=brake), now)

    def _load_memory(self, intent: Intent, looks: Mapping[str, Look], now: float) -> None:
        self._last.memory_file = self._state.memory.signature()  # before the content
        try:
            memory = self._state.memory.read()
        except StateMissing:
            if self._never_had_memory(intent):
                self.memory = fresh(intent, self.limits, now, self._clock.wall())
                return
            self.memory = self._rebuilt(intent, looks, now, BrakeReason.MEMORY_LOST)
            return
        if self._state.memory.is_older() or self._is_contradicted(memory, intent):
            # HF may have been told of what it does not know: what HF was told binds, so it counts as lost.
            self.memory = self._rebuilt(intent, looks, now, BrakeReason.MEMORY_OLDER)
            return
        self.memory = memory = self._taken_up(memory, now)
        current = intent.generation >= memory.generation  # otherwise the plan finds intent to be the old one
        if current and memory.brake is None and self._state.memory.stands_alone():
            self.memory = replace(memory, brake=Brake(BrakeReason.MEMORY_OLDER, now, LONE_MEMORY))

    def _is_contradicted(self, memory: Memory, intent: Intent) -> bool:
        """HF was told how a request ended, and memory does not know that it has: it is an old one."""
        told = self._state.told.ids()
        for id_ in (told - self._last.agreed) & intent.requests.keys():
            record = memory.requests.get(id_)
            if (record is None or record.ended is None) and self._state.told.settled(id_) is not None:
                return True
        self._last.agreed = told
        return False

    def _taken_up(self, memory: Memory, now: float) -> Memory:
        """A memory as it was recorded, with what was settled after that."""
        self._last.written = memory
        unheard = [record.id for record in memory.requests.values() if record.ended and record.told_at is None]
        found = {id_: self._state.told.settled(id_) for id_ in unheard}
        settled = {id_: answer for id_, answer in found.items() if answer is not None}
        return keep_claims(memory, settled, self.limits, now)

    def _never_had_memory(self, intent: Intent) -> bool:
        """Nothing is there that only a memory leads to, and no request is so old that it must have had an answer."""
        if self._state.memory.existed() or self._state.status.exists() or self._state.told.ids():
            return False
        back = (split_name(self.limits.prefix, name) for each in intent.returns.values() for name in each.names)
        if any(parts is not None and parts[0] in intent.requests for parts in back):
            return False
        if self._state.intent.stands_alone():
            return False
        asked = self._scripts_clock(intent)
        return all(asked - request.created_wall < self.limits.request_deadline for request in intent.requests.values())

    def _scripts_clock(self, intent: Intent) -> float:
        """What the clock that intent's times are by shows now, or less: no other is asked (law 11)."""
        recorded = [request.created_wall for request in intent.requests.values()]
        recorded += [back.created_wall for back in intent.returns.values()]
        return max(recorded, default=0.0) + self._state.since_intent()

    def _rebuilt(self, intent: Intent, looks: Mapping[str, Look], now: float, reason: BrakeReason) -> Memory:
        """A memory made again. Raises StateError until looks at all pools show what was there when it was missed."""
        if intent.generation < self._last.newest:
            raise StateError(
                f"{self._state.path}: memory.json is lost or older than one written before, and so is intent.json: "
                "nothing is done until a person has looked (`provisioner recover`) and ran it with --apply."
            )
        self._missed = now if self._missed is None else self._missed
        snapshots = {
            pool.name: look
            for pool in self.limits.pools.values()
            if isinstance(look := looks.get(pool.name), Snapshot) and look.began >= self._missed + pool.lag
        }
        if missing := sorted(self.limits.pools.keys() - snapshots.keys()):
            raise StateError(
                f"{self._state.path}: memory.json is lost or old, and is made again as soon as every pool was seen; "
                f"until then nothing is planned. Not seen yet: {', '.join(missing)}. A pool that is gone for ever: "
                "take it out of provisioner.yaml and start again; its machines then count as lost."
            )
        told = self._state.told.ids()
        heard = dict.fromkeys(self._state.seen.marks(), False) | dict.fromkeys(told, True)
        # Whoever asked before to release the brake has not seen what this memory could not know.
        self._state.recovery_done()
        remains = Remains(
            intent, self._told(), heard, snapshots, self._scripts_clock(intent), self._state.memory.begin_life()
        )
        self._missed = None
        return rebuild(remains, self.limits, now, self._clock.wall(), reason)

    def _told(self) -> Mapping[str, Answer]:
        """What is settled; of the others what status.json says, if it can be read."""
        try:
            published = self._state.status.read_all()
        except (StateMissing, StateUnreadable):
            published = {}
        return published | self._state.told.answers()

    def _without_moved(self, looks: Mapping[str, Look], memory: Memory) -> Mapping[str, Look]:
        """The looks, except at pools that are elsewhere than their machines; that is said once."""
        failures = moved(memory, self.limits)
        for name in failures.keys() - self._moved:
            log.error("Pool cannot be seen", extra={"pool": name, "text": failures[name].text})
        self._moved = failures.keys()
        unseen = {name: Unobserved(name, looks[name].began, failures[name]) for name in failures.keys() & looks.keys()}
        return {**looks, **unseen}

    # --- plan -----------------------------------------------------------------------------------------------------

    def _remember(self, results: Sequence[Results], now: float) -> Sequence[Close]:
        closes: list[Close] = []
        for done in results:
            if self.memory is not None:
                self.memory, closed = remember(self.memory, done.outcomes, done.unsent, self.limits, now)
                closes += closed
        return closes

    def _plan(self, looks: Mapping[str, Look], now: float) -> Plan | None:
        """None when everything is as at the last plan and nothing has fallen due."""
        assert self.memory is not None
        assert self._last.intent is not None
        contact = self._contacts.read(now, self._last.intent)
        busy = self._actors.busy()
        inputs = (
            self._last.intent.generation,
            id(self.memory),
            id(self.limits),
            contact,
            busy,
            tuple(_identity(look) for look in looks.values()),
        )
        if inputs == self._last.inputs and now < self._last.due:
            return None
        plan = make_plan(World(self._last.intent, looks, contact, busy), self.memory, self.limits, now)
        while told := self._told_meanwhile(plan, contact):
            contact = self._contacts.hear(told)
            plan = make_plan(World(self._last.intent, looks, contact, busy), self.memory, self.limits, now)
        self._last.due = plan.due
        self._last.deferred = plan.deferred
        # Next time the same memory is expected: the one this plan leaves.
        self._last.inputs = (*inputs[:1], id(plan.memory), inputs[2], contact, *inputs[4:])
        self._last.held = (looks, self.limits, plan.memory)
        return plan

    def _told_meanwhile(self, plan: Plan, contact: Contact) -> Set[str]:
        """Settle the terminal answers that take the place of others, before anything is recorded or done about them.

        The ids of which a script was faster: HF was told, or is about to be, and that has to stand in the next plan.
        """
        assert self.memory is not None
        revised = answers.revised(self.memory, plan.memory)
        if revised:
            self._mandate.check()
        return {id_ for id_, new in revised.items() if not self._state.told.claim(id_, new.text)} - contact.told

    # --- record ---------------------------------------------------------------------------------------------------

    def _record(self, memory: Memory, now: float) -> None:
        """Make it durable, if it is not already, or no longer: somebody may have put another file in its place."""
        if memory is not self._last.written or self._state.memory.signature() != self._last.memory_file:
            self._mandate.check()
            self._state.memory.write(replace(memory, time=now, time_wall=self._clock.wall()))
            self._last.written, self._last.memory_file = memory, self._state.memory.signature()
        self.memory = memory

    def _publish(self, now: float) -> None:
        """Render what HF is told, and write it if it changed."""
        assert self.memory is not None
        before = self._last.rendered
        rendered = answers.render(self.memory, before, self.limits.prefix)
        lost = answers.losses(self.memory, self._contacts.known, self.limits.prefix, now)
        counted, available = (self.memory, self.limits), self._last.available
        before_counted = self._last.counted or (None, None)
        if any(one is not other for one, other in zip(counted, before_counted, strict=True)):
            available = answers.available(*counted)
        same = len(rendered) == len(before) and all(before.get(id_) is entry for id_, entry in rendered.items())
        same = same and lost == self._last.lost and available == self._last.available
        if self._last.published and same and self._state.status.signature() == self._last.status_file:
            self._last.counted = counted
            return
        self._mandate.check()
        self._last.unpublished = True
        self._state.status.write({id_: answer for id_, (_, answer) in rendered.items()}, lost, available)
        self._last.rendered, self._last.lost, self._last.available = rendered, dict(lost), available
        self._last.published, self._last.counted = True, counted
        self._last.status_file = self._state.status.signature()
        self._last.unpublished = False

    def _forget(self, plan: Plan) -> None:
        """Trim intent of what memory has marked; memory forgets it when intent no longer has it."""
        if plan.forget:
            self._mandate.check()
            # First: what intent lacks is not asked for again, so a mark left behind would stay for ever.
            self._state.seen.forget(plan.forget)
            self._state.told.forget(plan.forget)
            self._lock_wait = self._state.intent.remove(plan.forget)

    def _warn_writers(self) -> None:
        """An intent older than memory has read, and no lock file that says so: with each write it would look newer."""
        assert self.memory is not None
        if self._last.newest < self.memory.generation:
            self._mandate.check()
            self._state.intent.note_newest(self.memory.generation)
            self._last.newest = self.memory.generation

    # --- act ------------------------------------------------------------------------------------------------------

    def _act(self, plan: Plan) -> None:
        if not (plan.creates or plan.deletes):
            return
        self._mandate.check()
        deadline = time.monotonic() + self._mandate.act_seconds
        for batch in batches(plan.creates, plan.deletes):
            self._actors.submit(batch, lambda: time.monotonic() < deadline and not self._mandate.stopping())

    def _journal(self, results: Sequence[Results], closes: Sequence[Close]) -> None:
        outcomes = [outcome for done in results for outcome in done.outcomes]
        if not outcomes and not closes:
            return
        wall = round(self._clock.wall(), 3)
        lines = [_outcome_line(outcome) for outcome in outcomes] + [_close_line(close) for close in closes]
        try:
            self._state.journal.append([{"time": wall, "cycle": self._number, **line} for line in lines])
        except StateError as error:
            log.warning("Journal could not be written", extra={"error": str(error)})


def _identity(look: Look) -> tuple[object, ...]:
    """The same for two looks that say the same, except for when they began."""
    if isinstance(look, Snapshot):
        return look.pool, id(look.machines), look.causes, look.foreign, look.namesakes, look.asked, look.spec
    return (look.pool,)


def _outcome_line(outcome: Outcome) -> dict[str, object]:
    action = outcome.action
    line: dict[str, object] = {
        "event": type(action).__name__.lower(),
        "machine": action.name,
        "pool": action.pool,
        "result": outcome.failure.error if outcome.failure else "ok",
    }
    if isinstance(action, Delete):
        line["reason"] = action.reason
        if action.force:
            line["force"] = True
    if outcome.failure is not None:
        line["text"] = outcome.failure.text
    return line


def _close_line(close: Close) -> dict[str, object]:
    line: dict[str, object] = {
        "event": "close",
        "machine": close.name,
        "pool": close.pool,
        "template": close.template,
        "verdict": close.verdict,
    }
    if close.cause is not None:
        line["cause"] = close.cause
    if close.failure is not None:
        line["error"], line["text"] = close.failure.error, close.failure.text
    return line
