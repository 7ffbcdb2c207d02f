"""The journal lines of a cycle: each call that was tried, each step of a request, and each answer reported to HF.

``loop/repeated_lines.py`` counts repeated lines. All lines follow from the changes that the cycle returns.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from provisioner.loop.cycle_report import Changes
from provisioner.loop.publisher import Reported
from provisioner.loop.repeated_lines import COUNTED_SECONDS, Line, Repeats
from provisioner.model import (
    Deferral,
    Delete,
    Hold,
    HoldKind,
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
from provisioner.names import group_by
from provisioner.planning.core.window_and_backoff import get_pending_limit
from provisioner.planning.report.answers import is_reported_running
from provisioner.state.errors import StateError
from provisioner.state.journal import format_time
from provisioner.state.protocols import State

log = logging.getLogger(__name__)

COUNTED_VERDICTS = frozenset({Verdict.FAILED, Verdict.WITHDRAWN})
"""Verdicts that slots get again and again if their pool fails. The journal counts repeated closes with these verdicts
instead of writing each close."""

Keyed = tuple[Hashable, Line]
"""A line with its key. A line with the key of an earlier line counts as a repetition of that line. A line with the key
None is always written."""


class History:
    """Writer of the journal. The writer runs in the loop's thread and writes the changes of each cycle."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._repeats = Repeats()
        self._windows: dict[tuple[str, str], Window] = {}
        """Windows as last written, or as first seen."""
        self._paused: frozenset[str] = frozenset()
        """Pools that were last written as paused."""
        self._waits: dict[str, _Wait] = {}
        """Waits of the deferred requests, by id."""
        self._deleted: dict[str, float] = {}
        """Epoch seconds of the last successful delete of each machine. A delete that is soon sent again is counted as a
        repetition."""

    def record(self, changes: Changes, *, ending: bool = False) -> None:
        """Write the changes of a cycle, if any. If the journal cannot be written, log the error and continue."""
        wall, keyed = changes.wall, [*self._lines(changes)]
        lines = [line for key, line in keyed if key is None]
        lines += self._repeats.filter_lines([(key, line) for key, line in keyed if key is not None], wall)
        if ending or wall >= self._repeats.due_at:
            lines += self._repeats.get_due_counts(wall, ending=ending)
        if lines:
            self._write(lines, {"time": format_time(wall), "cycle": changes.number})

    def _lines(self, changes: Changes) -> Iterator[Keyed]:
        plan = changes.plan
        for hold_change in changes.holds:
            yield None, _hold_line(*hold_change)
        yield from self._outcome_lines(changes)
        yield from (_close_line(one) for one in changes.transitions if one.is_closed)
        for record in plan.new_records if plan else ():
            yield None, _intent_line(record)
        yield from _slot_steps(changes.transitions)
        if plan:
            yield from self._deferral_lines(plan, changes.wall)
        for change in _merged(changes.windows):
            yield from self._window_lines(change)
        if changes.paused is not None:
            yield from self._pause_lines(changes.paused)
        for reported in changes.reported:
            yield from ((None, line) for line in _reported_lines(reported))

    def _write(self, lines: Sequence[Line], head: Line) -> None:
        try:
            self._state.add_history([head | line for line in lines])
        except StateError as error:
            log.warning("Journal could not be written", extra={"error": str(error)})

    def _outcome_lines(self, changes: Changes) -> Iterator[Keyed]:
        if changes.results and self._deleted:
            old = changes.wall - COUNTED_SECONDS
            self._deleted = {name: at for name, at in self._deleted.items() if at > old}
        for done in changes.results:
            for outcome in done.outcomes:
                line, action = _outcome_line(outcome), outcome.action
                subject = action.reason if isinstance(action, Delete) else action.template
                is_again = isinstance(action, Delete) and action.name in self._deleted
                is_counted = outcome.failure is not None or is_again
                yield (line["event"], action.pool, subject, line["result"]) if is_counted else None, line
                if isinstance(action, Delete) and outcome.failure is None:
                    self._deleted[action.name] = changes.wall

    def _deferral_lines(self, plan: Plan, wall: float) -> Iterator[Keyed]:
        """Yield a line for each new reason that defers a request. Yield another line when the request is no longer
        deferred."""
        requests = plan.memory.requests
        for id_ in self._waits.keys() - plan.deferrals.keys():
            wait = self._waits.pop(id_)
            if id_ in requests:
                line: Line = {"event": "deferred", "request": id_, "template": requests[id_].template}
                yield ("deferred", id_, "over"), line | {"over": True, "seconds": round(wall - wait.since, 1)}
        for id_, deferral in plan.deferrals.items():
            written = self._waits.setdefault(id_, _Wait(wall, set())).written
            where = deferral.pool, deferral.reasons[deferral.pool]
            if where not in written:
                written.add(where)
                yield ("deferred", id_, *where), _deferral_line(plan, id_, deferral)

    def _pause_lines(self, paused: frozenset[str]) -> Iterator[Keyed]:
        for pool in sorted(paused ^ self._paused):
            event = "paused" if pool in paused else "resumed"
            yield (event, pool), {"event": event, "pool": pool}
        self._paused = paused

    def _window_lines(self, change: WindowChange) -> Iterator[Keyed]:
        """Yield a line if a window has halved or doubled since its last line. Also yield a line if the window has
        started or stopped backing off."""
        key, window = (change.pool, change.template), change.window
        before = self._windows.setdefault(key, change.before or Window(window.window))
        if _is_notable(before, window):
            self._windows[key] = window
            yield ("window", key, window.level > 0), _window_line(key, before, window)


