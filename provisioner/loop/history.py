"""What the journal says of a cycle: each call that was tried, each step of a request, and what HF was told.

Equal lines are counted (``loop/repeats.py``); what a cycle does not change costs nothing.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from provisioner.hostfactory import Loss
from provisioner.loop.actors import Results
from provisioner.loop.publisher import Edition
from provisioner.loop.repeats import COUNTED_SECONDS, Line, Repeats
from provisioner.model import (
    Delete,
    Limits,
    Memory,
    Outcome,
    PendingReason,
    RequestRecord,
    RequestStatus,
    ReturnRecord,
    Slot,
    Transition,
    Verdict,
    Window,
)
from provisioner.planning.core.slots import missing
from provisioner.planning.report.answers import is_reported_running
from provisioner.state.errors import StateError
from provisioner.state.interfaces import State
from provisioner.state.journal import stamp

log = logging.getLogger(__name__)

ONCE_FAILED = frozenset({Verdict.FAILED, Verdict.WITHDRAWN})
"""Verdicts that a pool in trouble gives again and again: equal ones are counted."""

Keyed = tuple[Hashable, Line]
"""A line, and what it has in common with those that count as equal."""

Deferral = tuple[str, PendingReason]
"""Pool and reason."""


@dataclass(frozen=True, slots=True)
class Passed:
    """What one cycle leaves."""

    number: int
    wall: float
    """Epoch seconds at its end."""
    memory: Memory | None
    limits: Limits
    deferred: Mapping[tuple[str, str, PendingReason], int]
    levers: Sequence[Line] = ()
    """What became of levers."""


class History:
    """Takes in each cycle, in the loop's thread, and writes what is new in it."""

    def __init__(self, state: State, published: Callable[[], Edition | None]) -> None:
        """``published``: what this process has published last; None before it has published anything."""
        self._state = state
        self._published = published
        self._repeats = Repeats()
        self._memory: Memory | None = None
        """As it was taken in last."""
        self._told: Mapping[str, object] = {}
        """The requests and returns as HF was told of them."""
        self._lost: Mapping[str, Loss] = {}
        """The machines that HF was told to give back."""
        self._windows: dict[tuple[str, str], Window] = {}
        """As they were written last, or first met."""
        self._paused: frozenset[str] = frozenset()
        self._waits: dict[str, _Wait] = {}
        """The requests that are deferred."""
        self._deferred: object = None
        """As it was taken in last."""
        self._deleted: dict[str, float] = {}
        """When a delete of a machine was taken last: one that is sent again soon is counted."""
        self._edition: Edition | None = None
        """As it was taken in last."""

    def begin(self, memory: Memory) -> None:
        """What the loop remembers at its start is no news. Later calls change nothing."""
        if self._memory is None:
            self._memory = memory
            self._told = {**memory.requests, **memory.returns}
            self._windows = dict(memory.pressures)
            self._lost = {
                slot.name: Loss(0, "")
                for _, slot in memory.slots
                if slot.verdict is Verdict.LOST or slot.observed.notice is not None or slot.life.retiring_at is not None
            }

    def take(
        self, passed: Passed, results: Sequence[Results], transitions: Sequence[Transition], *, ending: bool = False
    ) -> None:
        """Write what is new, if anything is; a journal that cannot be written stops nothing."""
        plain: list[Line] = [*passed.levers]
        keyed: list[Keyed] = []
        if results and self._deleted:
            old = passed.wall - COUNTED_SECONDS
            self._deleted = {name: at for name, at in self._deleted.items() if at > old}
        for done in results:
            for outcome in done.outcomes:
                self._outcome(outcome, passed.wall, plain, keyed)
        for one in transitions:
            if one.closes:
                _close(one, plain, keyed)
        if passed.memory is not None:
            plain += self._asked(passed.memory)
        plain += _slot_steps(transitions, keyed)
        if passed.memory is not None:
            keyed += self._waiting(passed, passed.memory)
            keyed += self._learned(passed.memory)
        keyed += self._pauses(passed.limits)
        plain += self._telling(self._published())
        self._memory = passed.memory or self._memory
        lines = [*plain, *self._repeats.take(keyed, passed.wall), *self._repeats.due(passed.wall, ending=ending)]
        self._write(lines, passed)

    def _write(self, lines: Sequence[Line], passed: Passed) -> None:
        if not lines:
            return
        head = {"time": stamp(passed.wall), "cycle": passed.number}
        try:
            self._state.add_history([head | line for line in lines])
        except StateError as error:
            log.warning("Journal could not be written", extra={"error": str(error)})

    # --- calls and ends -----------------------------------------------------------------------------------------------

    def _outcome(self, outcome: Outcome, wall: float, plain: list[Line], keyed: list[Keyed]) -> None:
        line = _outcome_line(outcome)
        action = outcome.action
        of = action.reason if isinstance(action, Delete) else action.template
        key = (line["event"], action.pool, of, line["result"])
        if outcome.failure is not None or (isinstance(action, Delete) and action.name in self._deleted):
            keyed.append((key, line))
        else:
            plain.append(line)
        if isinstance(action, Delete) and outcome.failure is None:
            self._deleted[action.name] = wall

    # --- memory -------------------------------------------------------------------------------------------------------

    def _asked(self, memory: Memory) -> Iterator[Line]:
        """Requests and returns that are new."""
        before = self._memory
        if before is None or before is memory:
            return
        yield from (_asked(record) for id_, record in memory.requests.items() if id_ not in before.requests)
        for id_, back in memory.returns.items():
            if id_ not in before.returns:
                yield {"event": "back", "return": id_, "machines": list(back.names)}

    def _waiting(self, passed: Passed, memory: Memory) -> Iterator[Keyed]:
        """Requests whose machines are held back, once for each reason, and once that it is over."""
        if memory is self._memory and passed.deferred is self._deferred:
            return
        self._deferred = passed.deferred
        reasons: dict[str, list[Deferral]] = defaultdict(list)
        for pool, template, reason in passed.deferred:
            reasons[template].append((pool, reason))
        for id_ in self._waits.keys() - memory.requests.keys():
            del self._waits[id_]
        for record in memory.requests.values():
            held = reasons.get(record.template, [])
            if record.id not in self._waits and not (held and record.ended is None):
                continue
            wanted = missing(record) if held and record.ended is None else 0
            yield from self._wait(record, held if wanted > 0 else [], wanted, passed)

    def _wait(self, record: RequestRecord, held: Sequence[Deferral], wanted: int, passed: Passed) -> Iterator[Keyed]:
        if not held:
            if wait := self._waits.pop(record.id, None):
                line: Line = {"event": "deferred", "request": record.id, "template": record.template}
                yield _key(line | {"over": True, "seconds": round(passed.wall - wait.since, 1)}, "over")
            return
        wait = self._waits.setdefault(record.id, _Wait(passed.wall, set()))
        for pool, reason in held:
            if (pool, reason) not in wait.said:
                wait.said.add((pool, reason))
                yield _key(_deferred(record, pool, reason, wanted, passed), pool, reason)

    def _learned(self, memory: Memory) -> Iterator[Keyed]:
        """Windows that halved, that doubled, or whose pool begins or ceases to back off."""
        if self._memory is memory:
            return
        for key, window in memory.pressures.items():
            before = self._windows.setdefault(key, Window(window.window))
            if window is not before and _differs(before, window):
                self._windows[key] = window
                yield ("window", key, window.level > 0), _window(key, before, window)

    def _pauses(self, limits: Limits) -> Iterator[Keyed]:
        paused = frozenset(name for name, pool in limits.pools.items() if pool.paused)
        for pool in sorted(paused ^ self._paused):
            event = "paused" if pool in paused else "resumed"
            yield (event, pool), {"event": event, "pool": pool}
        self._paused = paused

    # --- what HF is told ----------------------------------------------------------------------------------------------

    def _telling(self, edition: Edition | None) -> Iterator[Line]:
        """The answers that say something for the first time, as they are published."""
        if edition is None or edition is self._edition:
            return
        self._edition = edition
        for id_, (record, _) in edition.rendered.items():
            before = self._told.get(id_)
            if before is record:
                continue
            if (words := _words(record)) != (_words(before) if before else _said_of_new(record)):
                yield {"event": "told", _kind(record): id_, **words}
        self._told = {id_: record for id_, (record, _) in edition.rendered.items()}
        yield from _lost(edition.lost, self._lost)
        self._lost = edition.lost


