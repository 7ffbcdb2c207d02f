"""The fake's place under the hands of a test: what it refuses and loses, what boots, and what ends."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from provisioner.backends import BackendError
from provisioner.lab.fake_backend import Entry, FakePlace, Mark
from provisioner.model import Failure, Machine, Phase


class SteeredPlace(FakePlace):
    """A place that does what a test says; ``steered`` makes one of the place that a kind has made."""

    creates = 0
    """Create calls that were answered or lost."""
    refusal: Failure | None = None
    """Failure of every create."""
    silence: Failure | None = None
    """Failure of every call, which has no effect."""
    lack: Failure | None = None
    """Reason why machines that are created wait for ever."""
    begins_again = False
    """True if a machine whose host fails is begun again under its uid."""
    loss: Failure | None = None
    """Failure of every change, which has its effect."""

    def entries(self) -> dict[str, Entry]:
        """Return all that exists, by name."""
        _meet(self.silence)
        return self.present()

    def entry(self, name: str) -> Entry | None:
        """Return the machine of this name; None if there is none."""
        _meet(self.silence)
        return super().entry(name)

    def present(self) -> dict[str, Entry]:
        """Return the same for the owner of the place, who needs no call."""
        return super().entries()

    def create(self, name: str, mark: Mark | None) -> Entry:
        """Make a machine, or find the one that bears this mark."""
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
        """Hold machines that are created from now on in a queue, until they boot."""
        self._pool = self._pool.model_copy(update={"queue_seconds": 3600.0})

    def starve(self, lack: Failure) -> None:
        """Let machines that are created from now on wait for this reason."""
        self.lack = lack
        self._pool = self._pool.model_copy(update={"boot_seconds": 1e9})

    def machines(self, entries: Collection[Entry]) -> dict[str, Machine]:
        """Return the machines as they are now, by name. Machines that wait say why."""
        return {
            name: replace(one, failure=self.lack, spills_at_once=self.lack is not None)
            if one.phase is Phase.PENDING and one.queued is None
            else one
            for name, one in super().machines(entries).items()
        }

    def names(self) -> list[str]:
        """Return the names of all machines that have not ended, with doubles."""
        ended = self._clock()
        return [one.name for one in (*self.present().values(), *self.doubles()) if ended < one.ends]

    def begin_again(self, name: str, uid: str) -> None:
        """Let a machine boot again, as a machine with this uid and the same address."""
        with self._lock:
            self._entries[name] = replace(self._entries[name], uid=uid, runs=self._clock() + 0.05)
        self._wake()

    def crash(self, name: str) -> None:
        """End a machine by itself now."""
        with self._lock:
            self._entries[name] = replace(self._entries[name], ends=self._clock())
        self._wake()


def steered(place: FakePlace) -> SteeredPlace:
    """Return the same place, from now on under the test's hands."""
    place.__class__ = SteeredPlace
    assert isinstance(place, SteeredPlace)
    return place


def _meet(failure: Failure | None) -> None:
    """Raise what a call meets instead of its response, if anything."""
    if failure is not None:
        raise BackendError(failure.error, failure.text)
