"""A place of the fake kind that a test controls: its refusals, losses, boots and ends."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from provisioner.backends import BackendError
from provisioner.lab.fake_backend import Entry, FakePlace, Mark
from provisioner.model import Failure, Machine, Phase


class SteeredPlace(FakePlace):
    """A place that a test controls. ``steered`` turns the place of a kind into such a place."""

    creates = 0
    """Number of create calls that reached the place, even if they were refused or their responses were lost."""
    refusal: Failure | None = None
    """Failure with which every create is refused; None: creates are accepted."""
    silence: Failure | None = None
    """Failure of every call. Such a call has no effect. None: calls succeed."""
    lack: Failure | None = None
    """Reason why waiting machines have no room; None: machines boot."""
    begins_again = False
    """True if the place starts a machine again under its uid after its host has failed."""
    loss: Failure | None = None
    """Failure of every create and delete. Such a call takes effect although it fails. None: calls succeed."""

    def entries(self) -> dict[str, Entry]:
        """Return all entries of the place, by name."""
        _meet(self.silence)
        return self.present()

    def entry(self, name: str) -> Entry | None:
        """Return the machine of this name; None if there is none."""
        _meet(self.silence)
        return super().entry(name)

    def present(self) -> dict[str, Entry]:
        """Return all entries of the place, by name, without a call that could fail."""
        return super().entries()

    def create(self, name: str, mark: Mark | None) -> Entry:
        """Make a machine. If the place already has a machine with this mark, return that machine instead."""
        _meet(self.silence)
        self.creates += 1
        _meet(self.refusal)
        there = super().create(name, mark)
        _meet(self.loss)
        return there

    def delete(self, entry: Entry, *, at_once: bool = False) -> None:
        """Begin to delete this machine."""
        _meet(self.silence)
        super().delete(entry, at_once=at_once)
        _meet(self.loss)

    def boot(self) -> None:
        """Let every waiting machine run now."""
        with self._lock:
            now = self._clock()
            self._entries = {
                name: replace(one, released=min(one.released, now), runs=min(one.runs, now))
                for name, one in self._entries.items()
            }
        self._wake()

    def hold(self) -> None:
        """Let all machines that are created after this call wait in a queue until they boot."""
        self._pool = self._pool.model_copy(update={"queue_seconds": 3600.0})

    def starve(self, lack: Failure) -> None:
        """Let machines that are created from now on wait for this reason."""
        self.lack = lack
        self._pool = self._pool.model_copy(update={"boot_seconds": 1e9})

    def machines(self, entries: Collection[Entry]) -> dict[str, Machine]:
        """Return the present machines, by name. A waiting machine has the reason of its wait."""
        return {
            name: replace(one, failure=self.lack, spills_at_once=self.lack is not None)
            if one.phase is Phase.PENDING and one.queued is None
            else one
            for name, one in super().machines(entries).items()
        }

    def names(self) -> list[str]:
        """Return the names of all machines that have not ended. If several machines have one name, the name is
        repeated."""
        ended = self._clock()
        return [one.name for one in (*self.present().values(), *self.doubles()) if ended < one.ends]

    def begin_again(self, name: str, uid: str) -> None:
        """Let a machine boot again. Its address stays, and its uid becomes ``uid``."""
        with self._lock:
            self._entries[name] = replace(self._entries[name], uid=uid, runs=self._clock() + 0.05)
        self._wake()

    def crash(self, name: str) -> None:
        """Let a machine end by itself now."""
        with self._lock:
            self._entries[name] = replace(self._entries[name], ends=self._clock())
        self._wake()


def steered(place: FakePlace) -> SteeredPlace:
    """Let a test control the place from now on, and return the same place."""
    place.__class__ = SteeredPlace
    assert isinstance(place, SteeredPlace)
    return place


def _meet(failure: Failure | None) -> None:
    """Raise a BackendError for the failure of a call, if there is one."""
    if failure is not None:
        raise BackendError(failure.error, failure.text)
