"""The release of the brake, and what it sets going: machines deleted as orphans, when, and requests cancelled.

Pure. That is a forecast from files alone, for an operator who decides: the loop judges anew by what it sees.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from provisioner.model import DESIRED, NEVER, Limits, Memory, RequestRecord, format_utc
from provisioner.planning.collect.orphans import delete_allowed_at
from provisioner.planning.finish.cancellation import is_forgotten
from provisioner.telemetry.pool_status import PoolStatus


def time_at(memory: Memory, wall: float) -> float:
    """Loop time at a moment of the wall clock, as the next loop would have it."""
    return memory.written.time + max(0.0, wall - memory.written.wall)


class Waiting(NamedTuple):
    """A machine that is deleted as an orphan unless something explains it before."""

    name: str
    unlisted: bool = False
    """It has a request, but no list of HF names it; otherwise it has none."""
    at: float | None = None
    """Loop time before which it is not deleted, if no brake holds from now on; None: nobody knows, or never."""


def waiting(memory: Memory, limits: Limits | None, now: float, news: Set[str] = frozenset()) -> tuple[Waiting, ...]:
    """Machines that wait to be deleted as orphans, in the order in which they go, by grace and cap per hour.

    ``limits``: None where nobody knows them. ``news``: machines without a request that no loop has noted yet.
    """
    grace = limits.orphans.grace if limits else 0.0
    ripe = [(since + grace, False, name) for name, since in memory.orphans.since.items()]
    ripe += [(now + grace, False, name) for name in news - memory.orphans.since.keys()]
    if limits and limits.orphans.unlisted_after is not None:
        ripe += [(since + limits.orphans.unlisted_after, True, name) for name, since in memory.hosts.unlisted.items()]
    ripe.sort()
    times, waits = [*memory.orphans.deletes], []
    for at, unlisted, name in ripe:
        times.append(delete_allowed_at(times, limits.orphans, max(at, now)) if limits else NEVER)
        waits.append(Waiting(name, unlisted, None if times[-1] == NEVER else times[-1]))
    return tuple(waits)


@dataclass(frozen=True, slots=True)
class ScriptCalls:
    """HF's calls by the marks that its scripts leave, in seconds by the file system's clock alone."""

    polled: Mapping[str, float]
    """When HF last asked for each request."""
    reported: Set[str]
    """Requests whose terminal answer HF has read."""
    last: float
    """When HF last called at all."""


def forgotten(memory: Memory, limits: Limits | None, calls: ScriptCalls, now: float) -> tuple[RequestRecord, ...]:
    """Requests that HF seems to have forgotten: cancelled, unless it asks for them first.

    The loop counts only what it has seen itself, so after its start it waits longer than the marks say.
    """
    if limits is None:
        return ()
    return tuple(
        record
        for record in memory.requests.values()
        if record.id not in calls.reported and is_forgotten(record, limits, _silence(record, calls, now))
    )


def _silence(record: RequestRecord, calls: ScriptCalls, now: float) -> float:
    """Seconds for which HF has called and not asked for this; of one that it never asked for, by the loop's clock."""
    polled = calls.polled.get(record.id)
    return now - record.read if polled is None else calls.last - polled


def owned(record: RequestRecord) -> int:
    """Machines of a request that a cancel deletes."""
    return sum(slot.verdict in DESIRED for slot in record.slots.values())


def released(
    memory: Memory | None,
    pool_status: PoolStatus,
    calls: ScriptCalls,
    wall: float,
    news: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The brake, and what waits for its release: ``brake``, ``waiting`` and ``forgotten`` of an ``StatusModel``.

    ``news``: machines without a request that no loop has noted yet, with their pools.
    """
    news, limits = news or {}, pool_status.limits if memory else None
    memory = memory or Memory("")
    now, brake = time_at(memory, wall), memory.brake
    waits = waiting(memory, limits, now, news.keys())
    pools = _pools_of([one.name for one in waits], memory, pool_status, news)
    return {
        "brake": brake
        and {
            "reason": brake.reason,
            "detail": brake.detail,
            "pool": brake.pool,
            "since": format_utc(memory.wall_of(brake.since)),
        },
        "waiting": [
            {
                "machine": one.name,
                "pool": pools.get(one.name, ""),
                "unlisted": one.unlisted,
                "deleted_at": None if one.at is None else format_utc(memory.wall_of(one.at)),
            }
            for one in waits
        ],
        "forgotten": [{"id": record.id, "machines": owned(record)} for record in forgotten(memory, limits, calls, now)],
    }


def _pools_of(
    names: Collection[str], memory: Memory, pool_status: PoolStatus, news: Mapping[str, str]
) -> Mapping[str, str]:
    """The pool in which each of these machines was seen last."""
    if not names:
        return {}
    pools = {name: pool for pool, held in pool_status.orphans.items() for name in held} | dict(news)
    return pools | {slot.name: slot.pool for _, slot in memory.slots}
