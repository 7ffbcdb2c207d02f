"""Start-up: read intent and memory from their files, and rebuild memory if it is lost or old.

This module decides with which memory the loop continues. The cycle records this memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from provisioner.hostfactory import Answer
from provisioner.loop.clock import Clock
from provisioner.model import (
    LONG_AGO,
    Brake,
    BrakeReason,
    Distrusted,
    Intent,
    Limits,
    Memory,
    Moment,
    Observation,
    Snapshot,
)
from provisioner.names import get_request_id
from provisioner.planning.core.usage import restore_usage
from provisioner.planning.recover.rebuild import (
    RecoveryInputs,
    find_distrusted,
    make_first_memory,
    rebuild_memory,
    recover_answers,
)
from provisioner.state.errors import Condition, StateError, StateMissing, StateUnreadable
from provisioner.state.protocols import State

LONE_MEMORY = (
    "memory.json has no lock file, so it may be an old copy. "
    "`provisioner recover` names the machines that it does not contain."
)


REWRITE_SECONDS = 1200.0
"""Seconds after which memory is written again even if only loop time has changed. A new loop continues from the written
loop time and adds at most an hour. Without changes, loop time must therefore be written too."""


class CachedIntent:
    """Intent as the loop last read it."""

    def __init__(self, state: State, provisioner: str, check: Callable[[], None]) -> None:
        self._state = state
        self._provisioner = provisioner
        self._check = check
        """Function that raises SupersededError if a newer loop is active."""
        self._signature: object = None
        self.latest: Intent | None = None
        """Intent as last read; None before HF's first request."""
        self.newest = 0
        """Newest generation of intent.json ever written. If an old copy of intent was restored, this number exceeds
        the generation of the copy."""

    def read(self, *, starting: bool) -> Intent | None:
        """Return the newest intent. Return None if the loop is ``starting`` without a memory and HF has made no request
        yet.

        Raises StateMissing if the file has vanished, StateError if it belongs to another provider instance.
        """
        signature = self._state.intent.signature()
        if signature is None or signature != self._signature:
            try:
                self.latest, self.newest = self._state.intent.read_newest()
            except StateMissing:
                if starting and not (self._state.memory.existed() or self._state.intent.existed()):
                    return None
                raise
            self._signature = signature
        if self.latest is not None and self.latest.provisioner != self._provisioner:
            raise StateError(
                f"{self._state.path}: belongs to HF's provider instance {self.latest.provisioner!r}, but this loop "
                f"serves {self._provisioner!r}. Set HF_PROVIDER_NAME, or use another state directory."
            )
        return self.latest

    def forget(self, ids: Collection[str]) -> float | None:
        """Remove from intent the records that memory has marked as removable. The next plan removes these records from
        memory.

        Return the seconds spent waiting for intent's lock; None if the lock was not needed. Raises StateError.
        """
        if not ids:
            return None
        self._check()
        # Poll markers go first, because the marker of a request that intent lacks would stay for ever.
        self._state.forget_polls(ids)
        return self._state.intent.remove(ids)

    def record_generation(self, generation: int) -> None:
        """Record in intent's lock file the generation that intent has reached. If a newer generation is recorded, do
        nothing.

        Scripts refuse to write to an intent.json that is older than this record. Otherwise an old file would seem
        current after enough writes, because each write raises its generation. Raises StateError.
        """
        if self.newest < generation:
            self._check()
            self._state.intent.note_newest(generation)
            self.newest = generation


class CachedMemory:
    """Memory as the loop last read or wrote it."""

    def __init__(self, state: State, clock: Clock, check: Callable[[], None]) -> None:
        self._state = state
        self._clock = clock
        self._check = check
        """Function that raises SupersededError if a newer loop is active."""
        self._latest: Memory | None = None
        """Memory as last read or written."""
        self._signature: object = None
        """Signature of memory.json when it was last read or written. A different signature shows that the file was
        replaced."""
        self._recorded_at = LONG_AGO
        """Loop time of the last write."""

    def read(self) -> Memory:
        """Read memory.json. Raises StateMissing, StateUnreadable."""
        self._signature = self._state.memory.signature()  # before the content
        self._latest = self._state.memory.read()
        return self._latest

    def record(self, memory: Memory, now: float) -> None:
        """Write a memory. Skip the write if the file already contains this memory and a recent loop time.

        Raises StateError.
        """
        recent = now - self._recorded_at < REWRITE_SECONDS
        if recent and memory is self._latest and self._state.memory.signature() == self._signature:
            return
        self._check()
        clock = self._clock
        self._state.memory.write(replace(memory, written=Moment(now, clock.wall(), clock.uptime())))
        self._latest, self._signature, self._recorded_at = memory, self._state.memory.signature(), now


