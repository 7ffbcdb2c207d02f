"""Start-up: what is wanted and what is remembered, read from files; a lost or old memory is made again.

Which memory the loop goes on with is decided here; when it is recorded, in the cycle.
"""

from __future__ import annotations

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
from provisioner.names import request_of
from provisioner.planning.core.usage import with_usage_of
from provisioner.planning.recover.rebuild import RecoveryInputs, distrusted, fresh, rebuild, recover_answers
from provisioner.state.errors import Condition, StateError, StateMissing, StateUnreadable
from provisioner.state.protocols import State

LONE_MEMORY = (
    "memory.json stands without its lock file: it may be an old copy. "
    "`provisioner recover` names the machines that it does not know."
)


TIME_KEPT = 1200.0
"""Seconds after which memory is written again though nothing has changed: a loop that starts goes on from its time, and
takes a gap for an hour at most. So hours of a quiet grid are not lost when the loop ends in them."""


class CachedIntent:
    """Intent as the loop last read it."""

    def __init__(self, state: State, provisioner: str, check: Callable[[], None]) -> None:
        self._state = state
        self._provisioner = provisioner
        self._check = check
        """Raises SupersededError when a newer loop may write."""
        self._signature: object = None
        self.held: Intent | None = None
        """None before HF's first request."""
        self.newest = 0
        """The newest generation of intent.json ever written: above intent's own when an old copy was put back."""

    def read(self, *, starting: bool) -> Intent | None:
        """The newest intent; None before HF's first request, which only a loop without a memory can be in.

        Raises StateMissing for a file that vanished, StateError for that of another provider instance.
        """
        signature = self._state.intent.signature()
        if signature is None or signature != self._signature:
            try:
                self.held, self.newest = self._state.intent.read_newest()
            except StateMissing:
                if starting and not (self._state.memory.existed() or self._state.intent.existed()):
                    return None
                raise
            self._signature = signature
        if self.held is not None and self.held.provisioner != self._provisioner:
            raise StateError(
                f"{self._state.path}: belongs to HF's provider instance {self.held.provisioner!r}, but this loop "
                f"serves {self._provisioner!r}. Set HF_PROVIDER_NAME, or use another state directory."
            )
        return self.held

    def forget(self, ids: Collection[str]) -> float | None:
        """Trim what memory has marked; memory forgets it when intent no longer has it. Raises StateError.

        Returns the seconds it waited for the lock, if it needed it.
        """
        if not ids:
            return None
        self._check()
        # First: what intent lacks is not asked for again, so a mark left behind would stay for ever.
        self._state.forget_polls(ids)
        return self._state.intent.remove(ids)

    def warn_writers(self, generation: int) -> None:
        """Tell writers of a generation that memory has read: each write would let an older file look newer to them.

        Raises StateError.
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
        """Raises SupersededError when a newer loop may write."""
        self._held: Memory | None = None
        self._signature: object = None
        """Another one shows that somebody has put another file in its place."""
        self._recorded = LONG_AGO
        """When it was written last, in loop time."""

    def read(self) -> Memory:
        """What is remembered. Raises StateMissing, StateUnreadable."""
        self._signature = self._state.memory.signature()  # before the content
        self._held = self._state.memory.read()
        return self._held

    def record(self, memory: Memory, now: float) -> None:
        """Make a memory durable, if it is not already, or no longer; or its time, now and then. Raises StateError."""
        recent = now - self._recorded < TIME_KEPT
        if recent and memory is self._held and self._state.memory.signature() == self._signature:
            return
        self._check()
        clock = self._clock
        self._state.memory.write(replace(memory, written=Moment(now, clock.wall(), clock.uptime())))
        self._held, self._signature, self._recorded = memory, self._state.memory.signature(), now


@dataclass(frozen=True, slots=True)
class StartupInputs:
    """What a memory is loaded or made again by, beside the files."""

    intent: Intent
    newest: int
    """The newest generation of intent.json ever written."""
    observations: Mapping[str, Observation]
    limits: Limits
    now: float


class Startup:
    """Takes up the memory of the loop before, or makes it again where it is lost or old."""

    def __init__(self, state: State, clock: Clock, file: CachedMemory) -> None:
        self._state = state
        self._clock = clock
        self._file = file
        self._agreed: frozenset[str] = frozenset()
        """Ids that HF was told of, and that memory knows to have ended."""
        self._missed: float | None = None
        """Since when memory.json is known to be lost."""
        self.distrusted: Mapping[str, Distrusted] = {}
        """Pools whose snapshots do not count as evidence yet."""

    def memory(self, held: Memory | None, inputs: StartupInputs) -> Memory:
        """The memory to go on with: the one held, unless an answer that HF has read contradicts it. Raises StateError.

        Looks were taken before intent was read: a machine without a request is an orphan.
        """
        self.distrusted = {}
        if held is None:
            return self._loaded(inputs)
        if self._is_contradicted(held, inputs.intent):
            return self._made_again(
                replace(held, written=Moment(inputs.now, self._clock.wall(), held.written.uptime)), inputs
            )
        return held

    def without_intent(self, limits: Limits, now: float) -> Memory | None:
        """The memory of a directory whose intent.json is lost; None where there is none to work from."""
        if self._state.memory.condition() in (Condition.NEW, Condition.MISSING, Condition.OLDER):
            return None  # a person has to recover intent first
        return self._taken_up(self._file.read(), limits, now)

    def _loaded(self, inputs: StartupInputs) -> Memory:
        intent, now = inputs.intent, inputs.now
        try:
            memory = self._file.read()
        except StateMissing:
            if self._is_first(intent, inputs.limits):
                return fresh(intent, inputs.limits, now, self._clock.wall())
            return self._rebuilt(inputs, BrakeReason.MEMORY_LOST)
        condition = self._state.memory.condition()
        if condition is Condition.OLDER or self._is_contradicted(memory, intent):
            return self._made_again(memory, inputs)
        memory = self._taken_up(memory, inputs.limits, now)
        current = intent.generation >= memory.generation  # otherwise the plan finds intent to be the old one
        if current and memory.brake is None and condition is Condition.ALONE:
            return replace(memory, brake=Brake(BrakeReason.MEMORY_OLDER, now, LONE_MEMORY))
        return memory

    def _is_contradicted(self, memory: Memory, intent: Intent) -> bool:
        """HF was told how a request ended, and memory does not know that it has: it is an old one."""
        told = self._state.terminal_answers.ids()
        for id_ in (told - self._agreed) & intent.requests.keys():
            record = memory.requests.get(id_)
            if (record is None or record.ended is None) and self._state.terminal_answers.settled(id_) is not None:
                return True
        self._agreed = told
        return False

    def _taken_up(self, memory: Memory, limits: Limits, now: float) -> Memory:
        """A memory as it was recorded, with the answers that were settled after that."""
        unheard = [record.id for record in memory.requests.values() if record.ended and record.reported_at is None]
        settled = {id_: answer for id_ in unheard if (answer := self._state.terminal_answers.settled(id_)) is not None}
        return recover_answers(memory, settled, limits, now)

    def _is_first(self, intent: Intent, limits: Limits) -> bool:
        """No trace of an earlier memory, and every request is within its deadline."""
        if self._state.memory.existed() or self._state.status.exists() or self._state.terminal_answers.ids():
            return False
        served = {request_of(limits.prefix, name) for back in intent.returns.values() for name in back.names}
        if served & intent.requests.keys() or self._state.intent.condition() is Condition.ALONE:
            return False
        asked = self._scripts_clock(intent)
        return all(asked - request.created_wall < limits.request_deadline for request in intent.requests.values())

    def _scripts_clock(self, intent: Intent) -> float:
        """What the clock that intent's times are by shows now, or less (law: time is an argument)."""
        recorded = [request.created_wall for request in intent.requests.values()]
        recorded += [back.created_wall for back in intent.returns.values()]
        return max(recorded, default=0.0) + self._state.since_intent()

    def _made_again(self, old: Memory, inputs: StartupInputs) -> Memory:
        """HF may have been told of what an old memory lacks: all but the usage that it counted is made again."""
        return with_usage_of(old, self._rebuilt(inputs, BrakeReason.MEMORY_OLDER))

    def _rebuilt(self, inputs: StartupInputs, reason: BrakeReason) -> Memory:
        """A memory made again. Raises StateError until looks at all pools show what was there when it was missed."""
        lost = f"{self._state.path}: memory.json is lost or"
        if inputs.intent.generation < inputs.newest:
            raise StateError(
                f"{lost} older than one written before, and so is intent.json: "
                "nothing is done until a person has looked (`provisioner recover`) and ran it with --apply."
            )
        self._missed = inputs.now if self._missed is None else self._missed
        snapshots = {
            pool.name: observation
            for pool in inputs.limits.pools.values()
            if isinstance(observation := inputs.observations.get(pool.name), Snapshot)
            and observation.began >= self._missed + pool.lag
        }
        if missing := sorted(inputs.limits.pools.keys() - snapshots.keys()):
            raise StateError(
                f"{lost} old, and is made again as soon as every pool was seen; "
                f"until then nothing is planned. Not seen yet: {', '.join(missing)}. A pool that is gone for ever: "
                "take it out of provisioner.yaml and start again; its machines then count as lost."
            )
        heard = dict.fromkeys(self._state.polls(), False) | dict.fromkeys(self._state.terminal_answers.ids(), True)
        recovery_inputs = RecoveryInputs(
            inputs.intent, self._told(), heard, snapshots, self._scripts_clock(inputs.intent)
        )
        self.distrusted = distrusted(recovery_inputs, inputs.limits, self._missed)
        if self.distrusted:
            raise StateError(
                f"{lost} old, and is made again as soon as a second look at these "
                f"pools, which lack many machines that HostFactory has, is over: {', '.join(sorted(self.distrusted))}."
            )
        # Whoever asked before to release the brake has not seen what this memory could not know.
        self._state.recovery_done()
        self._missed = None
        recovery_inputs = replace(recovery_inputs, life=self._state.memory.begin_life())
        return rebuild(recovery_inputs, inputs.limits, inputs.now, self._clock.wall(), reason)

    def _told(self) -> Mapping[str, Answer]:
        """What is settled; of the others what status.json says, if it can be read."""
        try:
            published = self._state.status.read_all()
        except (StateMissing, StateUnreadable):
            published = {}
        return published | self._state.terminal_answers.answers()
