"""Holds: their effect on pools, requests, returns and machines.

While everything is stopped, every pool counts as one whose last actions are still under way. Deadlines that pass are
reported with the hold as the reason, and are carried out when the hold is released. The module uses no I/O, clock or
logger.
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
from provisioner.names import get_prefix
from provisioner.planning.core.slots import find_slot

DRAINED = Loss(3600, "drained")
"""The report to HF of a machine in a drained pool. The seconds never count down, because the machine runs until HF
returns it."""

GIVEN_UP = Loss(3600, "cancelled")
"""The report to HF of a machine that an operator has cancelled. The seconds never count down."""


def limits_under_holds(limits: Limits, holds: Holds) -> Limits:
    """Return the limits with all pools paused to which a hold applies."""
    pools = {
        name: replace(pool, is_paused=True) if holds.against(name) else pool for name, pool in limits.pools.items()
    }
    return replace(limits, pools=pools)


def paused_pools(limits: Limits, holds: Holds) -> frozenset[str]:
    """Return the pools that take no machine, by the settings or a hold."""
    return frozenset([name for name, pool in limits_under_holds(limits, holds).pools.items() if pool.is_paused])


def format_hold(hold: Hold) -> str:
    """Return a hold as text for HF and operators."""
    target = f" of {hold.target}" if hold.target else ""
    return f"{hold.kind}{target} by {hold.who}" + (f": {hold.reason}" if hold.reason else "")


def format_stop_message(holds: Holds) -> str:
    """Return the message of returns while everything is stopped; empty if machines are deleted."""
    return f"No machine is deleted now ({format_hold(holds.stop)})." if holds.stop else ""


def find_hold_failure(holds: Holds, pools: Iterable[str]) -> Failure | None:
    """Return the failure of machines if a hold applies to each of the pools, else None. It counts as a lack of
    capacity, as a cap does."""
    against = [holds.against(pool) for pool in pools]
    if not against or None in against:
        return None
    hold_texts = "; ".join(dict.fromkeys([format_hold(hold) for hold in against if hold is not None]))
    return Failure(ErrorClass.QUOTA, f"No machine is made now ({hold_texts}).")


def make_loss_finder(holds: Holds) -> Callable[[Slot], Loss | None]:
    """Return a function that finds the report to HF of a slot's machine that HF is asked to return."""
    drained, cancelled = holds.of_kind(HoldKind.DRAIN), holds.of_kind(HoldKind.CANCEL)

    def find_loss(slot: Slot) -> Loss | None:
        if slot.verdict is not Verdict.SUCCEEDED:
            return None
        if slot.name in cancelled:
            return GIVEN_UP
        return DRAINED if slot.pool in drained else None

    return find_loss


def is_done(hold: Hold, memory: Memory) -> bool:
    """Return whether a cancel has no more effect: its request has ended, its machine is no longer HF's, or its target
    is unknown."""
    if hold.kind is not HoldKind.CANCEL:
        return False
    record = memory.requests.get(hold.target)
    if record is not None:
        return record.ended is not None
    slot = find_slot(memory.requests, get_prefix(hold.target), hold.target)
    return slot is None or slot.name != hold.target or slot.verdict not in DESIRED


def count_holds(holds: Holds, memory: Memory | None) -> Counter[tuple[HoldKind, str]]:
    """Return the number of holds in force by kind and pool. Cancels count until they are done, under an empty pool."""
    return Counter(
        (hold.kind, "" if hold.kind is HoldKind.CANCEL else hold.target)
        for hold in holds.current
        if memory is None or not is_done(hold, memory)
    )
