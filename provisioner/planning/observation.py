"""What the snapshots say of the slots: the passive half of a plan. It reports the world, it never wishes.

Pure: no I/O, no clock, no logger.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from provisioner.model import (
    DeleteReason,
    ErrorClass,
    Failure,
    Fingerprint,
    LossCause,
    Machine,
    Notice,
    Phase,
    Pressure,
    RequestRecord,
    Slot,
    Snapshot,
    Verdict,
    evolve,
)
from provisioner.planning import window
from provisioner.planning.draft import OWNED, SOON, Draft
from provisioner.planning.early_loss import EarlyLosses

UNKNOWN = Fingerprint()
VANISHED = Failure(ErrorClass.OTHER, "The machine vanished.")
REPLACED = Failure(ErrorClass.OTHER, "Another machine appeared under the same name.")
ENDED = Failure(ErrorClass.OTHER, "The machine ended.")


@dataclass(frozen=True, slots=True)
class News:
    """What the snapshots teach about pools and templates, besides what they say of single slots."""

    early: EarlyLosses
    began: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """By pool and template: when the machines were asked for that are now first seen running."""


LATE_CREATE = 60.0
"""Seconds for which a create without a good answer may still be under way, and hold its place: longer than any call."""


def reflect(draft: Draft) -> None:
    """Bring every slot in line with the newest complete snapshot of its pool; list what no slot explains."""
    explained: dict[str, int] = dict.fromkeys(draft.snapshots, 0)
    news = News(EarlyLosses(draft))
    for record in draft.records():
        for slot in tuple(record.slots.values()):
            snapshot = draft.snapshots.get(slot.pool)
            if snapshot is None:
                continue
            machine = snapshot.machines.get(slot.name)
            if machine is not None:
                explained[slot.pool] += 1
                if not _unchanged(slot, machine):
                    _present(draft, record, slot, machine, news)
            elif not slot.gone:
                _absent(draft, record, slot, snapshot, news)
    for key, submissions in news.began.items():
        draft.set_pressure(*key, _ran(draft, *key, submissions))
    news.early.judge()
    for name, snapshot in draft.snapshots.items():
        if len(snapshot.machines) > explained[name]:
            draft.unknown[name] = _unexplained(draft, snapshot)


def _ran(draft: Draft, pool: str, template: str, submissions: list[float]) -> Pressure:
    return window.ran(
        draft.pressure(pool, template),
        draft.pool(pool),
        max(submissions),
        draft.now,
        draft.limits,
        machines=len(submissions),
    )


def _unchanged(slot: Slot, machine: Machine) -> bool:
    """The usual case, decided cheaply: it runs, as before."""
    return (
        slot.ran is not None
        and slot.verdict in OWNED
        and machine.phase is Phase.RUNNING
        and (slot.fingerprint is machine.fingerprint or slot.fingerprint == machine.fingerprint)
        and slot.notice is machine.notice
        and slot.absent is None
    ) or slot.set_aside


def _present(draft: Draft, record: RequestRecord, slot: Slot, machine: Machine, news: News) -> None:
    ended = draft.snapshots[slot.pool].began
    if slot.verdict not in OWNED:
        _remains(draft, record, slot, machine)
    elif slot.ran is not None and slot.fingerprint.differs(machine.fingerprint):
        _end(draft, record, slot, REPLACED, machine.cause or LossCause.UNKNOWN, news, ended)
    elif machine.phase is Phase.GONE:
        _end(draft, record, _applied(slot), machine.failure or ENDED, machine.cause or LossCause.UNKNOWN, news, ended)
    elif machine.phase is Phase.STOPPING and slot.verdict is Verdict.OPEN:
        _end(draft, record, _applied(slot), machine.failure or ENDED, machine.cause or LossCause.DELETED, news, ended)
    else:
        if machine.phase is Phase.STOPPING:  # HF hears of it now, and may give it back before it is gone
            cause = machine.cause or LossCause.DELETED
            marked, _ = news.early.mark(record, slot, machine.failure or ENDED, cause, ended)
            if marked != slot:
                draft.put(record.id, marked)
            slot = marked
        _follow(draft, record, slot, machine, news)


def _applied(slot: Slot) -> Slot:
    """A slot whose machine is there: whatever became of its create call, it was applied."""
    return evolve(slot, seen=True, accepted=True, submitted=_submitted(slot))


def _submitted(slot: Slot) -> float:
    """When the create of a machine that is there was sent, as far as is known."""
    return slot.opened if slot.submitted is None else slot.submitted


def _follow(draft: Draft, record: RequestRecord, slot: Slot, machine: Machine, news: News) -> None:
    """A machine that is there and may stay: remember what HF and later comparisons need."""
    runs = slot.ran is None and machine.phase is Phase.RUNNING
    known = slot.ran is not None or runs
    changed = evolve(
        slot,
        seen=True,
        accepted=True,
        submitted=_submitted(slot),
        absent=None,
        ran=draft.now if runs else slot.ran,
        # Until one runs there may be several: each attempt of a group is another instance.
        fingerprint=machine.fingerprint if slot.ran is None else _merged(slot.fingerprint, machine.fingerprint),
        # What HF was told of a machine that runs is never told differently.
        ip=slot.ip if slot.ran is not None else machine.ip,
        public_ip=slot.public_ip if slot.ran is not None else machine.public_ip,
        launched=slot.launched if slot.ran is not None else machine.launched,
        failure=None if known else machine.failure,
        notice=_announced(slot.notice, machine.notice),
        cause=machine.cause or slot.cause,
        gated=machine.gated,
        lifted=draft.now if slot.gated and not machine.gated else slot.lifted,
    )
    if runs or changed != slot:
        draft.put(record.id, changed)
    if runs:
        news.began.setdefault((slot.pool, record.template), []).append(changed.submitted or slot.opened)


def _merged(known: Fingerprint, seen: Fingerprint) -> Fingerprint:
    """A value once known is kept; one that appears is added."""
    if known == UNKNOWN:
        return seen
    merged = Fingerprint(
        known.uid or seen.uid, known.created or seen.created, known.started or seen.started, known.ip or seen.ip
    )
    return known if merged == known else merged


def _announced(known: Notice | None, seen: Notice | None) -> Notice | None:
    """An end that was announced does not move to later: a loop that starts reckons it anew."""
    stands = known is not None and seen is not None and known.cause is seen.cause and known.ends < seen.ends
    return known if stands else seen


def _remains(draft: Draft, record: RequestRecord, slot: Slot, machine: Machine) -> None:
    """Something exists under a closed slot's name, however late: it is to be deleted."""
    changed = evolve(
        slot,
        gone=False,
        absent=None,
        seen=True,
        delete=slot.delete or DeleteReason.FAILED,
        fingerprint=machine.fingerprint,
    )
    if changed != slot:
        draft.put(record.id, changed)


