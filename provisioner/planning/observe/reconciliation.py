"""What the snapshots say of the slots: the passive half of a plan. It takes the world in and asks for nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from provisioner.model import (
    DESIRED,
    NEVER,
    DeleteReason,
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
from provisioner.planning.core import window
from provisioner.planning.core.draft import Draft
from provisioner.planning.observe.absence import lose_down, note_absent
from provisioner.planning.observe.ends import EarlyLosses, End, end_slot, is_expiry

PENDING, RUNNING, STOPPING, GONE = Phase.PENDING, Phase.RUNNING, Phase.STOPPING, Phase.GONE
"""Read once: to look a phase up costs a fifth of comparing a slot with its machine, and each plan compares them all."""

REPLACED = Failure(ErrorClass.OTHER, "Another machine appeared under the same name.")
ENDED = Failure(ErrorClass.OTHER, "The machine ended.")
STRAYED = Failure(ErrorClass.INVALID, "Its place made the machine without what marks it as ours.")


@dataclass(frozen=True, slots=True)
class News:
    """What the snapshots teach about pools and templates, besides what they say of single slots."""

    early: EarlyLosses
    began: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """By pool and template: when the machines were asked for that are now first seen running."""
    down: list[tuple[RequestRecord, Slot]] = field(default_factory=list)
    """The machines that HF was told of and that do not run now."""


def reflect(draft: Draft) -> None:
    """Bring every slot in line with the newest complete snapshot of its pool; list what no slot explains."""
    explained: list[str] = []
    news = News(EarlyLosses(draft))
    # Another place may answer for these pools, with machines of the same names.
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
                if not _unchanged(slot, machine) and slot.pool not in elsewhere:
                    _present(draft, record, slot, machine, news)
            elif not slot.deletion.gone:
                absent.append((record, slot))
    for record, slot in absent:
        note_absent(draft, record, slot, news.early)
    for key, submissions in news.began.items():
        newest, limits = max(submissions), draft.pool(key[0])
        changed = window.ran(draft.window(*key), limits, newest, draft.now, draft.limits, machines=len(submissions))
        draft.set_window(*key, changed)
    lose_down(draft, news.down, news.early)
    news.early.judge()
    for pool in draft.distrusted:  # from here on it counts as one that could not be seen
        draft.snapshots.pop(pool, None)
    _list_unknown(draft, Counter(explained))


def _list_unknown(draft: Draft, explained: Mapping[str, int]) -> None:
    """List the machines that no slot explains; ``explained``: by pool, how many machines slots explain."""
    for name, snapshot in draft.snapshots.items():
        if len(snapshot.machines) > explained[name]:
            slots = {slot.name for record in draft.records() for slot in record.slots.values() if slot.pool == name}
            draft.unknown[name] = [machine for machine in snapshot.machines if machine not in slots]


def _unchanged(slot: Slot, machine: Machine) -> bool:
    """The machine runs or waits as before, which is the usual case, or its slot is set aside."""
    held = slot.observed
    return (
        slot.verdict in DESIRED
        and (held.notice is machine.notice or (machine.notice is None and _expires(held.notice)))
        and held.expires == machine.expires
        and held.absent is None
        and slot.life.down is None
        and held.strayed is machine.strayed
        and (_waits_on(slot, machine) if slot.ran is None else machine.phase is RUNNING)
        and (held.fingerprint is machine.fingerprint or held.fingerprint == machine.fingerprint)
    ) or slot.set_aside


def _waits_on(slot: Slot, machine: Machine) -> bool:
    """The machine does not run yet, and nothing about it has changed."""
    held = slot.observed
    return (
        machine.phase is PENDING
        and held.seen
        and held.accepted
        and slot.submitted is not None
        and held.gated is machine.gated
        and machine.cause is None
        and (slot.failure is machine.failure or slot.failure == machine.failure)
        and (held.ip, held.public_ip, held.launched) == (machine.ip, machine.public_ip, machine.launched)
    )


def _present(draft: Draft, record: RequestRecord, slot: Slot, machine: Machine, news: News) -> None:
    seen = draft.snapshots[slot.pool].began
    if machine.phase in (STOPPING, GONE) and is_expiry(draft, slot, seen):
        notice = machine.notice and replace(machine.notice, cause=LossCause.EXPIRES)
        machine = replace(machine, cause=LossCause.EXPIRES, notice=notice)
    if slot.verdict not in DESIRED:
        _remains(draft, record, slot, machine)
    elif slot.ran is not None and slot.observed.fingerprint.differs(machine.fingerprint):
        end_slot(draft, record, slot, End(REPLACED, machine.cause or LossCause.UNKNOWN, seen), news.early)
    elif (unfit := _unfit(draft, slot, machine, seen)) is not None:
        end_slot(draft, record, _applied(slot), unfit, news.early)
    elif machine.phase is GONE or (machine.phase is STOPPING and slot.verdict is Verdict.OPEN):
        end_slot(draft, record, _applied(slot), _ending(machine, seen), news.early)
    elif machine.phase is STOPPING:  # HF hears of it now, and may give it back before it is gone
        end = _ending(machine, seen)
        marked, _ = news.early.mark(record, slot, end.failure, end.cause, seen)
        if marked != slot:
            draft.put(record.id, marked)
        _follow(draft, record, marked, machine, news)
    else:
        _follow(draft, record, slot, machine, news)


def _unfit(draft: Draft, slot: Slot, machine: Machine, seen: float) -> End | None:
    """Return the end of a machine that has not run yet and must not: not as requested, or with too little life left."""
    if slot.ran is not None:
        return None
    if machine.strayed:
        return End(STRAYED, LossCause.UNKNOWN, seen)
    ends, least = draft.expiry(slot.pool, machine.expires), draft.pool(slot.pool).least_life
    if machine.phase in (STOPPING, GONE) or ends is None:
        return None
    left = max(0.0, ends - draft.now)
    text = f"Its place ends it in {left:.0f} s, and least_life_seconds of the pool is {least:g}."
    return End(Failure(ErrorClass.OTHER, text), LossCause.EXPIRES, seen) if left < least else None


def _expires(notice: Notice | None) -> bool:
    """HF was told of an end that the place had told long before; no observation shows that as a notice."""
    return notice is not None and notice.cause is LossCause.EXPIRES


def _ending(machine: Machine, seen: float) -> End:
    """How a machine ends that is gone or stopping."""
    usual = LossCause.UNKNOWN if machine.phase is GONE else LossCause.DELETED
    return End(machine.failure or ENDED, machine.cause or usual, seen)


def _applied(slot: Slot) -> Slot:
    """A slot whose machine is there: whatever became of its create call, it was applied."""
    return slot._replace(submitted=slot.asked_at).with_observed(seen=True, accepted=True)


def _follow(draft: Draft, record: RequestRecord, slot: Slot, machine: Machine, news: News) -> None:
    """A machine that is there and may stay: remember what HF and later comparisons need."""
    told, held = slot.ran is not None, slot.observed
    put_off = held.expires != machine.expires and _expires(held.notice)
    begins = not told and machine.phase is RUNNING
    # What HF was told of a machine that runs is never told differently.
    shown: Observed | Machine = held if told else machine
    observed = Observed(
        accepted=True,
        seen=True,
        # Until one runs there may be several: each attempt of a group is another instance.
        fingerprint=held.fingerprint.with_appeared(machine.fingerprint) if told else machine.fingerprint,
        ip=shown.ip,
        public_ip=shown.public_ip,
        launched=shown.launched,
        notice=_announced(None if put_off else held.notice, machine.notice),
        gated=machine.gated,
        strayed=machine.strayed,
        expires=machine.expires,
        cause=machine.cause or held.cause,
    )
    changed = slot._replace(
        submitted=slot.asked_at,
        ran=draft.now if begins else slot.ran,
        observed=observed,
        failure=machine.failure if machine.phase is PENDING else None,
        life=_life(slot, machine, draft.now, put_off),
    )
    if begins or changed != slot:
        draft.put(record.id, changed)
    if changed.life.down is not None:
        news.down.append((record, changed))
    if begins:
        news.began.setdefault((slot.pool, record.template), []).append(slot.asked_at)


def _life(slot: Slot, machine: Machine, now: float, put_off: bool) -> Life:
    """Return the life of a machine: ungated, down, and not retiring any more if its place has put its end off."""
    life = slot.life
    if put_off:
        life = life._replace(retiring_at=None)
    if slot.observed.gated and not machine.gated:
        life = life._replace(ungated_at=now)
    is_down = slot.ran is not None and machine.phase is PENDING and not machine.nameless
    if is_down is (life.down is None):
        life = life._replace(down=now if is_down else None)
    return life


def _announced(held: Notice | None, seen: Notice | None) -> Notice | None:
    """The notice that stands: an announced end does not move to later when a loop that starts reckons it anew."""
    if seen is None:
        return held if _expires(held) else None
    return held if held is not None and held.cause is seen.cause and held.ends < seen.ends else seen


def _remains(draft: Draft, record: RequestRecord, slot: Slot, machine: Machine) -> None:
    """A machine stands under a closed slot's name, however late it came: it is to be deleted."""
    changed = slot.with_observed(
        seen=True, absent=None, fingerprint=machine.fingerprint, strayed=machine.strayed
    ).with_deletion(
        gone=False,
        reason=slot.deletion.reason or DeleteReason.FAILED,
        hindrance=machine.hindrance or slot.deletion.hindrance,
    )
    if changed != slot:
        draft.put(record.id, changed)
