"""What the journal says of a cycle: each call that was tried, each step of a request, and what HF was told.

Equal lines are counted (``loop/repeats.py``); all other lines follow from what the cycle returns.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from provisioner.loop.cycle import Changes
from provisioner.loop.publisher import Reported
from provisioner.loop.repeats import COUNTED_SECONDS, Line, Repeats
from provisioner.model import (
    Deferral,
    Delete,
    Lever,
    LeverKind,
    Outcome,
    PendingReason,
    Plan,
    RequestRecord,
    RequestStatus,
    ReturnRecord,
    Transition,
    Verdict,
    Window,
    WindowChange,
)
from provisioner.planning.core.window import width
from provisioner.planning.report.answers import is_reported_running
from provisioner.state.errors import StateError
from provisioner.state.interfaces import State
from provisioner.state.journal import stamp

log = logging.getLogger(__name__)

ONCE_FAILED = frozenset({Verdict.FAILED, Verdict.WITHDRAWN})
"""Verdicts that a pool in trouble gives again and again: equal ones are counted."""

Keyed = tuple[Hashable, Line]
"""A line, and what it has in common with those that count as equal."""


class History:
    """Writes what each cycle changed, in the loop's thread."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._repeats = Repeats()
        self._windows: dict[tuple[str, str], Window] = {}
        """As they were written last, or first met."""
        self._paused: frozenset[str] = frozenset()
        """Pools that were written as paused."""
        self._waits: dict[str, _Wait] = {}
        """The requests that are deferred."""
        self._deleted: dict[str, float] = {}
        """When a delete of a machine was taken last: one that is sent again soon is counted."""

    def take(self, changes: Changes, *, ending: bool = False) -> None:
        """Write what is new, if anything is; a journal that cannot be written stops nothing."""
        wall, plan = changes.wall, changes.plan
        plain: list[Line] = [_hold(*change) for change in changes.holds]
        keyed: list[Keyed] = []
        self._outcomes(changes, plain, keyed)
        transitions = changes.transitions
        for one in transitions:
            if one.closes:
                _close(one, plain, keyed)
        if plan:
            plain += map(_asked, plan.asked)
        if transitions:
            plain += _slot_steps(transitions, keyed)
        if plan:
            keyed += self._waiting(plan, wall)
        for change in _merged(changes.windows):
            keyed += self._window(change)
        if changes.paused is not None:
            keyed += self._pauses(changes.paused)
        for reported in changes.reported:
            plain += _reported(reported)
        lines = [*plain, *self._repeats.take(keyed, wall)] if keyed else plain
        if ending or wall >= self._repeats.due_at:
            lines += self._repeats.due(wall, ending=ending)
        if lines:
            self._write(lines, {"time": stamp(wall), "cycle": changes.number})

    def _write(self, lines: Sequence[Line], head: Line) -> None:
        try:
            self._state.add_history([head | line for line in lines])
        except StateError as error:
            log.warning("Journal could not be written", extra={"error": str(error)})

    def _outcomes(self, changes: Changes, plain: list[Line], keyed: list[Keyed]) -> None:
        if changes.results and self._deleted:
            old = changes.wall - COUNTED_SECONDS
            self._deleted = {name: at for name, at in self._deleted.items() if at > old}
        for done in changes.results:
            for outcome in done.outcomes:
                line, action = _outcome_line(outcome), outcome.action
                of = action.reason if isinstance(action, Delete) else action.template
                if outcome.failure is not None or (isinstance(action, Delete) and action.name in self._deleted):
                    keyed.append(((line["event"], action.pool, of, line["result"]), line))
                else:
                    plain.append(line)
                if isinstance(action, Delete) and outcome.failure is None:
                    self._deleted[action.name] = changes.wall

    def _waiting(self, plan: Plan, wall: float) -> Iterator[Keyed]:
        """Requests whose machines are held back, once for each reason, and once that it is over."""
        requests = plan.memory.requests
        for id_ in self._waits.keys() - plan.deferrals.keys():
            wait = self._waits.pop(id_)
            if id_ in requests:
                line: Line = {"event": "deferred", "request": id_, "template": requests[id_].template}
                yield ("deferred", id_, "over"), line | {"over": True, "seconds": round(wall - wait.since, 1)}
        for id_, deferral in plan.deferrals.items():
            said = self._waits.setdefault(id_, _Wait(wall, set())).said
            where = deferral.pool, deferral.reasons[deferral.pool]
            if where not in said:
                said.add(where)
                yield ("deferred", id_, *where), _deferred(plan, id_, deferral)

    def _pauses(self, paused: frozenset[str]) -> Iterator[Keyed]:
        for pool in sorted(paused ^ self._paused):
            event = "paused" if pool in paused else "resumed"
            yield (event, pool), {"event": event, "pool": pool}
        self._paused = paused

    def _window(self, change: WindowChange) -> Iterator[Keyed]:
        """A window that halved, that doubled, or whose pool begins or ceases to back off."""
        key, window = (change.pool, change.template), change.window
        before = self._windows.setdefault(key, change.before or Window(window.window))
        if _differs(before, window):
            self._windows[key] = window
            yield ("window", key, window.level > 0), _window(key, before, window)