@dataclass(frozen=True, slots=True)
class _Wait:
    """The time for which a request has been deferred."""

    since: float
    """Epoch seconds at which the deferral began."""
    written: set[tuple[str, PendingReason]]
    """Pools and reasons for which the journal already has a line."""


def _outcome_line(outcome: Outcome) -> Line:
    action = outcome.action
    line: Line = {"event": type(action).__name__.lower(), "machine": action.name, "pool": action.pool}
    line["result"] = outcome.failure.error if outcome.failure else "ok"
    if isinstance(action, Delete):
        line["reason"] = action.reason
        if action.is_forced:
            line["force"] = True
    if outcome.failure is not None:
        line["text"] = outcome.failure.text
    return line


def _close_line(close: Transition) -> Keyed:
    slot = close.slot
    line: Line = {"event": "close", "machine": slot.name, "pool": slot.pool}
    line |= {"template": close.template, "verdict": slot.verdict}
    if slot.observed.cause is not None:
        line["cause"] = slot.observed.cause
    if slot.failure is not None:
        line |= slot.failure.log_fields
    key = ("close", slot.pool, close.template, slot.verdict, line.get("error"))
    return key if slot.verdict in COUNTED_VERDICTS else None, line


def _intent_line(record: RequestRecord | ReturnRecord) -> Line:
    if isinstance(record, ReturnRecord):
        return {"event": "return", "return": record.id, "machines": list(record.names)}
    line: Line = {"event": "asked", "request": record.id, "template": record.template, "count": record.count}
    return line | {"account": record.rc_account} if record.rc_account else line


def _slot_steps(transitions: Iterable[Transition]) -> Iterator[Keyed]:
    """Yield lines for slots that were opened, machines that run for the first time, and machines that are gone.

    Also yield a line for each failure that keeps a machine from running.
    """
    opened, running, gone = (defaultdict[tuple[str, str], list[str]](list) for _ in range(3))
    for one in transitions:
        slot, where = one.slot, (one.slot.request, one.slot.pool)
        # A slot without a create that closes at once only reports a failure to HF.
        if one.before is None and (slot.submitted_at is not None or slot.verdict is Verdict.OPEN):
            opened[where].append(slot.name)
        if one.is_first_run:
            running[where].append(slot.name)
        if slot.failure is not None:
            yield from _failure_lines(one)
        if one.is_gone and slot.submitted_at is not None:
            gone[where].append(slot.name)
    for (id_, pool), names in opened.items():
        yield None, {"event": "opened", "request": id_, "pool": pool, "count": len(names)}
    for event, groups in (("running", running), ("gone", gone)):
        for (id_, pool), names in groups.items():
            yield None, {"event": event, "request": id_, "pool": pool, "machines": names}


