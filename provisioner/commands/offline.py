"""The loop's decisions for a command: from the state files, without a loop, and without sending an action."""

from __future__ import annotations

from provisioner.loop.actors import ThreadedActors
from provisioner.loop.clock import LoopClock
from provisioner.loop.cycle import Mandate, Reconciler
from provisioner.settings.tree import Settings
from provisioner.state.errors import StateMissing
from provisioner.state.interfaces import State


def clock_of(state: State) -> LoopClock:
    """Loop time as the next loop would have it."""
    try:
        return LoopClock(state.memory.read())
    except StateMissing:
        return LoopClock()


def reconciler(settings: Settings, state: State, clock: LoopClock, epoch: int = 0) -> Reconciler:
    """A Reconciler that has no pool to act in; it writes as the loop of that ``epoch``."""
    return Reconciler(
        clock=clock,
        state=state,
        actors=ThreadedActors({}, wake=lambda: None),
        limits=settings.limits(),
        provisioner=settings.instance,
        mandate=Mandate(epoch),
    )
