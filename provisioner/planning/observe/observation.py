"""What the snapshots say of the slots: the passive half of a plan. It takes the world in and asks for nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from provisioner.model import (
    DESIRED,
    NEVER,
    DeleteReason,
    ErrorClass,
    Failure,
    Fingerprint,
    Life,
    LossCause,
    Machine,
    Notice,
    Observed,
    Phase,
    RequestRecord,
    Slot,
    Snapshot,
    Verdict,
)
from provisioner.planning.core import window
from provisioner.planning.core.draft import SOON, Draft
from provisioner.planning.observe.early_loss import EarlyLosses
from provisioner.planning.observe.trust import SHARE, waits

PENDING, RUNNING, STOPPING, GONE = Phase.PENDING, Phase.RUNNING, Phase.STOPPING, Phase.GONE
"""Read once: to look a phase up costs a fifth of comparing a slot with its machine, and each plan compares them all."""

UNKNOWN = Fingerprint()
VANISHED = Failure(ErrorClass.OTHER, "The machine vanished.")
REPLACED = Failure(ErrorClass.OTHER, "Another machine appeared under the same name.")
ENDED = Failure(ErrorClass.OTHER, "The machine ended.")
STRAYED = Failure(ErrorClass.INVALID, "Its place made the machine without what marks it as ours.")


PUNCTUAL = 60.0
"""Seconds before the end that its place has told from which a machine that ends has come to it."""

LATE_CREATE = 60.0
"""Seconds for which a create without a good answer may still be under way: longer than any call."""


@dataclass(frozen=True, slots=True)
class News:
    """What the snapshots teach about pools and templates, besides what they say of single slots."""

    early: EarlyLosses
    began: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """By pool and template: when the machines were asked for that are now first seen running."""
    down: list[tuple[RequestRecord, Slot]] = field(default_factory=list)
    """The machines that HF was told of and that do not run now."""


@dataclass(frozen=True, slots=True)
class End:
    """How a machine ended by itself."""

    failure: Failure
    cause: LossCause
    seen: float
    """When the look began that first showed it."""
    gone: bool = False
    """Nothing of the machine is left."""


def reflect(draft: Draft) -> None:
    """Bring every slot in line with the newest complete snapshot of its pool; list what no slot explains."""
    explained: list[str] = []
    news, elsewhere = News(EarlyLosses(draft)), _elsewhere(draft)
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
        _absent(draft, record, slot, draft.snapshots[slot.pool], news)
    for (pool, template), submissions in news.began.items():
        _learn_of_runs(draft, pool, template, submissions)
    _lose_down(draft, news)
    news.early.judge()
    for pool in draft.distrusted:  # from here on it counts as one that could not be seen
        draft.snapshots.pop(pool, None)
    _list_unknown(draft, Counter(explained))


def _list_unknown(draft: Draft, counts: Mapping[str, int]) -> None:
    """List what no slot explains; ``counts``: by pool, the machines that slots explain."""
    for name, snapshot in draft.snapshots.items():
        if len(snapshot.machines) > counts[name]:
            draft.unknown[name] = _unexplained(draft, snapshot)


def _elsewhere(draft: Draft) -> Set[str]:
    """Return the pools for which another place may answer, with machines of the same names."""
    return {pool for pool, distrusted in draft.distrusted.items() if distrusted.until == NEVER}


def _lose_down(draft: Draft, news: News) -> None:
    """Give up the machines that have not run again for too long, except where many at once do not."""
    down = Counter(slot.pool for _, slot in news.down)
    running = Counter(
        slot.pool for record in (draft.records() if down else ()) for slot in record.slots.values() if slot.is_with_hf
    )
    many = {pool for pool in down if down[pool] > max(1.0, SHARE * running[pool])}
    for record, slot in news.down:
        limit, since = draft.pool(slot.pool).down, slot.life.down or 0.0
        if not limit or slot.pool in many:
            continue
        if draft.now < since + limit:
            draft.wake_at(since + limit)
            continue
        why = slot.failure.text if slot.failure else "it is not ready"
        failure = Failure(ErrorClass.OTHER, f"It has not run for {limit:g} s: {why}")
        _end(draft, record, slot, End(failure, LossCause.UNKNOWN, since), news)


def _learn_of_runs(draft: Draft, pool: str, template: str, submissions: list[float]) -> None:
    newest, machines, limits = max(submissions), len(submissions), draft.pool(pool)
    draft.learn(
        pool,
        template,
        lambda learned: window.ran(learned, limits, newest, draft.now, draft.limits, machines=machines),
    )


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
    if machine.phase in (STOPPING, GONE) and _expired(draft, slot, seen):
        notice = machine.notice and replace(machine.notice, cause=LossCause.EXPIRES)
        machine = replace(machine, cause=LossCause.EXPIRES, notice=notice)
    if slot.verdict not in DESIRED:
        _remains(draft, record, slot, machine)
    elif slot.ran is not None and slot.observed.fingerprint.differs(machine.fingerprint):
        _end(draft, record, slot, End(REPLACED, machine.cause or LossCause.UNKNOWN, seen), news)
    elif (unfit := _unfit(draft, slot, machine, seen)) is not None:
        _end(draft, record, _applied(slot), unfit, news)
    elif machine.phase is GONE or (machine.phase is STOPPING and slot.verdict is Verdict.OPEN):
        _end(draft, record, _applied(slot), _ending(machine, seen), news)
    elif machine.phase is STOPPING:  # HF hears of it now, and may give it back before it is gone
        end = _ending(machine, seen)
        marked, _ = news.early.mark(record, slot, end.failure, end.cause, seen)
        if marked != slot:
            draft.put(record.id, marked)
        _follow(draft, record, marked, machine, news)
    else:
        _follow(draft, record, slot, machine, news)


def _expired(draft: Draft, slot: Slot, seen: float) -> bool:
    """Its place had told its end, and a look begun at ``seen``, about then, is the first to show it, or one was."""
    if slot.observed.cause is not None:
        return slot.observed.cause is LossCause.EXPIRES
    ends = draft.expiry(slot.pool, slot.observed.expires)
    return ends is not None and seen >= ends - PUNCTUAL


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
    """HF was told of an end that the place had told long before; no look shows that as a notice."""
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
        fingerprint=_merged(held.fingerprint, machine.fingerprint) if told else machine.fingerprint,
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


def _merged(held: Fingerprint, seen: Fingerprint) -> Fingerprint:
    """A value that is held stays; one that appears is added."""
    if held == UNKNOWN:
        return seen
    merged = Fingerprint(
        held.uid or seen.uid, held.created or seen.created, held.started or seen.started, held.ip or seen.ip
    )
    return held if merged == held else merged


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


def _absent(draft: Draft, record: RequestRecord, slot: Slot, snapshot: Snapshot, news: News) -> None:
    """A complete snapshot lacks its machine. Two that begin the backend's lag apart prove its absence, if few go."""
    told = snapshot.causes.get(slot.name)
    if slot.set_aside or _may_come(slot, told):
        return
    explained = told not in (None, LossCause.UNKNOWN)
    cause = told if explained and slot.verdict in DESIRED else slot.observed.cause
    expected_since, lag = _expected_since(slot), draft.pool(slot.pool).lag
    if snapshot.began <= expected_since:
        draft.wake_at(max(expected_since, draft.now) + SOON)
    elif slot.observed.absent is None:
        draft.put(record.id, slot.with_observed(absent=snapshot.began, cause=cause))
        draft.wake_at(draft.now + max(lag, SOON))
    elif snapshot.began <= slot.observed.absent or snapshot.began - slot.observed.absent < lag:
        draft.wake_at(draft.now + max(slot.observed.absent + lag - snapshot.began, SOON))
    elif waits(draft, slot):
        return
    elif not explained and slot.name not in snapshot.asked:  # it may have strayed: its place is asked by its name
        draft.wake_at(draft.now + SOON)
    elif slot.verdict in DESIRED:
        unknown = LossCause.EXPIRES if _expired(draft, slot, slot.observed.absent) else LossCause.UNKNOWN
        _end(draft, record, slot, End(VANISHED, cause or unknown, slot.observed.absent, gone=True), news)
    else:
        draft.put(record.id, slot.with_deletion(gone=True))


