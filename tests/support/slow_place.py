"""A fake backend whose observations can fail or take long."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from provisioner.lab.fake_backend import Entry, FakeBackend, FakePlace, FakePool
from provisioner.model import Snapshot
from tests.support.waiting import PATIENCE


class SlowPlace(FakeBackend):
    """A pool whose observations wait until the event ``slow`` is set. If ``error`` is set, they raise it."""

    def __init__(self) -> None:
        pool = FakePool(name="pool", observe_seconds=0.02)
        super().__init__(pool, FakePlace(pool), provisioner="demo")
        self.error: Exception | None = None
        self.slow = threading.Event()
        self.slow.set()
        self.observations = 0

    @property
    def machines(self) -> dict[str, Entry]:
        return self.place.entries()

    def hint(self) -> None:
        """Tell the loop that something may have changed."""
        for wake in self.place.wakes:
            wake()

    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        self.observations += 1
        self.slow.wait(10 * PATIENCE)
        if self.error is not None:
            raise self.error
        return super().observe(now, sought)