@dataclass(frozen=True, slots=True)
class _Wait:
    """A request that is deferred."""

    since: float
    """Epoch seconds."""
    said: set[tuple[str, PendingReason]]
    """The pools and reasons that were written."""


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


def _asked(record: RequestRecord | ReturnRecord) -> Line:
    if isinstance(record, ReturnRecord):
        return {"event": "back", "return": record.id, "machines": list(record.names)}
    line: Line = {"event": "asked", "request": record.id, "template": record.template, "count": record.count}
    return line | {"account": record.rc_account} if record.rc_account else line


def _slot_steps(transitions: Iterable[Transition], keyed: list[Keyed]) -> Iterator[Line]:
    """Slots that were opened, machines that run for the first time, and those of which nothing is left.

    ``keyed`` gets what places say of machines that do not run yet.
    """
    opened, running, gone = (defaultdict[tuple[str, str], list[str]](list) for _ in range(3))
    for one in transitions:
        slot, where = one.slot, (one.slot.request, one.slot.pool)
        # One that is closed at once was only opened to report to HF why there is no machine.
        if one.before is None and (slot.submitted is not None or slot.verdict is Verdict.OPEN):
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


def _deferred(plan: Plan, id_: str, deferral: Deferral) -> Line:
    pool, template = deferral.pool, plan.memory.requests[id_].template
    reason = deferral.reasons[pool]
    line: Line = {"event": "deferred", "request": id_, "template": template}
    line |= {"pool": pool, "reason": reason, "count": deferral.machines}
    window = plan.memory.pressures.get((pool, template))
    if reason is PendingReason.BACKOFF and window is not None and window.failure is not None:
        line |= window.failure.facts
    bounds = [one.bound for one in plan.unmet.get(id_, ()) if (one.pool, one.reason) == (pool, reason)]
    if reason is PendingReason.WINDOW and window is not None:  # the unmet machines lack it while the pool is busy
        bounds = [width(window)]
    return line | {"bound": bounds[-1]} if bounds and bounds[-1] is not None else line


def _merged(changes: Iterable[WindowChange]) -> Iterable[WindowChange]:
    """Return one change for each window, from before the cycle to what the cycle left, and none in between."""
    merged: dict[tuple[str, str], WindowChange] = {}
    for change in changes:
        key = change.pool, change.template
        merged[key] = merged.get(key, change)._replace(window=change.window)
    return merged.values()


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


def _reported(reported: Reported) -> Iterator[Line]:
    """The answers that say something for the first time, and the machines that HF is told to give back."""
    for before, record in reported.records:
        words = _words(record)
        former = _words(before) if before else dict.fromkeys(words, 0) | {"answer": RequestStatus.RUNNING}
        if words != former:  # HF takes for granted that a new request runs, without any machine
            yield {"event": "told", "request" if isinstance(record, RequestRecord) else "return": record.id, **words}
    groups = defaultdict[tuple[str, int], list[str]](list)
    for name, loss in reported.lost.items():
        groups[loss.cause, loss.grace].append(name)
    for (cause, grace), names in groups.items():
        line: Line = {"event": "told", "answer": "lost", "cause": cause, "machines": sorted(names)}
        yield line | {"seconds": grace} if grace else line


def _words(record: RequestRecord | ReturnRecord) -> Line:
    """What an answer says, in short."""
    if isinstance(record, RequestRecord):
        ended = None if record.cancelling else record.ended
        ran = sum([is_reported_running(slot) for slot in record.slots.values()])
        return {"answer": ended or RequestStatus.RUNNING, "running": ran}
    return {"answer": record.ended or RequestStatus.RUNNING}


def _hold(word: str, hold: Lever) -> Line:
    line: Line = {"event": "lever", "lever": hold.kind, "result": word}
    if hold.kind is LeverKind.CANCEL:
        line["machine" if "-" in hold.target else "request"] = hold.target
    elif hold.kind is not LeverKind.STOP_ALL:
        line["pool"] = hold.target
    return line | {"who": hold.who, "text": hold.reason}
