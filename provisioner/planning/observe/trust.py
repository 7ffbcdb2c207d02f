"""Trust: whether a snapshot may be acted upon, decided once, before anything else of a plan rests on it.

One that lacks many machines at once is distrusted until a later list confirms it, as HF gives up every machine that is
reported as lost; one of another endpoint, or of a pool that was moved from its machines, until an operator decides.
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
"""Machines that may be missing at once without distrust: HF gets over them, and a node holds as many."""

SHARE = 0.2
"""Share of a pool's machines that may be missing at once without distrust: in a large pool some always end together."""

SETTLED = 60.0
"""Seconds after the loop began from which on an orphan is new: the first snapshots show those that came before."""

REMEMBERED = HOUR
"""Seconds for which it is remembered that an orphan appeared: another provisioner makes more within an hour."""

SNAPSHOTS = 2
"""Snapshots in which new orphans have to appear: a single one may show the late result of one call."""


def distrust(draft: Draft) -> None:
    """Note which snapshots may not be acted upon, latch the brake for a wrong endpoint, and note where pools are."""
    places = configured_places(draft.before, draft.limits)
    draft.distrusted = trust(draft, places)
    wrong, endpoints = dict(draft.places.wrong_since), dict(draft.places.endpoints)
    for pool, snapshot in list(draft.snapshots.items()):
        distrusted = draft.distrusted.get(pool)
        reason = distrusted.reason if distrusted else None
        if distrusted is not None and reason is DistrustReason.WRONG_ENDPOINT:
            wrong[pool] = distrusted.since
            text = f"It {distrusted.detail}. To release the brake is to say that they are lost."
            draft.latch(BrakeReason.WRONG_ENDPOINT, text, pool)
            if not snapshot.endpoint_identity:
                known = draft.orphans.since
                new = dict.fromkeys(_unknown(draft, snapshot) - known.keys(), draft.now)
                draft.orphans = replace(draft.orphans, since={**known, **new})
        elif reason is DistrustReason.POOL_MOVED:
            del draft.snapshots[pool]  # it shows another place, and says nothing of the pool's machines
        else:
            wrong.pop(pool, None)
            if snapshot.endpoint_identity:
                endpoints[pool] = snapshot.endpoint_identity
    draft.places = replace(draft.places, configured=places, endpoints=endpoints, wrong_since=wrong)


def trust(draft: Draft, places: Mapping[str, str]) -> dict[str, Distrusted]:
    """Return why snapshots may not be acted upon, by pool; a pool that is not named is trusted. Change nothing.

    ``places``: where the machines of each pool are.
    """
    distrusted = {}
    for name, limits in draft.limits.pools.items():
        if limits.where and limits.where != places[name]:
            detail = f"is now {limits.where}, but has machines in {places[name]}"
            distrusted[name] = Distrusted(DistrustReason.POOL_MOVED, draft.now, NEVER, detail=detail)
    running = Counter[str]()
    absent = defaultdict[str, list[Slot]](list)
    for record in draft.records():
        for slot in record.slots.values():
            snapshot = draft.snapshots.get(slot.pool)
            if snapshot is None or not slot.is_with_hf:
                continue
            machine = snapshot.machines.get(slot.name)
            if machine is None:
                absent[slot.pool].append(slot)
            elif machine.phase is Phase.GONE:  # its end is seen, so it raises no bound for those that are missing
                continue
            running[slot.pool] += 1
    for pool in draft.snapshots.keys() - distrusted.keys():
        if (found := _judge(draft, pool, running[pool], absent[pool])) is not None:
            distrusted[pool] = found
    return distrusted


def _judge(draft: Draft, pool: str, running: int, absent: list[Slot]) -> Distrusted | None:
    """Judge one snapshot by how many of the machines that HF has or was told of it lacks, and by who answered."""
    missing = [slot for slot in absent if _is_doubtful(draft, slot)]
    if detail := _wrong_endpoint(draft, pool, running, (len(absent), len(missing))):
        since = draft.places.wrong_since.get(pool, draft.now)
        return Distrusted(DistrustReason.WRONG_ENDPOINT, since, NEVER, running, running, detail)
    if not is_mass(len(missing), running):
        return None
    since = min(
        draft.snapshots[pool].began if slot.observed.absent is None else slot.observed.absent for slot in missing
    )
    return Distrusted(DistrustReason.MASS_LOSS, since, since + apart(draft.pool(pool)), len(missing), running)


# --- many machines are missing at once --------------------------------------------------------------------------------


def is_mass(missing: int, running: int) -> bool:
    """Return whether so many missing machines of those that HF was told of are not believed to be gone."""
    return missing > FEW and missing > SHARE * running


def apart(limits: PoolLimits) -> float:
    """Return how far apart the lists must begin that prove a mass loss; 0 where it is reported as any other loss."""
    return max(limits.lag, limits.mass_loss) if limits.mass_loss else 0.0


def waits(draft: Draft, slot: Slot) -> bool:
    """Return whether an absent machine of a distrusted pool needs a later list than any other would."""
    distrusted = draft.distrusted.get(slot.pool)
    if distrusted is None:
        return False
    if distrusted.reason is DistrustReason.MASS_LOSS and not _is_doubtful(draft, slot):
        return False
    draft.wake_at(max(distrusted.until, draft.now) + SOON)
    return True