def _may_come(slot: Slot, told: LossCause | None) -> bool:
    """No look has shown its machine yet, and its place does not say that it came and went."""
    return slot.verdict is Verdict.OPEN and not slot.observed.seen and told is None


def _expected_since(slot: Slot) -> float:
    """Only a look begun after this can prove anything: its create may have been under way, and its slot open."""
    may_appear_until = (slot.submitted or 0.0) + (0.0 if slot.observed.accepted else LATE_CREATE)
    return max(may_appear_until, slot.deletion.closed or 0.0)


def _end(draft: Draft, record: RequestRecord, slot: Slot, end: End, news: News) -> None:
    """A machine ended by itself: lost when HF had been told of it for good, else failed (and replaced)."""
    slot, failure = news.early.mark(record, slot, end.failure, end.cause, end.seen)
    lost = slot.verdict is Verdict.SUCCEEDED
    verdict, reason = (Verdict.LOST, DeleteReason.LOST) if lost else (Verdict.FAILED, DeleteReason.FAILED)
    draft.close(slot, verdict, reason=reason, failure=failure, cause=end.cause, gone=end.gone)
    if not lost and slot.ran is None:
        draft.learn_of_boot(slot, failure)


def _unexplained(draft: Draft, snapshot: Snapshot) -> list[str]:
    slots: Set[str] = {
        slot.name for record in draft.records() for slot in record.slots.values() if slot.pool == snapshot.pool
    }
    return [name for name in snapshot.machines if name not in slots]
