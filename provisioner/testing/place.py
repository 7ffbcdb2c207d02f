"""A place that belongs to a test: a backend, and the actions of other users at the same place.

A kind implements ``Place`` for a real or simulated place, and runs ``provisioner.testing.suite`` with it. A method that
returns False by default is optional. If a kind does not implement the method, its tests are skipped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from enum import StrEnum
from itertools import count

from provisioner.backends import Backend
from provisioner.model import Create, Delete, DeleteReason, ErrorClass, Machine, Outcome, Phase, Snapshot
from provisioner.names import machine_name
from provisioner.testing.waiting import until

PREFIX = "hf"
"""Beginning of the names of our machines."""
REQUEST = "abcdefghij"
OTHER_REQUEST = "klmnopqrst"


class How(StrEnum):
    """The ways in which a machine ends without a delete by the loop."""

    EXIT = "exit"
    """The machine's program ends."""
    KILL = "kill"
    """Another user, or an operator, ends the machine."""
    TIME_LIMIT = "time_limit"
    """The place ends the machine, because its time limit is over."""
    PREEMPTION = "preemption"
    """The place ends the machine, because the place needs the room for other work."""
    HOST = "host"
    """The host of the machine fails."""


class Place(ABC):
    """A pool in a place that belongs to a test. The pool is empty at first. Loop time advances with each call of
    :meth:`now`."""

    pool: str
    """Name of the pool."""
    backend: Backend
    """The backend that is tested. The backend belongs to the provisioner ``demo``."""
    patience: float = 30.0
    """Seconds within which each change has taken effect in the place."""
    call: float = 3.0
    """Time-out of a call in seconds. Tests with a place that hangs halve this value, so a backend must read the value
    when the backend is made."""
    shows_since = True
    """True if the place shows when a wait in its queue began."""
    shows_start = True
    """True if the place shows when a machine began to run. If not, each backend takes the time of its first snapshot of
    the running machine."""

    def __init__(self) -> None:
        """Start loop time."""
        self._times = count(1000.0)

    # --- the suite's methods ------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the next moment of loop time, later than at the previous call."""
        return next(self._times)

    def create_of(self, number: int, template: str = "small") -> Create:
        """Return the ``Create`` action for the slot with this number."""
        return Create(machine_name(PREFIX, REQUEST, number), self.pool, template, REQUEST)

    def create(self, *numbers: int) -> list[Outcome]:
        """Create the machines of the slots with these numbers, and return the outcomes."""
        return self.backend.create([self.create_of(number) for number in numbers], always)

    def create_running(self, number: int) -> Machine:
        """Create the machine of the slot with this number, wait until the machine runs, and return it."""
        self.create(number)
        return self.until_seen(self.create_of(number).name)

    def delete(self, name: str, uid: str = "", *, force: bool = False, adopted: bool = False) -> Outcome:
        """Delete one machine, and return the outcome. An empty ``uid`` stands for a machine that was never seen."""
        delete = Delete(name, self.pool, DeleteReason.RETURNED, uid, is_forced=force, is_adopted=adopted)
        (outcome,) = self.backend.delete([delete], always)
        return outcome

    def observe(self, names: Collection[str] = ()) -> Snapshot:
        """Return a snapshot of the pool. ``names``: names for which the observation asks the place."""
        return self.backend.observe(self.now(), dict.fromkeys(names, ""))

    def until_seen(self, name: str, phase: Phase = Phase.RUNNING) -> Machine:
        """Wait until an observation shows the machine in this phase. Return the machine. Raises AssertionError after
        ``patience``."""

        def seen() -> Machine | None:
            machine = self.observe().machines.get(name)
            return machine if machine is not None and machine.phase is phase else None

        machine = until(seen, self.patience, what=f"{name} is {phase}")
        assert machine is not None
        return machine

    def until_gone(self, name: str) -> None:
        """Wait until an observation no longer shows the machine."""
        until(lambda: name not in self.observe().machines, self.patience, what=f"{name} is gone")

    # --- what is there ------------------------------------------------------------------------------------------------

    @abstractmethod
    def another(self) -> Backend:
        """Return a second backend of the same pool, for example that of a successor or of an operator's tool. The place
        closes this backend."""

    @abstractmethod
    def present(self) -> list[str]:
        """Return the name of each object in the place, without the help of the backend. If two objects have the same
        name, return the name twice.

        Records of ended machines do not count.
        """

    @abstractmethod
    def creates(self) -> int:
        """Return the number of create calls that reached the place."""

    def other_pool(self) -> Backend | None:
        """Return the backend of another pool with another name. The pool is at the same place and belongs to the same
        provisioner. Return None if a place cannot have two pools."""
        return None

    def other_provisioner(self) -> Backend | None:
        """Return the backend of another provisioner, whose pool has the same name as ours. Return None if two
        provisioners cannot share a place."""
        return None

    def environment(self, name: str) -> Mapping[str, str] | None:
        """Return the environment in which a running machine was started. Return None if the place does not show
        environments. Return None also if each machine is a host, because a host knows its name without a variable."""
        return None

    # --- actions of others --------------------------------------------------------------------------------------------

    @abstractmethod
    def spawn_foreign(self, name: str) -> None:
        """As another user, make a machine with this name."""

    @abstractmethod
    def copy(self, name: str, as_name: str) -> None:
        """As another user, make a copy of the machine ``name`` with the name ``as_name``. The copy also has the labels
        or comments that mark our machines."""

    @abstractmethod
    def stray(self, name: str) -> None:
        """Remove from a machine the labels or comments that mark our machines. The machine has then strayed."""

    def remove_stray(self, name: str) -> None:
        """As an operator, delete a strayed machine. Implement this only if the backend may not delete strayed
        machines."""
        raise NotImplementedError(f"the backend deletes {name} itself")

    @abstractmethod
    def remove(self, name: str) -> None:
        """As another user, delete a machine. Wait until the machine is gone."""

    @abstractmethod
    def recreate(self, name: str) -> None:
        """Replace a machine by a new machine with the same name and identity.

        If the place may reuse a number or an address, the new machine has the number and address of the old machine.
        """

    # --- the life of a machine (optional) -----------------------------------------------------------------------------

    def end(self, name: str, how: How) -> bool:
        """Let a machine end in the way ``how``. Return False if no machine of the place can end in this way."""
        return False

    def restart(self, name: str) -> bool:
        """Let the place stop a machine and start it again, as after a failure of its host. Return False if the place
        never restarts machines.

        Some places let a machine forbid its restart. There, our machines must forbid it.
        """
        return False

    def double(self, name: str) -> bool:
        """Make a second object of this name with our identity. Return False if the place keeps names unique."""
        return False

    def hold(self) -> bool:
        """From now on, keep new machines in the place's queue. Return False if the place has no queue."""
        return False

    def release(self) -> None:
        """Release all machines from the queue. Implement this only together with ``hold``."""
        raise NotImplementedError("the place has no queue")

    def starve(self, reason: ErrorClass) -> bool:
        """Accept creates from now on, but let the machines wait. Show the reason: no room (STOCKOUT) or a reached limit
        (QUOTA).

        Return False if the place refuses such creates, or does not show the reason.
        """
        return False

    # --- faults -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def fail_creates(self, error: ErrorClass) -> None:
        """Refuse all creates from now on for this reason: QUOTA, DENIED or INVALID."""

    @abstractmethod
    def lose_responses(self) -> None:
        """Apply all creates and deletes from now on, and lose their responses."""

    @abstractmethod
    def hang(self) -> None:
        """Respond to no call from now on."""

    @abstractmethod
    def black_out(self) -> None:
        """Respond to each call from now on with a failure of the place."""

    @abstractmethod
    def heal(self) -> None:
        """End all faults."""


def always() -> bool:
    """Return True. A backend that gets this function as ``may_start`` starts all calls."""
    return True
