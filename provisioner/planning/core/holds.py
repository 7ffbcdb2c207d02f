"""Holds: what people hold back, and what becomes of requests, returns and machines meanwhile.

While all is stopped every pool counts as one whose last actions are still under way; what falls due is told by its
deadline, with the hold as its reason, and carried out when the hold is let go. No I/O, no clock, no logger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from provisioner.hostfactory import Loss
from provisioner.model import (
    DESIRED,
    ErrorClass,
    Failure,
    Hold,
    HoldKind,
    Holds,
    Limits,
    Memory,
    Slot,
    Verdict,
)
from provisioner.names import prefix_of
from provisioner.planning.core.slots import slot_named

DRAINED = Loss(3600, "drained")
"""What HF is told of a machine in a pool that is drained. It runs until HF gives it back, so the hour stays one."""

GIVEN_UP = Loss(3600, "cancelled")
"""The same of a machine that a person has cancelled."""


def in_force(limits: Limits, holds: Holds) -> Limits:
    """The limits while these holds are in force: the pools that they hold are paused."""
    pools = {name: replace(pool, paused=True) if holds.against(name) else pool for name, pool in limits.pools.items()}
    return replace(limits, pools=pools)


def paused_pools(limits: Limits, holds: Holds) -> frozenset[str]:
    """Return the pools that take no machine, by the settings or a hold."""
    return frozenset([name for name, pool in in_force(limits, holds).pools.items() if pool.paused])


def told(hold: Hold) -> str:
    """A hold in words for HF and people."""
    target = f" of {hold.target}" if hold.target else ""
    return f"{hold.kind}{target} by {hold.who}" + (f": {hold.reason}" if hold.reason else "")


def why_stopped(holds: Holds) -> str:
    """Why the machines of a return are not deleted; empty where they are."""
    return f"Nothing is deleted now ({told(holds.stop)})." if holds.stop else ""


def why_none(holds: Holds, pools: Iterable[str]) -> Failure | None:
    """Why no machine is made, where a hold holds each of the pools; a want of capacity, as a cap is."""
    against = [holds.against(pool) for pool in pools]
    if not against or None in against:
        return None
    words = "; ".join(dict.fromkeys([told(hold) for hold in against if hold is not None]))
    return Failure(ErrorClass.QUOTA, f"No machine is made now ({words}).")


def asked_back(holds: Holds) -> Callable[[Slot], Loss | None]:
    """What HF is told of a slot's machine while it is asked to give it back; it has to be HF's."""
    drained, cancelled = holds.of(HoldKind.DRAIN), holds.of(HoldKind.CANCEL)

    def of(slot: Slot) -> Loss | None:
        if slot.verdict is not Verdict.SUCCEEDED:
            return None
        if slot.name in cancelled:
            return GIVEN_UP
        return DRAINED if slot.pool in drained else None

    return of


def is_done(hold: Hold, memory: Memory) -> bool:
    """A cancel has nothing left to do: the request has ended, the machine is no longer HF's, or nobody knows either."""
    if hold.kind is not HoldKind.CANCEL:
        return False
    record = memory.requests.get(hold.target)
    if record is not None:
        return record.ended is not None
    slot = slot_named(memory.requests, prefix_of(hold.target), hold.target)
    return slot is None or slot.name != hold.target or slot.verdict not in DESIRED


def counts(holds: Holds, memory: Memory | None) -> Counter[tuple[HoldKind, str]]:
    """How many holds are in force, by kind and pool; cancels as long as they are not done, under no pool."""
    return Counter(
        (hold.kind, "" if hold.kind is HoldKind.CANCEL else hold.target)
        for hold in holds.current
        if memory is None or not is_done(hold, memory)
    )
