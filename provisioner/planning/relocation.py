"""Pools that the configuration has moved: a look at the new place says nothing of the machines in the old one."""

from __future__ import annotations

from collections.abc import Mapping

from provisioner.model import ErrorClass, Failure, Limits, Memory


def configured_places(memory: Memory, limits: Limits) -> Mapping[str, str]:
    """Where the machines of each pool are: where it is configured to be, unless it has some from elsewhere."""
    configured = {name: pool.where for name, pool in limits.pools.items() if pool.where}
    others = {name for name, where in configured.items() if memory.configured_places.get(name, where) != where}
    if others:
        slots = (slot for _, slot in memory.slots)
        others &= {slot.pool for slot in slots if slot.submitted is not None and not slot.gone}
    return {**memory.configured_places, **{name: where for name, where in configured.items() if name not in others}}


def moved(memory: Memory, limits: Limits) -> Mapping[str, Failure]:
    """Why nothing can be seen of the pools whose machines are elsewhere, in words for people."""
    held = configured_places(memory, limits)
    return {
        name: Failure(
            ErrorClass.INVALID,
            f"pools.{name} is now {pool.where}, but has machines in {held[name]}: put that back and start again, or "
            "give the new place a pool of its own. Until then none of these machines counts as lost.",
        )
        for name, pool in limits.pools.items()
        if pool.where and pool.where != held[name]
    }