def _is_doubtful(draft: Draft, slot: Slot) -> bool:
    """Return whether no cause explains why the machine went, and no list begun late enough lacks it."""
    snapshot, wait = draft.snapshots[slot.pool], apart(draft.pool(slot.pool))
    confirmed = slot.observed.absent is not None and snapshot.proves - slot.observed.absent >= wait
    return wait > 0 and not (slot.set_aside or confirmed or _is_explained(slot, snapshot))


def _is_explained(slot: Slot, snapshot: Snapshot) -> bool:
    causes = {snapshot.causes.get(slot.name), slot.observed.cause} - {None, LossCause.UNKNOWN}
    return slot.observed.notice is not None or bool(causes)


# --- another endpoint answers, as where a kubeconfig, a context or an address leads to another cluster ----------------


def _wrong_endpoint(draft: Draft, pool: str, running: int, absent: tuple[int, int]) -> str:
    """Return what shows another endpoint: its identity, or else none of the pool's machines and new ones of ours.

    ``absent``: how many machines that run the snapshot lacks, and how many of these without an explanation.
    """
    snapshot, memory = draft.snapshots[pool], draft.before
    if snapshot.endpoint_identity:
        known = memory.places.endpoints.get(pool, snapshot.endpoint_identity)
        is_other = known != snapshot.endpoint_identity and pool in _pools_with_machines(memory)
        return f"is {snapshot.endpoint_identity} now, but its machines were made in {known}" if is_other else ""
    noted = pool in memory.places.wrong_since
    if not running or absent[0] < running or not (noted or (absent[1] == running and is_mass(running, running))):
        return ""
    unknown = _unknown(draft, snapshot)
    if not (noted or unknown - memory.orphans.since.keys()):
        return ""
    return f"shows none of its {running} machines but {len(unknown)} that nobody asked for"


def _unknown(draft: Draft, snapshot: Snapshot) -> frozenset[str]:
    """Return the machines that a snapshot shows of unknown requests."""
    names = ((name, split_name(draft.limits.prefix, name)) for name in snapshot.machines)
    return frozenset(name for name, parts in names if parts is None or parts[0] not in draft.requests)


def _pools_with_machines(memory: Memory) -> frozenset[str]:
    return frozenset(slot.pool for _, slot in memory.slots if slot.submitted is not None and not slot.deletion.gone)


# --- the configuration has moved a pool -------------------------------------------------------------------------------


def configured_places(memory: Memory, limits: Limits) -> Mapping[str, str]:
    """Return where the machines of each pool are: as configured, unless the pool has some from elsewhere."""
    configured = {name: pool.where for name, pool in limits.pools.items() if pool.where}
    others = {name for name, where in configured.items() if memory.places.configured.get(name, where) != where}
    if others:
        others &= _pools_with_machines(memory)
    return {**memory.places.configured, **{name: where for name, where in configured.items() if name not in others}}


# --- another provisioner has the same identity ------------------------------------------------------------------------


def check_identity(draft: Draft, activity: HfActivity, unknown: Mapping[str, str]) -> None:
    """Note the orphans that are new, and latch the brake once more of them appear. ``unknown``: the pool of each.

    Lost files may explain one snapshot with machines that no request explains, but not that more keep appearing.
    """
    orphans, now = draft.orphans, draft.now
    appeared = {name: since for name, since in orphans.appeared.items() if since > now - REMEMBERED}
    explained = {*appeared, *draft.before.orphans.since, *orphans.accepted}
    new = sorted(unknown.keys() - explained) if now - activity.started > SETTLED else []
    appeared |= dict.fromkeys(new, now)
    draft.orphans = replace(orphans, appeared=appeared)
    snapshots = len(set(appeared.values()))
    if new and snapshots >= SNAPSHOTS:
        text = (
            f"{len(appeared)} machines with our names that nobody asked us for have appeared in {snapshots} looks, the "
            f"last is {new[-1]}: another provisioner may have the same id and name prefix here."
        )
        draft.latch(BrakeReason.IDENTITY_CONFLICT, text, unknown[new[-1]])


# --- in words ---------------------------------------------------------------------------------------------------------


def format_distrust(pool: str, distrusted: Distrusted, ahead: float) -> str:
    """Return a sentence for operators; ``ahead``: seconds from loop time to the wall clock."""
    since = format_utc(distrusted.since + ahead)
    match distrusted.reason:
        case DistrustReason.MASS_LOSS:
            return (
                f"{distrusted.missing} of {distrusted.expected} machines are missing since {since}, all at once and "
                "without a cause. Nothing is made or deleted here and HostFactory is told nothing of them before a "
                f"look {distrusted.until - distrusted.since:g} s later says the same."
            )
        case DistrustReason.WRONG_ENDPOINT:
            return (
                f"pools.{pool} {distrusted.detail} (since {since}): does another cluster or project answer in its "
                "place? Put back what it is reached by and start again; or, if its machines are gone, run "
                "`provisioner recover --release-brake`. Until then none of them counts as lost."
            )
        case DistrustReason.POOL_MOVED:
            return (
                f"pools.{pool} {distrusted.detail}: put that back and start again, or give the new place a pool of "
                "its own. Until then none of these machines counts as lost."
            )