@dataclass(frozen=True, slots=True)
class StartupInputs:
    """The inputs, other than the state files, from which a memory is loaded or rebuilt."""

    intent: Intent
    newest: int
    """Newest generation of intent.json ever written."""
    observations: Mapping[str, Observation]
    limits: Limits
    now: float


class Startup:
    """The choice of the memory with which the loop continues: the memory of the previous loop, or a rebuilt memory."""

    def __init__(self, state: State, clock: Clock, file: CachedMemory) -> None:
        self._state = state
        self._clock = clock
        self._file = file
        self._agreed_ids: frozenset[str] = frozenset()
        """Ids of requests that have ended in memory and whose terminal answer is reported to HF."""
        self._missed_at: float | None = None
        """Loop time at which memory.json was found to be lost; None if it is not lost."""
        self.distrusted: Mapping[str, Distrusted] = {}
        """Pools whose snapshots must not be used yet to rebuild the memory."""

    def memory(self, latest: Memory | None, inputs: StartupInputs) -> Memory:
        """Return the memory with which the loop continues: ``latest``, or a rebuilt memory if ``latest`` is old.

        ``latest`` is old if an answer that HF has read contradicts it. The caller must read intent after the
        observations. Otherwise the machine of a newer request would seem to be an orphan. Raises StateError.
        """
        self.distrusted = {}
        if latest is None:
            return self._load(inputs)
        if self._is_contradicted(latest, inputs):
            written = Moment(inputs.now, self._clock.wall(), latest.written.uptime)
            return self._rebuild_older(replace(latest, written=written), inputs)
        return latest

    def without_intent(self, limits: Limits, now: float) -> Memory | None:
        """Return the memory of a state directory whose intent.json is lost; None if no memory is usable."""
        if self._state.memory.condition() in (Condition.NEW, Condition.MISSING, Condition.OLDER):
            return None  # An operator has to recover intent first.
        return self._recover(self._file.read(), limits, now)

    def _load(self, inputs: StartupInputs) -> Memory:
        intent, now = inputs.intent, inputs.now
        try:
            memory = self._file.read()
        except StateMissing:
            if self._is_first(intent, inputs.limits):
                return make_first_memory(intent, inputs.limits, now, self._clock.wall())
            return self._rebuild(inputs, BrakeReason.MEMORY_LOST)
        condition = self._state.memory.condition()
        if condition is Condition.OLDER or self._is_contradicted(memory, inputs):
            return self._rebuild_older(memory, inputs)
        memory = self._recover(memory, inputs.limits, now)
        current = intent.generation >= memory.generation  # If not, intent is the old file, which the plan detects.
        if current and memory.brake is None and condition is Condition.ALONE:
            return replace(memory, brake=Brake(BrakeReason.MEMORY_OLDER, now, LONE_MEMORY))
        return memory

    def _is_contradicted(self, memory: Memory, inputs: StartupInputs) -> bool:
        """Return True if memory lacks the end of a request whose terminal answer is settled. Memory is then old.

        Only requests in intent are compared. Return False if intent is old, because its requests may have left memory
        long ago.
        """
        if inputs.intent.generation < max(inputs.newest, memory.generation):
            return False
        reported_ids = self._state.terminal_answers.ids()
        for id_ in (reported_ids - self._agreed_ids) & inputs.intent.requests.keys():
            record = memory.requests.get(id_)
            if (record is None or record.ended is None) and self._state.terminal_answers.settled(id_) is not None:
                return True
        self._agreed_ids = reported_ids
        return False

    def _recover(self, memory: Memory, limits: Limits, now: float) -> Memory:
        """Return a recorded memory, corrected by the answers that scripts settled after the memory was recorded."""
        unreported = [record.id for record in memory.requests.values() if record.ended and record.reported_at is None]
        get_answer = self._state.terminal_answers.settled
        settled = {id_: answer for id_ in unreported if (answer := get_answer(id_)) is not None}
        return recover_answers(memory, settled, limits, now)

    def _is_first(self, intent: Intent, limits: Limits) -> bool:
        """Return True if no loop has worked on this state before: no file shows an earlier memory, HF has returned no
        machine of a request in intent, and every request is within its deadline."""
        if self._state.memory.existed() or self._state.status.exists() or self._state.terminal_answers.ids():
            return False
        names = [name for return_request in intent.returns.values() for name in return_request.names]
        served = {get_request_id(limits.prefix, name) for name in names}
        if served & intent.requests.keys() or self._state.intent.condition() is Condition.ALONE:
            return False
        oldest = min((request.created_wall for request in intent.requests.values()), default=math.inf)
        return self._scripts_clock(intent) - oldest < limits.request_deadline_seconds

    def _scripts_clock(self, intent: Intent) -> float:
        """Return the earliest time that the scripts' wall clock can show now, in epoch seconds.

        The result is the newest time in intent plus the age of intent's file. The clocks of two machines are therefore
        never compared (law: time is an argument).
        """
        recorded = [request.created_wall for request in intent.requests.values()]
        recorded += [return_request.created_wall for return_request in intent.returns.values()]
        return max(recorded, default=0.0) + self._state.seconds_since_intent()

    def _rebuild_older(self, old: Memory, inputs: StartupInputs) -> Memory:
        """Return a rebuilt memory that replaces an old memory, because the old memory may lack answers to HF. Keep only
        the usage of the old memory."""
        return restore_usage(old, self._rebuild(inputs, BrakeReason.MEMORY_OLDER))

    def _rebuild(self, inputs: StartupInputs, reason: BrakeReason) -> Memory:
        """Rebuild the memory. Raises StateError while this is not possible.

        Each pool needs a snapshot that began at least ``lag_seconds`` after the loss of memory was found. If intent is
        old too, an operator has to recover it first.
        """
        lost = f"{self._state.path}: memory.json is lost or"
        if inputs.intent.generation < inputs.newest:
            raise StateError(
                f"{lost} older than a copy that was written before, and so is intent.json: "
                "the loop does nothing until an operator has run `provisioner recover`, and then again with --apply."
            )
        self._missed_at = inputs.now if self._missed_at is None else self._missed_at
        snapshots = {
            pool.name: observation
            for pool in inputs.limits.pools.values()
            if isinstance(observation := inputs.observations.get(pool.name), Snapshot)
            and observation.began_at >= self._missed_at + pool.lag_seconds
        }
        if missing := sorted(inputs.limits.pools.keys() - snapshots.keys()):
            raise StateError(
                f"{lost} old, and is rebuilt as soon as every pool was observed; until then the loop makes no plan. "
                f"Not observed yet: {', '.join(missing)}. If a pool is gone for ever, remove it from "
                "provisioner.yaml and start the loop again; the pool's machines then count as lost."
            )
        polled = dict.fromkeys(self._state.polls(), False) | dict.fromkeys(self._state.terminal_answers.ids(), True)
        intent, answers = inputs.intent, self._reported_answers()
        recovery_inputs = RecoveryInputs(intent, answers, polled, snapshots, self._scripts_clock(intent))
        self.distrusted = find_distrusted(recovery_inputs, inputs.limits, self._missed_at)
        if self.distrusted:
            raise StateError(
                f"{lost} old, and is rebuilt after a second observation of these pools, which lack many machines "
                f"that HostFactory has: {', '.join(sorted(self.distrusted))}."
            )
        # An operator's earlier release of the brake does not apply to the rebuilt memory.
        self._state.take_release()
        self._state.forget_release()
        self._missed_at = None
        recovery_inputs = replace(recovery_inputs, life=self._state.memory.begin_life())
        return rebuild_memory(recovery_inputs, inputs.limits, inputs.now, self._clock.wall(), reason)

    def _reported_answers(self) -> Mapping[str, Answer]:
        """Return the answers that HF may have read, by request: the settled answer or, if the request has none, the
        answer in status.json. If status.json cannot be read, return only the settled answers."""
        try:
            published = self._state.status.read_all()
        except (StateMissing, StateUnreadable):
            published = {}
        return published | self._state.terminal_answers.answers()
