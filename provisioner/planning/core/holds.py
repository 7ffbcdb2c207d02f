"""Holds: how they affect pools, requests, returns and machines.

Under stop-all, each pool is treated as busy and gets no creates or deletes. Requests and returns still end at their
deadlines. HF then reads the hold as the reason why machines were not made or not deleted. After the operator has
released the hold, the loop deletes the returned machines.

The module uses no I/O, clock or logger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from provisioner.hostfactory import Loss
from provisioner.model import DESIRED, ErrorClass, Failure, Hold, HoldKind, Holds, Limits, Memory, Slot, Verdict
from provisioner.names import get_prefix
from provisioner.planning.core.slots import find_slot

DRAINED = Loss(3600, "drained")
"""The loss that is reported to HF for a machine in a drained pool. The seconds of this loss never count down, because
the machine runs until HF returns it."""

GIVEN_UP = Loss(3600, "cancelled")
"""The loss that is reported to HF for a machine that an operator has cancelled. The seconds of this loss never count
down."""


def limits_under_holds(limits: Limits, holds: Holds) -> Limits:
    """Return the limits, with ``is_paused`` set for each pool to which a hold applies."""
    paused = {name: replace(pool, is_paused=True) for name, pool in limits.pools.items() if holds.against(name)}
    return replace(limits, pools={**limits.pools, **paused})


def paused_pools(limits: Limits, holds: Holds) -> frozenset[str]:
    """Return the pools that take no machine because of the settings, a pause or a drain. Stop-all does not count."""
    held = holds.of_kind(HoldKind.PAUSE).keys() | holds.of_kind(HoldKind.DRAIN).keys()
    return frozenset([name for name, pool in limits.pools.items() if pool.is_paused or name in held])


def format_hold(hold: Hold) -> str:
    """Return a hold as text for HF and operators."""
    target = f" of {hold.target}" if hold.target else ""
    return f"{hold.kind}{target} by {hold.who}" + (f": {hold.reason}" if hold.reason else "")


def format_stop_message(holds: Holds) -> str:
    """Return the message in answers to return requests that names the stop-all; empty if there is no stop-all."""
    return f"No machine is deleted now ({format_hold(holds.stop)})." if holds.stop else ""


def find_hold_failure(holds: Holds, pools: Iterable[str]) -> Failure | None:
    """Return the failure to report for missing machines if a hold applies to every pool in ``pools``; else None. The
    failure has the error class ``QUOTA``, like the failure of a cap."""
    against = [holds.against(pool) for pool in pools]
    if not against or None in against:
        return None
    hold_texts = "; ".join(dict.fromkeys([format_hold(hold) for hold in against if hold is not None]))
    return Failure(ErrorClass.QUOTA, f"No machine is made now ({hold_texts}).")


def make_loss_finder(holds: Holds) -> Callable[[Slot], Loss | None]:
    """Return a function that finds the loss to report for a slot's machine. The loss is None unless a drain or a cancel
    applies to the machine."""
    drained, cancelled = holds.of_kind(HoldKind.DRAIN), holds.of_kind(HoldKind.CANCEL)

    def find_loss(slot: Slot) -> Loss | None:
        if slot.verdict is not Verdict.SUCCEEDED:
            return None
        if slot.name in cancelled:
            return GIVEN_UP
        return DRAINED if slot.pool in drained else None

    return find_loss


def is_done(hold: Hold, memory: Memory) -> bool:
    """Return whether a cancel has no effect any more: its request has ended, HF no longer has its machine, or its
    target is unknown. Other holds stay until they are released."""
    if hold.kind is not HoldKind.CANCEL:
        return False
    record = memory.requests.get(hold.target)
    if record is not None:
        return record.ended is not None
    slot = find_slot(memory.requests, get_prefix(hold.target), hold.target)
    return slot is None or slot.name != hold.target or slot.verdict not in DESIRED


def count_holds(holds: Holds, memory: Memory | None) -> Counter[tuple[HoldKind, str]]:
    """Return the number of holds in effect by kind and pool. Cancels that still have an effect count under an empty
    pool name. If ``memory`` is None, all cancels count."""
    return Counter(
        (hold.kind, "" if hold.kind is HoldKind.CANCEL else hold.target)
        for hold in holds.current
        if memory is None or not is_done(hold, memory)
    )
