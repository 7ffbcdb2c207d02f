"""A forecast of a release of the brake: the machines that the loop will delete as orphans, and the requests that it
will cancel.

The functions are pure. The forecast uses only state files, and helps the operator to decide. After the release, the
loop decides from its own observations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from provisioner.model import DESIRED, NEVER, Limits, Memory, RequestRecord, format_utc
from provisioner.planning.cleanup.orphans import delete_allowed_at
from provisioner.planning.finish.cancellation import is_forgotten
from provisioner.state.refused_calls import Refusals
from provisioner.telemetry.pool_status import PoolStatus


def get_loop_time(memory: Memory, wall: float) -> float:
    """Return the loop time at which the next loop starts. ``wall``: the wall clock time of this start."""
    return memory.written.time + max(0.0, wall - memory.written.wall)


class Waiting(NamedTuple):
    """A machine that waits to be deleted as an orphan. If the loop finds a request for the machine before the delete,
    it keeps the machine."""

    name: str
    unlisted: bool = False
    """True if the machine has a request but HF's lists do not name the machine; False if the machine has no request."""
    at: float | None = None
    """The earliest loop time of the delete, if the brake stays released from now on. None if the machine is never
    deleted, or if the limits are unknown."""


def find_waiting_orphans(
    memory: Memory, limits: Limits | None, now: float, news: Set[str] = frozenset()
) -> tuple[Waiting, ...]:
    """Return the machines that wait to be deleted as orphans, in the order of their deletes.

    ``limits``: the configured limits; None if unknown. ``news``: names of machines without a request that
    the loop has not recorded yet.
    """
    grace = limits.orphans.grace_seconds if limits else 0.0
    ripe = [(since + grace, False, name) for name, since in memory.orphans.since.items()]
    ripe += [(now + grace, False, name) for name in news - memory.orphans.since.keys()]
    after = limits.orphans.unlisted_after_seconds if limits else None
    if after is not None:
        ripe += [(since + after, True, name) for name, since in memory.hosts.unlisted.items()]
    ripe.sort()
    times, waits = [*memory.orphans.deletes], []
    for at, unlisted, name in ripe:
        times.append(delete_allowed_at(times, limits.orphans, max(at, now)) if limits else NEVER)
        waits.append(Waiting(name, unlisted, None if times[-1] == NEVER else times[-1]))
    return tuple(waits)


@dataclass(frozen=True, slots=True)
class ScriptCalls:
    """HF's calls of scripts, as the scripts' poll markers record them. Times are in seconds by the file system's
    clock."""

    polled: Mapping[str, float]
    """The time of HF's last poll, by request."""
    reported: Set[str]
    """Requests whose terminal answer HF has read."""
    last: float
    """The time of HF's last poll or last list of hosts; 0 if HF has made neither."""
    listed: float = 0.0
    """The time of HF's last list of its hosts; 0 before the first list."""
    refused: Sequence[Refusals] = ()
    """The calls that the scripts refused because of a local problem, for example unwritable files."""


def find_forgotten_requests(
    memory: Memory, limits: Limits | None, calls: ScriptCalls, now: float
) -> tuple[RequestRecord, ...]:
    """Return the requests that HF seems to have forgotten. The loop will cancel each of these requests, unless HF polls
    the request before that.

    The cancel may come later than this forecast, because the loop counts only HF's calls since the start of the loop.
    """
    if limits is None:
        return ()
    return tuple(
        record
        for record in memory.requests.values()
        if record.id not in calls.reported and is_forgotten(record, limits, _silent_seconds(record, calls, now))
    )


def _silent_seconds(record: RequestRecord, calls: ScriptCalls, now: float) -> float:
    """Return the seconds from HF's last poll of this request to HF's last call of any kind.

    If HF has never polled the request, return the seconds since the loop read it.
    """
    polled = calls.polled.get(record.id)
    return now - record.read_at if polled is None else calls.last - polled


def count_machines(record: RequestRecord) -> int:
    """Return the number of machines that are deleted if the request is cancelled."""
    return sum(slot.verdict in DESIRED for slot in record.slots.values())


def release_fields(
    memory: Memory | None,
    pool_status: PoolStatus,
    calls: ScriptCalls,
    wall: float,
    news: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the fields ``brake``, ``waiting`` and ``forgotten`` of a ``StatusModel``.

    ``news``: the pool of each machine that no request explains and that the loop has not recorded yet.
    """
    news, limits = news or {}, pool_status.limits if memory else None
    memory = memory or Memory("")
    now, brake = get_loop_time(memory, wall), memory.brake
    waits = find_waiting_orphans(memory, limits, now, news.keys())
    pools = _last_pools(memory, pool_status, news) if waits else {}
    return {
        "brake": brake
        and {
            "reason": brake.reason,
            "detail": brake.detail,
            "pool": brake.pool,
            "since": format_utc(memory.wall_of(brake.since)),
            "orphans": [
                {"seen_at": format_utc(memory.wall_of(at)), "machines": count}
                for at, count in sorted(Counter(memory.orphans.since.values()).items())
            ],
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
        "forgotten": [
            {"id": record.id, "machines": count_machines(record)}
            for record in find_forgotten_requests(memory, limits, calls, now)
        ],
    }


def _last_pools(memory: Memory, pool_status: PoolStatus, news: Mapping[str, str]) -> Mapping[str, str]:
    """Return the pool in which each machine was last seen, by machine."""
    pools = {name: pool for pool, orphans in pool_status.orphans.items() for name in orphans} | dict(news)
    return pools | {slot.name: slot.pool for _, slot in memory.slots}
