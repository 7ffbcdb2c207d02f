"""Levers: what people hold back, and what becomes of requests, returns and machines meanwhile.

While all is stopped every pool counts as one whose last actions are still under way; what falls due is told by its
deadline, with the lever as its reason, and carried out when the lever is let go. No I/O, no clock, no logger.
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
    Lever,
    LeverKind,
    Levers,
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


def in_force(limits: Limits, levers: Levers) -> Limits:
    """The limits while these levers are held: the pools that they hold are paused."""
    pools = {name: replace(pool, paused=True) if levers.against(name) else pool for name, pool in limits.pools.items()}
    return replace(limits, pools=pools)


def paused_pools(limits: Limits, levers: Levers) -> frozenset[str]:
    """Return the pools that take no machine, by the settings or a hold."""
    return frozenset([name for name, pool in in_force(limits, levers).pools.items() if pool.paused])


def told(lever: Lever) -> str:
    """A lever in words for HF and people."""
    target = f" of {lever.target}" if lever.target else ""
    return f"{lever.kind}{target} by {lever.who}" + (f": {lever.reason}" if lever.reason else "")


def why_stopped(levers: Levers) -> str:
    """Why the machines of a return are not deleted; empty where they are."""
    return f"Nothing is deleted now ({told(levers.stop)})." if levers.stop else ""


def why_none(levers: Levers, pools: Iterable[str]) -> Failure | None:
    """Why no machine is made, where a lever holds each of the pools; a want of capacity, as a cap is."""
    against = [levers.against(pool) for pool in pools]
    if not against or None in against:
        return None
    words = "; ".join(dict.fromkeys([told(lever) for lever in against if lever is not None]))
    return Failure(ErrorClass.QUOTA, f"No machine is made now ({words}).")


def asked_back(levers: Levers) -> Callable[[Slot], Loss | None]:
    """What HF is told of a slot's machine while it is asked to give it back; it has to be HF's."""
    drained, cancelled = levers.of(LeverKind.DRAIN), levers.of(LeverKind.CANCEL)

    def of(slot: Slot) -> Loss | None:
        if slot.verdict is not Verdict.SUCCEEDED:
            return None
        if slot.name in cancelled:
            return GIVEN_UP
        return DRAINED if slot.pool in drained else None

    return of


def is_done(lever: Lever, memory: Memory) -> bool:
    """A cancel has nothing left to do: the request has ended, the machine is no longer HF's, or nobody knows either."""
    if lever.kind is not LeverKind.CANCEL:
        return False
    record = memory.requests.get(lever.target)
    if record is not None:
        return record.ended is not None
    slot = slot_named(memory.requests, prefix_of(lever.target), lever.target)
    return slot is None or slot.name != lever.target or slot.verdict not in DESIRED


def counts(levers: Levers, memory: Memory | None) -> Counter[tuple[LeverKind, str]]:
    """How many levers are held, by kind and pool; cancels as long as they are not done, under no pool."""
    return Counter(
        (lever.kind, "" if lever.kind is LeverKind.CANCEL else lever.target)
        for lever in levers.held
        if memory is None or not is_done(lever, memory)
    )
