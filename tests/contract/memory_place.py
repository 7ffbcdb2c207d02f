"""Places in memory for the contract suite: the place of the fake backend, and places of kinds that are built on the
fake backend."""

from __future__ import annotations

from typing import Any

from provisioner.backends.kind import Kind
from provisioner.lab.fake_backend import FakeBackend
from provisioner.model import ErrorClass, Failure
from provisioner.schema.setting_types import Site
from provisioner.testing.place import PREFIX, How, Place
from tests.support.steered_place import steered


class MemoryPlace(Place):
    """A pool in memory. Its backend is made from settings through the interface of a kind."""

    pool = "memory-a"

    def __init__(self, kind: Kind[Any], **settings: object) -> None:
        super().__init__()
        times = {"boot_seconds": 0.05, "stop_seconds": 0.05}
        self._pool = kind.pool(name=self.pool, kind=kind.name, **times, **settings)
        self._backend_of = kind.factory(Site("demo", PREFIX))
        self.backend = self.another()
        self._place = steered(self.backend.place)

    def another(self) -> FakeBackend:
        backend = self._backend_of(self._pool)
        assert isinstance(backend, FakeBackend)
        return backend

    def other_pool(self) -> FakeBackend:
        pool = self._pool.model_copy(update={"name": "memory-b"})
        return FakeBackend(pool, self._place, provisioner="demo")

    def other_provisioner(self) -> FakeBackend:
        return FakeBackend(self._pool, self._place, provisioner="other")

    def hold(self) -> bool:
        self._place.hold()
        return True

    def release(self) -> None:
        self._place.boot()

    def end(self, name: str, how: How) -> bool:
        if how is How.EXIT:
            self._place.crash(name)
        elif how is How.KILL:
            self._place.delete(self._place.present()[name])
        return how in (How.EXIT, How.KILL)

    def restart(self, name: str) -> bool:
        """Start the machine again if this place restarts machines. Otherwise end the machine."""
        if self._place.begins_again:
            self._place.begin_again(name, self._place.present()[name].uid)
        else:
            self._place.crash(name)
        return True

    def starve(self, reason: ErrorClass) -> bool:
        self._place.starve(Failure(reason, "The place has no room for this machine now."))
        return True

    def double(self, name: str) -> bool:
        self._place.double(name)
        return True

    def close(self) -> None:
        """Close the backend. The place in memory has no connections."""
        self.backend.close()

    def present(self) -> list[str]:
        return self._place.names()

    def creates(self) -> int:
        return self._place.creates

    def spawn_foreign(self, name: str) -> None:
        self._place.create(name, None)

    def copy(self, name: str, as_name: str) -> None:
        self._place.create(as_name, self._place.present()[name].mark)

    def stray(self, name: str) -> None:
        self._place.unmark(name)

    def remove(self, name: str) -> None:
        self._place.delete(self._place.present()[name], at_once=True)

    def recreate(self, name: str) -> None:
        self._place.begin_again(name, f"{self._place.present()[name].uid}-submitted-later")

    def fail_creates(self, error: ErrorClass) -> None:
        self._place.refusal = Failure(error, "The create was refused by the test's own fault.")

    def lose_responses(self) -> None:
        self._place.loss = Failure(ErrorClass.UNAVAILABLE, "The answer was lost.")

    def hang(self) -> None:
        self._place.silence = Failure(ErrorClass.TIMEOUT, "There was no answer.")

    def black_out(self) -> None:
        self._place.silence = Failure(ErrorClass.UNAVAILABLE, "The place has failed.")

    def heal(self) -> None:
        self._place.refusal = self._place.loss = self._place.silence = None