@dataclass(frozen=True, slots=True)
class _Wait:
    """A request that is deferred."""

    since: float
    """Epoch seconds."""
    said: set[Deferral]
    """The reasons that were written."""


def _key(line: Line, *more: Hashable) -> Keyed:
    return (line["event"], line["request"], *more), line


def _outcome_line(outcome: Outcome) -> Line:
    action = outcome.action
    line: Line = {
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


def _close(close: Transition, plain: list[Line], keyed: list[Keyed]) -> None:
    slot = close.slot
    line: Line = {
        "event": "close",
        "machine": slot.name,
        "pool": slot.pool,
        "template": close.template,
        "verdict": slot.verdict,
    }
    if slot.observed.cause is not None:
        line["cause"] = slot.observed.cause
    if slot.failure is not None:
        line |= slot.failure.facts
    if slot.verdict in ONCE_FAILED:
        keyed.append((("close", slot.pool, close.template, slot.verdict, line.get("error")), line))
    else:
        plain.append(line)


def _asked(record: RequestRecord) -> Line:
    line: Line = {"event": "asked", "request": record.id, "template": record.template, "count": record.count}
    return line | {"account": record.rc_account} if record.rc_account else line


def _slot_steps(transitions: Iterable[Transition], keyed: list[Keyed]) -> Iterator[Line]:
    """Slots that were opened, machines that run for the first time, and those of which nothing is left.

    ``keyed`` gets what places say of machines that do not run yet.
    """
    opened, running, gone = (defaultdict[tuple[str, str], list[str]](list) for _ in range(3))
    for one in transitions:
        slot, where = one.slot, (one.slot.request, one.slot.pool)
        if one.before is None and not _given_up(slot):
            opened[where].append(slot.name)
        if one.runs:
            running[where].append(slot.name)
        if slot.failure is not None:
            _troubled(one, keyed)
        if one.is_gone and slot.submitted is not None:
            gone[where].append(slot.name)
    for (id_, pool), names in opened.items():
        yield {"event": "opened", "request": id_, "pool": pool, "count": len(names)}
    for event, groups in (("running", running), ("gone", gone)):
        for (id_, pool), names in groups.items():
            yield {"event": event, "request": id_, "pool": pool, "machines": names}


def _troubled(one: Transition, keyed: list[Keyed]) -> None:
    """A place says why a machine does not run, or says something of another class than before."""
    slot = one.slot
    failure, before = slot.failure, one.before.failure if one.before else None
    waits = slot.ran is None and slot.verdict is Verdict.OPEN
    if waits and failure is not None and (before is None or before.error is not failure.error):
        line: Line = {"event": "troubled", "machine": slot.name, "pool": slot.pool, "template": one.template}
        line |= failure.facts
        keyed.append((("troubled", slot.pool, one.template, failure.error), line))


def _given_up(slot: Slot) -> bool:
    """It was only opened to tell HF why there is no machine."""
    return slot.submitted is None and slot.verdict is not Verdict.OPEN


def _deferred(record: RequestRecord, pool: str, reason: PendingReason, wanted: int, passed: Passed) -> Line:
    line: Line = {"event": "deferred", "request": record.id, "template": record.template}
    line |= {"pool": pool, "reason": reason, "count": wanted}
    window = passed.memory.pressures.get((pool, record.template)) if passed.memory else None
    if reason is PendingReason.BACKOFF and window is not None and window.failure is not None:
        line |= window.failure.facts
    if reason is PendingReason.WINDOW and window is not None:
        line["bound"] = 1 if window.probing else window.window
    if reason is PendingReason.CAP and pool in passed.limits.pools:
        line["bound"] = passed.limits.pools[pool].max_machines
    return line


def _differs(before: Window, window: Window) -> bool:
    """Enough to be told: half or twice the size, or another answer to whether the pool backs off."""
    turned = (before.level > 0) != (window.level > 0)
    return turned or 2 * window.window <= before.window or window.window >= 2 * before.window


def _window(key: tuple[str, str], before: Window, window: Window) -> Line:
    line: Line = {"event": "window", "pool": key[0], "template": key[1], "window": window.window}
    if before.level or window.level:
        line["backing_off"] = window.level > 0
    if window.level and window.failure is not None:
        line |= window.failure.facts
    return line


def _kind(record: object) -> str:
    return "request" if isinstance(record, RequestRecord) else "return"


def _words(record: object) -> Line:
    """What an answer says, in short."""
    if isinstance(record, RequestRecord):
        ended = None if record.cancelling else record.ended
        ran = sum([is_reported_running(slot) for slot in record.slots.values()])
        return {"answer": ended or RequestStatus.RUNNING, "running": ran}
    return {"answer": (record.ended if isinstance(record, ReturnRecord) else None) or RequestStatus.RUNNING}


def _said_of_new(record: object) -> Line:
    """What HF takes for granted: it has the id, and no machine."""
    return {"answer": RequestStatus.RUNNING} | ({"running": 0} if isinstance(record, RequestRecord) else {})


def _lost(lost: Mapping[str, Loss], before: Mapping[str, Loss]) -> Iterator[Line]:
    """Machines that HF is told to give back, by cause and by whether they are gone."""
    groups = defaultdict[tuple[str, int], list[str]](list)
    if lost is not before:
        for name, loss in lost.items():
            if name not in before:
                groups[loss.cause, loss.grace].append(name)
    for (cause, grace), names in groups.items():
        line: Line = {"event": "told", "answer": "lost", "cause": cause, "machines": sorted(names)}
        yield line | {"seconds": grace} if grace else line
