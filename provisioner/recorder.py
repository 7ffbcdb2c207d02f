"""Turns what a cycle reports into metrics: counts what memory and snapshots hold, and notices what is new in them.

Reads the report and nothing else; decides nothing. Records that did not change are not counted again, so a quiet cycle
costs nearly nothing whatever the number of machines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from provisioner.metrics import CycleResult, Metrics
from provisioner.model import (
    REQUEST_ID_LENGTH,
    SLOT_DIGITS,
    DeferReason,
    DeleteReason,
    ErrorClass,
    Limits,
    Memory,
    Phase,
    RequestRecord,
    RequestStatus,
    Slot,
    Snapshot,
    Verdict,
)
from provisioner.reconcile import CycleReport

UNKNOWN_TEMPLATE = "unknown"
"""Label of machines of ours whose request memory does not know: orphans."""


@dataclass(frozen=True, slots=True)
class _Counted:
    """What one request adds to the gauges."""

    record: RequestRecord
    desired: Mapping[tuple[str, str], int]
    unmet: bool
    set_aside: int


class Recorder:
    """Feeds one ``Metrics`` from the reports of one loop, in their order."""

    def __init__(self, metrics: Metrics, limits: Limits) -> None:
        self._metrics = metrics
        self._limits = limits
        self._counted: dict[str, _Counted] = {}
        self._before: Memory | None = None
        self._machines: dict[str, tuple[object, object, Counter[tuple[str, str, Phase]]]] = {}
        self.configure(limits)

    def configure(self, limits: Limits) -> None:
        """The configuration in force from now on."""
        self._limits = limits
        self._metrics.configure(limits)

    def record(self, report: CycleReport, wall: float) -> None:
        """A cycle has ended; ``wall`` is the epoch time now, for the timestamps."""
        offset = wall - report.now
        self._metrics.cycle(cast("CycleResult", report.result), report.seconds, wall)
        for look in report.looks.values():
            if isinstance(look, Snapshot):
                self._metrics.observed(look.pool, look.began + offset)
        for results in report.results:
            for outcome in results.outcomes:
                self._metrics.outcome(outcome)
        for close in report.closes:
            if close.verdict is Verdict.FAILED:
                error = close.failure.error if close.failure else ErrorClass.OTHER
                self._metrics.failed(close.pool, close.template, error)
            elif close.verdict is Verdict.LOST and close.cause is not None:
                self._metrics.lost(close.pool, close.template, close.cause)
        self._metrics.deferred(cast("Mapping[tuple[str, str, DeferReason], int]", report.deferred))
        if report.memory is not None:
            self._memory(report.memory, report.now, offset)
            self._snapshots(report, report.memory)

    def _memory(self, memory: Memory, now: float, offset: float) -> None:
        if memory is self._before:
            return
        self._notice(memory, now)
        self._counted = {id_: self._count(record) for id_, record in memory.requests.items()}
        self._before = memory
        counted = self._counted.values()
        desired: Counter[tuple[str, str]] = Counter()
        oldest: dict[str, float] = {}
        for item in counted:
            desired.update(item.desired)
            if item.unmet:
                asked, name = item.record.read + offset, item.record.template
                oldest[name] = min(asked, oldest.get(name, asked))
        self._metrics.desired(desired)
        self._metrics.oldest_unmet(oldest)
        self._metrics.set_aside(sum(item.set_aside for item in counted))
        self._metrics.requests(_requests(memory))
        self._metrics.windows(self._windows(memory))
        self._metrics.brakes([(memory.brake.pool, memory.brake.reason)] if memory.brake else [])

    def _count(self, record: RequestRecord) -> _Counted:
        """What a request adds; counted again only when its record is another object."""
        known = self._counted.get(record.id)
        if known is not None and known.record is record:
            return known
        slots = record.slots.values()
        wanted = (slot for slot in slots if slot.verdict in (Verdict.OPEN, Verdict.SUCCEEDED))
        return _Counted(
            record,
            Counter((slot.pool, record.template) for slot in wanted),
            unmet=any(slot.verdict is Verdict.OPEN and slot.ran is None for slot in slots),
            set_aside=sum(slot.set_aside for slot in slots),
        )

    def _notice(self, memory: Memory, now: float) -> None:
        """Start-ups and shut-downs since the memory before; none from the first one, which may be hours old."""
        if self._before is None:
            return
        for record, slot, before in _changed(memory, self._before):
            if slot.ran is not None and (before is None or before.ran is None):
                self._metrics.started(slot.pool, record.template, slot.ran - record.read)
            if slot.gone and before is not None and not before.gone and slot.delete is DeleteReason.RETURNED:
                self._metrics.stopped(slot.pool, now - (slot.closed if slot.closed is not None else now))

    def _windows(self, memory: Memory) -> dict[str, int]:
        """Pressure allowed now, by pool; a template that was never tried there has the window it would begin with."""
        windows: Counter[str] = Counter()
        for template in self._limits.templates.values():
            for name in template.pools:
                pool, known = self._limits.pools.get(name), memory.pressures.get((name, template.id))
                if known is not None:
                    windows[name] += known.window
                elif pool is not None:
                    windows[name] += min(pool.initial_window, pool.max_pending)
        return dict(windows)

    def _snapshots(self, report: CycleReport, memory: Memory) -> None:
        """Machines by phase. A pool that cannot be seen keeps its last numbers: a failed look is not an empty look."""
        templates = {id_: record.template for id_, record in memory.requests.items()}
        for name, look in report.looks.items():
            if isinstance(look, Snapshot):
                held = self._machines.get(name)
                if held is None or held[0] is not look.machines or held[1] != templates.keys():
                    self._machines[name] = (look.machines, templates.keys(), _by_phase(look, templates))
        self._machines = {name: held for name, held in self._machines.items() if name in report.looks}
        total: Counter[tuple[str, str, Phase]] = Counter()
        for _, _, counts in self._machines.values():
            total.update(counts)
        self._metrics.machines(total)


def _changed(memory: Memory, before: Memory) -> Iterator[tuple[RequestRecord, Slot, Slot | None]]:
    """Each slot that is another object than before, with its request and what it was."""
    for id_, record in memory.requests.items():
        old = before.requests.get(id_)
        if record is old:
            continue
        for number, slot in record.slots.items():
            known = old.slots.get(number) if old is not None else None
            if slot is not known:
                yield record, slot, known


def _by_phase(snapshot: Snapshot, templates: Mapping[str, str]) -> Counter[tuple[str, str, Phase]]:
    return Counter(
        (snapshot.pool, templates.get(_request_of(machine.name), UNKNOWN_TEMPLATE), machine.phase)
        for machine in snapshot.machines.values()
    )


def _request_of(name: str) -> str:
    """The request id in a machine's name: all names have one shape."""
    end = len(name) - SLOT_DIGITS - 1
    return name[end - REQUEST_ID_LENGTH : end]


def _requests(memory: Memory) -> Counter[tuple[str, RequestStatus]]:
    counts = Counter(("request", record.ended or RequestStatus.RUNNING) for record in memory.requests.values())
    counts.update(("return", record.ended or RequestStatus.RUNNING) for record in memory.returns.values())
    return counts