def _failure_lines(one: Transition) -> Iterator[Keyed]:
    """Yield a line if a place reports why a machine does not run. Yield no line if the failure of the slot had the same
    error class before."""
    slot = one.slot
    failure, before = slot.trouble, one.before.trouble if one.before else None
    waits = slot.ran_at is None and slot.verdict is Verdict.OPEN
    if waits and failure is not None and (before is None or before.error is not failure.error):
        line: Line = {"event": "troubled", "machine": slot.name, "pool": slot.pool, "template": one.template}
        yield ("troubled", slot.pool, one.template, failure.error), line | failure.log_fields


def _deferral_line(plan: Plan, id_: str, deferral: Deferral) -> Line:
    pool, template = deferral.pool, plan.memory.requests[id_].template
    reason = deferral.reasons[pool]
    line: Line = {"event": "deferred", "request": id_, "template": template}
    line |= {"pool": pool, "reason": reason, "count": deferral.machines}
    window = plan.memory.windows.get((pool, template))
    if reason is PendingReason.BACKOFF and window is not None and window.failure is not None:
        line |= window.failure.log_fields
    bounds = [one.bound for one in plan.unmet.get(id_, ()) if (one.pool, one.reason) == (pool, reason)]
    if reason is PendingReason.WINDOW and window is not None:  # ``unmet`` has no bound while the pool is busy.
        bounds = [get_pending_limit(window)]
    return line | {"bound": bounds[-1]} if bounds and bounds[-1] is not None else line


def _merged(changes: Iterable[WindowChange]) -> Iterable[WindowChange]:
    """Return one change for each window that changed: its value before the cycle and its value after the cycle."""
    merged: dict[tuple[str, str], WindowChange] = {}
    for change in changes:
        key = change.pool, change.template
        merged[key] = merged.get(key, change)._replace(window=change.window)
    return merged.values()


def _is_notable(before: Window, window: Window) -> bool:
    """Return True if the window has halved or doubled, or if it has started or stopped backing off."""
    turned = (before.level > 0) != (window.level > 0)
    return turned or 2 * window.window <= before.window or window.window >= 2 * before.window


def _window_line(key: tuple[str, str], before: Window, window: Window) -> Line:
    line: Line = {"event": "window", "pool": key[0], "template": key[1], "window": window.window}
    if before.level or window.level:
        line["backing_off"] = window.level > 0
    if window.level and window.failure is not None:
        line |= window.failure.log_fields
    return line


def _reported_lines(reported: Reported) -> Iterator[Line]:
    """Yield a line for each answer that has changed. Also yield lines for the machines newly reported to HF as lost."""
    for before, record in reported.records:
        fields = _answer_fields(record)
        former = _answer_fields(before) if before else dict.fromkeys(fields, 0) | {"answer": RequestStatus.RUNNING}
        if fields != former:  # HF assumes of a new request that it runs and has no machine.
            kind = "request" if isinstance(record, RequestRecord) else "return"
            yield {"event": "reported", kind: record.id, **fields}
    lost = reported.lost
    for (cause, grace), names in group_by(lambda name: (lost[name].cause, lost[name].grace), lost).items():
        line: Line = {"event": "reported", "answer": "lost", "cause": cause, "machines": sorted(names)}
        yield line | {"seconds": grace} if grace else line


def _answer_fields(record: RequestRecord | ReturnRecord) -> Line:
    """Return the journal's fields for an answer."""
    if isinstance(record, RequestRecord):
        ended = None if record.is_cancelling else record.ended
        ran = sum([is_reported_running(slot) for slot in record.slots.values()])
        return {"answer": ended or RequestStatus.RUNNING, "running": ran}
    return {"answer": record.ended or RequestStatus.RUNNING}


def _hold_line(word: str, hold: Hold) -> Line:
    line: Line = {"event": "hold", "hold": hold.kind, "result": word}
    if hold.kind is HoldKind.CANCEL:
        line["machine" if "-" in hold.target else "request"] = hold.target
    elif hold.kind is not HoldKind.STOP_ALL:
        line["pool"] = hold.target
    return line | {"who": hold.who, "text": hold.reason}
