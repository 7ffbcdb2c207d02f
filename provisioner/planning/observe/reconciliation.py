"""Reconciliation of slots with snapshots. This part of a plan only updates slots. It plans no action."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from provisioner.model import (
    DESIRED,
    NEVER,
    DeleteReason,
    Deletion,
    ErrorClass,
    Failure,
    Life,
    LossCause,
    Machine,
    Notice,
    Observed,
    Phase,
    RequestRecord,
    Slot,
    Verdict,
)
from provisioner.planning.core.draft import Draft
from provisioner.planning.core.window_and_backoff import after_runs
from provisioner.planning.observe.absence import end_down, note_absent
from provisioner.planning.observe.ends import EarlyLosses, End, end_slot, is_expiry

PENDING, RUNNING, STOPPING, GONE = Phase.PENDING, Phase.RUNNING, Phase.STOPPING, Phase.GONE
"""Phases as module constants. Reading a phase from its class would take a fifth of the time in which a plan compares
all slots with machines."""

REPLACED = Failure(ErrorClass.OTHER, "Another machine appeared under the same name.")
ENDED = Failure(ErrorClass.OTHER, "The machine ended.")
STRAYED = Failure(ErrorClass.INVALID, "The place made the machine without our identity.")


@dataclass(frozen=True, slots=True)
class News:
    """Findings from the snapshots that concern pools and templates, not single slots."""

    early: EarlyLosses
    began: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """By pool and template: the moment of the create of each machine that this plan first sees running."""
    down: list[tuple[RequestRecord, Slot]] = field(default_factory=list)
    """Machines that were reported to HF as running and are down now."""


def reconcile(draft: Draft) -> None:
    """Update every slot from the newest complete snapshot of its pool. List the machines without a slot."""
    explained: list[str] = []
    news = News(EarlyLosses(draft))
    # For these pools another endpoint may have answered, whose machines may have the same names.
    elsewhere = {pool for pool, distrusted in draft.distrusted.items() if distrusted.until == NEVER}
    absent: list[tuple[RequestRecord, Slot]] = []
    machines = {name: snapshot.machines for name, snapshot in draft.snapshots.items()}
    for record in draft.records():
        for slot in record.slots.values():
            there = machines.get(slot.pool)
            if there is None:
                continue
            machine = there.get(slot.name)
            if machine is not None:
                explained.append(slot.pool)
                if not _is_unchanged(slot, machine) and slot.pool not in elsewhere:
                    _reconcile_present(draft, record, slot, machine, news)
            elif not slot.deletion.is_gone:
                absent.append((record, slot))
    for record, slot in absent:
        note_absent(draft, record, slot, news.early)
    for key, submissions in news.began.items():
        newest, limits = max(submissions), draft.pool(key[0])
        changed = after_runs(draft.window(*key), limits, newest, draft.now, draft.limits, machines=len(submissions))
        draft.set_window(*key, changed)
    end_down(draft, news.down, news.early)
    news.early.judge()
    for pool in draft.distrusted:  # from here on the pool counts as not observed
        draft.snapshots.pop(pool, None)
    _list_unknown(draft, Counter(explained))


def _list_unknown(draft: Draft, explained: Mapping[str, int]) -> None:
    """List the machines that have no slot. ``explained``: the number of machines with a slot, by pool."""
    for name, snapshot in draft.snapshots.items():
        if len(snapshot.machines) > explained[name]:
            slots = {slot.name for record in draft.records() for slot in record.slots.values() if slot.pool == name}
            draft.unknown[name] = [machine for machine in snapshot.machines if machine not in slots]


def _is_unchanged(slot: Slot, machine: Machine) -> bool:
    """Return whether the slot needs no update. Usually its machine has not changed since the last plan.

    A slot that is set aside is not updated either, because an operator has to check it first.
    """
    known = slot.observed
    return (
        slot.verdict in DESIRED
        and (known.notice is machine.notice or (machine.notice is None and _is_expiry_notice(known.notice)))
        and known.expires_at == machine.expires_at
        and known.absent_since is None
        and slot.life.down_since is None
        and known.is_strayed is machine.is_strayed
        and (_is_still_pending(slot, machine) if slot.ran_at is None else machine.phase is RUNNING)
        and (known.fingerprint is machine.fingerprint or known.fingerprint == machine.fingerprint)
    ) or slot.is_set_aside


def _is_still_pending(slot: Slot, machine: Machine) -> bool:
    """Return whether the machine does not run yet and has not changed."""
    known = slot.observed
    return (
        machine.phase is PENDING
        and known.was_seen
        and known.is_accepted
        and slot.submitted_at is not None
        and _get_queue(known) == (machine.queued and (machine.queued.since, machine.queued.reason))
        and machine.cause is None
        and (slot.failure is machine.failure or slot.failure == machine.failure)
        and (known.ip, known.public_ip, known.launched) == (machine.ip, machine.public_ip, machine.launched)
    )


def _get_queue(known: Observed) -> tuple[int, str] | None:
    """Return the machine's last seen wait in a queue: its start and its reason. Return None if the machine was not
    queued.

    The start is in epoch seconds by the place's clock.
    """
    return (known.queued_since, known.queue_reason) if known.is_queued else None


def _reconcile_present(draft: Draft, record: RequestRecord, slot: Slot, machine: Machine, news: News) -> None:
    seen = draft.snapshots[slot.pool].began_at
    if machine.phase in (STOPPING, GONE) and is_expiry(draft, slot, seen):
        notice = machine.notice and replace(machine.notice, cause=LossCause.EXPIRES)
        machine = replace(machine, cause=LossCause.EXPIRES, notice=notice)
    if slot.verdict not in DESIRED:
        _note_leftovers(draft, record, slot, machine)
    elif slot.ran_at is not None and slot.observed.fingerprint.differs(machine.fingerprint):
        end_slot(draft, record, slot, End(REPLACED, machine.cause or LossCause.UNKNOWN, seen), news.early)
    elif (unfit := _find_unfit_end(draft, slot, machine, seen)) is not None:
        end_slot(draft, record, _mark_applied(slot), unfit, news.early)
    elif machine.phase is GONE or (machine.phase is STOPPING and slot.verdict is Verdict.OPEN):
        end_slot(draft, record, _mark_applied(slot), _get_end(machine, seen), news.early)
    elif machine.phase is STOPPING:  # HF reads of this end now, and may return the machine before it is gone
        marked, _ = news.early.mark(record, slot, _get_end(machine, seen))
        if marked != slot:
            draft.put_slots(record.id, marked)
        _follow(draft, record, marked, machine, news)
    else:
        _follow(draft, record, slot, machine, news)


def _find_unfit_end(draft: Draft, slot: Slot, machine: Machine, seen: float) -> End | None:
    """Return the end of a machine that must not begin to run, because it has lost our identity or will end too soon.

    Return None for any other machine.
    """
    if slot.ran_at is not None:
        return None
    if machine.is_strayed:
        return End(STRAYED, LossCause.UNKNOWN, seen)
    ends, least = draft.expiry(slot.pool, machine.expires_at), draft.pool(slot.pool).least_life_seconds
    if machine.phase in (STOPPING, GONE) or ends is None:
        return None
    left = max(0.0, ends - draft.now)
    text = f"The place ends the machine in {left:.0f} s, and least_life_seconds of the pool is {least:g}."
    return End(Failure(ErrorClass.OTHER, text), LossCause.EXPIRES, seen) if left < least else None


def _is_expiry_notice(notice: Notice | None) -> bool:
    """Return whether a notice announces an end that was known from the start. The plan makes these notices;
    observations do not contain them."""
    return notice is not None and notice.cause is LossCause.EXPIRES


def _get_end(machine: Machine, seen: float) -> End:
    """Return the end of a machine that is gone or stopping."""
    usual = LossCause.UNKNOWN if machine.phase is GONE else LossCause.DELETED
    return End(machine.failure or ENDED, machine.cause or usual, seen)


def _mark_applied(slot: Slot) -> Slot:
    """Return the slot of an existing machine, with its create marked as carried out."""
    return slot._replace(submitted_at=slot.asked_at).with_observed(was_seen=True, is_accepted=True)


def _follow(draft: Draft, record: RequestRecord, slot: Slot, machine: Machine, news: News) -> None:
    """Record the data of a machine that may stay: the data that HF needs, and the data that later plans compare."""
    has_run, known = slot.ran_at is not None, slot.observed
    is_put_off = known.expires_at != machine.expires_at and _is_expiry_notice(known.notice)
    is_first_run = not has_run and machine.phase is RUNNING
    # The addresses of a machine that was reported to HF as running never change.
    shown: Observed | Machine = known if has_run else machine
    observed = Observed(
        is_accepted=True,
        was_seen=True,
        # Until an instance runs, its fingerprint may change, because a group makes a new instance for each attempt.
        fingerprint=known.fingerprint.with_appeared(machine.fingerprint) if has_run else machine.fingerprint,
        ip=shown.ip,
        public_ip=shown.public_ip,
        launched=shown.launched,
        notice=_get_notice(None if is_put_off else known.notice, machine.notice),
        is_queued=machine.queued is not None,
        is_strayed=machine.is_strayed,
        expires_at=machine.expires_at,
        cause=machine.cause or known.cause,
        queued_since=machine.queued.since if machine.queued else 0,
        queue_reason=machine.queued.reason if machine.queued else "",
    )
    changed = slot._replace(
        submitted_at=slot.asked_at,
        ran_at=draft.now if is_first_run else slot.ran_at,
        observed=observed,
        failure=machine.failure if machine.phase is PENDING else None,
        life=_update_life(slot, machine, draft.now, is_put_off),
    )
    if is_first_run or changed != slot:
        draft.put_slots(record.id, changed)
    if changed.life.down_since is not None:
        news.down.append((record, changed))
    if is_first_run:
        news.began.setdefault((slot.pool, record.template), []).append(slot.asked_at)


def _update_life(slot: Slot, machine: Machine, now: float, is_put_off: bool) -> Life:
    """Return the life of a slot after an observation.

    The life contains the machine's release from a queue, the start of a downtime, and whether the machine still
    retires. If the place has postponed the machine's end, the machine no longer retires.
    """
    life = slot.life
    if is_put_off:
        life = life._replace(retiring_at=None)
    if slot.observed.is_queued and machine.queued is None:
        life = life._replace(released_at=now)
    is_down = slot.ran_at is not None and machine.phase is PENDING and not machine.is_nameless
    if is_down is (life.down_since is None):
        life = life._replace(down_since=now if is_down else None)
    return life


def _get_notice(known: Notice | None, seen: Notice | None) -> Notice | None:
    """Return the notice in force. If a restarted loop computes a later end for the same cause, the earlier end
    stays."""
    if seen is None:
        return known if _is_expiry_notice(known) else None
    return known if known is not None and known.cause is seen.cause and known.ends_at < seen.ends_at else seen


def _note_leftovers(draft: Draft, record: RequestRecord, slot: Slot, machine: Machine) -> None:
    """Mark the machine of a closed slot for deletion. The machine may have appeared long after the close.

    If the name now belongs to a machine with another uid, earlier deletes do not count, because they went to another
    machine. The new machine then gets its first delete at once.
    """
    known, uid, done = slot.observed.fingerprint.uid, machine.fingerprint.uid, slot.deletion
    if known and uid and known != uid:
        done = Deletion(done.closed_at, done.reason)
    changed = slot.with_observed(
        was_seen=True, absent_since=None, fingerprint=machine.fingerprint, is_strayed=machine.is_strayed
    )._replace(
        deletion=done._replace(
            is_gone=False, reason=done.reason or DeleteReason.FAILED, hindrance=machine.hindrance or done.hindrance
        )
    )
    if changed != slot:
        draft.put_slots(record.id, changed)