def _absent(draft: Draft, record: RequestRecord, slot: Slot, snapshot: Snapshot, news: News) -> None:
    """Not in a complete snapshot. Absence is proven by two that begin the backend's lag apart (DESIGN §5).

    An accepted create that no look has shown may still come, unless its place says that it came and went.
    """
    may_appear_until = (slot.submitted or 0.0) + (0.0 if slot.accepted else LATE_CREATE)
    expected_since = max(may_appear_until, slot.closed or 0.0)
    told = snapshot.causes.get(slot.name)
    may_come = slot.verdict is Verdict.OPEN and not slot.seen and told is None
    if slot.set_aside or may_come:
        return
    if snapshot.began <= expected_since:
        draft.wake_at(max(expected_since, draft.now) + SOON)
        return
    lag = draft.pool(slot.pool).lag
    if slot.absent is None:
        better = slot.verdict in OWNED and told not in (None, LossCause.UNKNOWN)
        draft.put(record.id, evolve(slot, absent=snapshot.began, cause=told if better else slot.cause))
        draft.wake_at(draft.now + max(lag, SOON))
    elif snapshot.began <= slot.absent or snapshot.began - slot.absent < lag:
        draft.wake_at(draft.now + max(slot.absent + lag - snapshot.began, SOON))
    elif slot.verdict in OWNED:
        _end(draft, record, slot, VANISHED, slot.cause or LossCause.UNKNOWN, news, slot.absent, gone=True)
    else:
        draft.put(record.id, evolve(slot, gone=True))


def _end(
    draft: Draft,
    record: RequestRecord,
    slot: Slot,
    failure: Failure,
    cause: LossCause,
    news: News,
    ended: float,
    *,
    gone: bool = False,
) -> None:
    """A machine ended by itself: lost when HF had been told of it for good, else failed (and replaced).

    The look that first showed so began at ``ended``.
    """
    slot, failure = news.early.mark(record, slot, failure, cause, ended)
    if slot.verdict is Verdict.SUCCEEDED:
        draft.close(record, slot, Verdict.LOST, reason=DeleteReason.LOST, failure=failure, cause=cause, gone=gone)
        return
    draft.close(record, slot, Verdict.FAILED, reason=DeleteReason.FAILED, failure=failure, cause=cause, gone=gone)
    if slot.ran is None:
        known = draft.pressure(slot.pool, record.template)
        learned = window.failed(known, failure, slot.submitted or slot.opened, draft.now, draft.limits, boot=True)
        draft.set_pressure(slot.pool, record.template, learned)


def _unexplained(draft: Draft, snapshot: Snapshot) -> list[str]:
    slots: Set[str] = {
        slot.name for record in draft.records() for slot in record.slots.values() if slot.pool == snapshot.pool
    }
    return [name for name in snapshot.machines if name not in slots]
