"""Trust: the decision whether the plan may act upon a snapshot. The plan decides once, before its other steps use the
snapshot.

HF gives up every machine that is reported as lost. A snapshot is therefore distrusted if it lacks many machines at
once. A later list can confirm the loss.

A snapshot of a wrong endpoint is distrusted until an operator decides. A snapshot is also distrusted if the pool has
moved: the configuration no longer names the place of the pool's machines.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from provisioner.model import (
    HOUR,
    NEVER,
    BrakeReason,
    Distrusted,
    DistrustReason,
    HfActivity,
    Limits,
    LossCause,
    Memory,
    Phase,
    PoolLimits,
    Slot,
    Snapshot,
    format_utc,
)
from provisioner.names import split_name
from provisioner.planning.core.draft import SOON, Draft

FEW = 5
"""Number of machines that may be missing at once without distrust. HF copes with the loss of so few machines, which may
all have run on one node."""

SHARE = 0.2
"""Share of a pool's machines that may be missing at once without distrust. In a large pool some machines always end
together."""

FIRST_SECONDS = 60.0
"""Seconds after the loop's start during which an orphan of unknown age counts as old, because it may have existed
before the start."""

APPEARED_SECONDS = HOUR
"""Seconds for which memory keeps the moment at which an orphan appeared. If another provisioner has our identity, it
makes more orphans within this time."""

YOUNGER_SECONDS = 3.0
"""Margin in seconds. A machine that was made after the loop's start plus the pool's lag plus this margin cannot come
from the previous loop. The margin covers the previous loop's last create, and clocks of places that count whole
seconds."""

SNAPSHOTS = 2
"""Number of snapshots that must show new orphans. A single snapshot may show the late effect of one call."""


def judge_snapshots(draft: Draft) -> None:
    """Note which snapshots may not be acted upon. Latch the brake for a wrong endpoint.

    Also record the place and the endpoint identity of each pool.
    """
    places = configured_places(draft.before, draft.limits)
    draft.distrusted = find_distrusted(draft, places)
    wrong, endpoints = dict(draft.places.wrong_since), dict(draft.places.endpoints)
    for pool, snapshot in list(draft.snapshots.items()):
        distrusted = draft.distrusted.get(pool)
        reason = distrusted.reason if distrusted else None
        if distrusted is not None and reason is DistrustReason.WRONG_ENDPOINT:
            wrong[pool] = distrusted.since
            text = f"The pool {distrusted.detail}. If you release the brake, you confirm that its machines are lost."
            draft.latch(BrakeReason.WRONG_ENDPOINT, text, pool)
            if not snapshot.endpoint_identity:
                known = draft.orphans.since
                new = dict.fromkeys(_find_unknown(draft, snapshot) - known.keys(), draft.now)
                draft.orphans = replace(draft.orphans, since={**known, **new})
        elif reason is DistrustReason.POOL_MOVED:
            del draft.snapshots[pool]  # the snapshot shows a place where the pool's machines are not
        else:
            wrong.pop(pool, None)
            if snapshot.endpoint_identity:
                endpoints[pool] = snapshot.endpoint_identity
    draft.places = replace(draft.places, configured=places, endpoints=endpoints, wrong_since=wrong)


def find_distrusted(draft: Draft, places: Mapping[str, str]) -> dict[str, Distrusted]:
    """Return, by pool, why snapshots are distrusted. The draft is not changed.

    ``places``: the place of each pool's machines.
    """
    distrusted = {}
    for name, limits in draft.limits.pools.items():
        if limits.where and limits.where != places[name]:
            detail = f"is now {limits.where}, but has machines in {places[name]}"
            distrusted[name] = Distrusted(DistrustReason.POOL_MOVED, draft.now, NEVER, detail=detail)
    running = Counter[str]()
    absent = defaultdict[str, list[Slot]](list)
    for _, slot in draft.slots():
        snapshot = draft.snapshots.get(slot.pool)
        if snapshot is None or not slot.is_with_hf:
            continue
        machine = snapshot.machines.get(slot.name)
        if machine is None:
            absent[slot.pool].append(slot)
        elif machine.phase is Phase.GONE:  # its end was seen, so it does not count as running
            continue
        running[slot.pool] += 1
    for pool in draft.snapshots.keys() - distrusted.keys():
        if (found := _judge(draft, pool, running[pool], absent[pool])) is not None:
            distrusted[pool] = found
    return distrusted


def _judge(draft: Draft, pool: str, running: int, absent: list[Slot]) -> Distrusted | None:
    """Return why a snapshot is distrusted; None if it is trusted.

    ``running``: the number of HF's machines in the pool. ``absent``: the slots of those machines that the snapshot
    lacks.
    """
    missing = [slot for slot in absent if _is_unconfirmed(draft, slot)]
    if detail := _find_wrong_endpoint(draft, pool, running, (len(absent), len(missing))):
        since = draft.places.wrong_since.get(pool, draft.now)
        return Distrusted(DistrustReason.WRONG_ENDPOINT, since, NEVER, running, running, detail)
    if not is_mass_loss(len(missing), running):
        return None
    since = min(
        draft.snapshots[pool].began_at if slot.observed.absent_since is None else slot.observed.absent_since
        for slot in missing
    )
    return Distrusted(DistrustReason.MASS_LOSS, since, since + confirm_seconds(draft.pool(pool)), len(missing), running)


# --- many machines are missing at once --------------------------------------------------------------------------------


def is_mass_loss(missing: int, running: int) -> bool:
    """Return whether so many machines are missing that a later list has to confirm their loss."""
    return missing > FEW and missing > SHARE * running


def confirm_seconds(limits: PoolLimits) -> float:
    """Return the minimum number of seconds between the two lists that prove a mass loss; 0 if a mass loss needs no
    special proof."""
    return max(limits.lag_seconds, limits.mass_loss_seconds) if limits.mass_loss_seconds else 0.0


def needs_later_list(draft: Draft, slot: Slot) -> bool:
    """Return whether the loss of a machine in a distrusted pool needs a later list as proof.

    In this case, also ask for a plan at the earliest moment at which such a list may begin.
    """
    distrusted = draft.distrusted.get(slot.pool)
    if distrusted is None:
        return False
    if distrusted.reason is DistrustReason.MASS_LOSS and not _is_unconfirmed(draft, slot):
        return False
    draft.wake_at(max(distrusted.until, draft.now) + SOON)
    return True


def _is_unconfirmed(draft: Draft, slot: Slot) -> bool:
    """Return whether the absence of a machine still needs a proof.

    A known cause explains the absence. A list that began late enough confirms the absence.
    """
    snapshot, wait_seconds = draft.snapshots[slot.pool], confirm_seconds(draft.pool(slot.pool))
    since = slot.observed.absent_since
    is_confirmed = since is not None and snapshot.confirmed_at - since >= wait_seconds
    return wait_seconds > 0 and not (slot.is_set_aside or is_confirmed or _is_explained(slot, snapshot))


def _is_explained(slot: Slot, snapshot: Snapshot) -> bool:
    end = snapshot.ends.get(slot.name)
    is_reported = (end is not None and end.is_proven) or slot.observed.cause not in (None, LossCause.UNKNOWN)
    return slot.observed.notice is not None or is_reported


# --- another endpoint answers, for example because a kubeconfig, context or address leads to another cluster ----------


def _find_wrong_endpoint(draft: Draft, pool: str, running: int, absent: tuple[int, int]) -> str:
    """Return a text that describes a wrong endpoint; an empty text if the endpoint seems right.

    The endpoint is wrong if its identity has changed. If identities are unknown, the machines decide. The endpoint is
    wrong if the snapshot shows no known machine of the pool, but new machines with our identity.

    ``absent``: the numbers of running machines that the snapshot lacks, in total and without a known cause.
    """
    snapshot, memory = draft.snapshots[pool], draft.before
    if snapshot.endpoint_identity:
        known = memory.places.endpoints.get(pool, snapshot.endpoint_identity)
        is_other = known != snapshot.endpoint_identity and pool in _pools_with_machines(memory)
        return f"is {snapshot.endpoint_identity} now, but its machines were made in {known}" if is_other else ""
    is_noted = pool in memory.places.wrong_since
    if (
        not running
        or absent[0] < running
        or not (is_noted or (absent[1] == running and is_mass_loss(running, running)))
    ):
        return ""
    unknown = _find_unknown(draft, snapshot)
    if not (is_noted or unknown - memory.orphans.since.keys()):
        return ""
    return f"shows none of its {running} machines, but shows {len(unknown)} without a request"


def _find_unknown(draft: Draft, snapshot: Snapshot) -> frozenset[str]:
    """Return the names of those machines in a snapshot whose requests are unknown."""
    names = ((name, split_name(draft.limits.prefix, name)) for name in snapshot.machines)
    return frozenset(name for name, parts in names if parts is None or parts[0] not in draft.requests)


def _pools_with_machines(memory: Memory) -> frozenset[str]:
    return frozenset(slot.pool for _, slot in memory.slots if slot.may_exist)


# --- the configuration has moved a pool -------------------------------------------------------------------------------


def configured_places(memory: Memory, limits: Limits) -> Mapping[str, str]:
    """Return the place of each pool's machines. The place is the configured place, unless the pool still has machines
    at another place."""
    configured = {name: pool.where for name, pool in limits.pools.items() if pool.where}
    others = {name for name, where in configured.items() if memory.places.configured.get(name, where) != where}
    if others:
        others &= _pools_with_machines(memory)
    return {**memory.places.configured, **{name: where for name, where in configured.items() if name not in others}}


# --- another provisioner has the same identity ------------------------------------------------------------------------


def check_identity(draft: Draft, activity: HfActivity, unknown: Mapping[str, str]) -> dict[str, str]:
    """Note the new orphans, and latch the brake if further orphans keep appearing. Return the new orphans that are
    surely younger than this loop, with their pools.

    If our files were lost, one snapshot may show many machines without a request. If later snapshots show more such
    machines, another provisioner makes them. ``unknown``: the pool of each orphan.
    """
    orphans, now = draft.orphans, draft.now
    appeared = {name: since for name, since in orphans.appeared.items() if since > now - APPEARED_SECONDS}
    explained = {*appeared, *draft.before.orphans.since, *orphans.accepted}
    younger = {name: _judge_age(draft, activity, name, pool, name in explained) for name, pool in unknown.items()}
    has_begun = now - activity.started_at > FIRST_SECONDS
    new = sorted(name for name in unknown.keys() - explained if (younger[name] is None and has_begun) or younger[name])
    appeared |= dict.fromkeys(new, now)
    draft.orphans = replace(orphans, appeared=appeared)
    if new and (snapshots := len(set(appeared.values()))) >= SNAPSHOTS:
        text = (
            f"{len(appeared)} machines with our names but without a request have appeared in {snapshots} snapshots, "
            f"the last is {new[-1]}: another provisioner may have the same id and name prefix here."
        )
        draft.latch(BrakeReason.IDENTITY_CONFLICT, text, unknown[new[-1]])
    return {name: pool for name, pool in unknown.items() if name in appeared and younger[name]}


def _judge_age(draft: Draft, activity: HfActivity, name: str, pool: str, is_explained: bool) -> bool | None:
    """Return whether an orphan was made after this loop's start, by the clock of its place; None if unknown.

    Latch the brake if a new orphan without an explanation was made before the start but after memory was last written.
    Memory is then an old copy, because a slot is recorded before its machine is made.
    """
    snapshot = draft.snapshots[pool]
    launched = snapshot.machines[name].launched
    if snapshot.wall is None or not launched:
        return None
    made_at = snapshot.began_at - (snapshot.wall - launched) - draft.pool(pool).lag_seconds - YOUNGER_SECONDS
    is_younger = made_at > activity.started_at
    if not (is_younger or is_explained) and made_at + draft.ahead > draft.before.written.wall > 0:
        draft.latch(BrakeReason.MEMORY_OLDER, f"memory.json is older than machine {name}.", pool)
    return is_younger


# --- in words ---------------------------------------------------------------------------------------------------------


def format_distrust(pool: str, distrusted: Distrusted, ahead: float) -> str:
    """Return a sentence for operators about a distrusted snapshot. ``ahead``: seconds by which the wall clock is ahead
    of loop time."""
    since = format_utc(distrusted.since + ahead)
    match distrusted.reason:
        case DistrustReason.MASS_LOSS:
            return (
                f"{distrusted.missing} of {distrusted.expected} machines are missing since {since}, all at once and "
                "without a cause. No machine is made or deleted here, and the loss is not reported to HostFactory, "
                f"until a list that begins {distrusted.until - distrusted.since:g} s later confirms it."
            )
        case DistrustReason.WRONG_ENDPOINT:
            return (
                f"pools.{pool} {distrusted.detail}: another cluster or project may answer instead. Restore the "
                "settings that lead to the pool's own place and start again; or, if the pool's machines are gone, run "
                "`provisioner recover --release-brake`. Until then the pool's machines do not count as lost."
            )
        case DistrustReason.POOL_MOVED:
            return (
                f"pools.{pool} {distrusted.detail}: restore the setting and start again, or give the new place a pool "
                "of its own. Until then these machines do not count as lost."
            )
