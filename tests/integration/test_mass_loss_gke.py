"""Pods that disappear only from the watch cache, for any reason, are not lost machines. The loop distrusts such a
snapshot, and requests a new list of pods."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.server import Simulator
from provisioner.loop.cycle_report import CycleReport
from provisioner.loop.loop import Loop, Pace, Setup
from provisioner.model import Limits, Memory, PoolLimits, Slot, TemplateLimits, Verdict
from provisioner.state.directory import StateDir
from tests.integration.test_gke_backend import NAMESPACE, PODS, Bench
from tests.support.clients.wire import Wire
from tests.support.stores import add_request
from tests.support.waiting import until

POOL = "gke-main"
LIMITS = Limits("hf", {POOL: PoolLimits(POOL, mass_loss_seconds=2.0)}, {"T": TemplateLimits("T", (POOL,))})
COUNT = 8


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Simulator(namespaces=[NAMESPACE]) as simulator, Wire(simulator.address) as wire:
        simulator.call(lambda cloud: cloud.impose(Conditions(gke=PODS)))
        bench = Bench(simulator, wire, tmp_path)
        yield bench
        bench.close()


class Running:
    """A loop in a thread, on one pool of pods."""

    def __init__(self, bench: Bench, path: Path) -> None:
        self.backend = bench.backend(watched=False)
        path.mkdir()
        state = StateDir(path)
        add_request(state, "T", COUNT, created_wall=time.time(), create_for="demo")
        pace = Pace(interval_seconds=0.2, floor_seconds=0.0, act_seconds=5.0, intent_poll_seconds=0.01)
        self.reports: list[CycleReport] = []
        self.loop = Loop(Setup(state, {POOL: self.backend}, LIMITS, "demo", pace), self.reports.append)
        self.thread = threading.Thread(target=self.loop.run)
        self.thread.start()

    @property
    def slots(self) -> list[Slot]:
        memory: Memory | None = self.reports[-1].memory if self.reports else None
        return [slot for record in (memory.requests if memory else {}).values() for slot in record.slots.values()]

    def doubted(self) -> bool:
        return bool(self.reports and self.reports[-1].distrusted)

    def end(self) -> None:
        self.loop.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()


def test_machines_that_only_the_cache_lost_are_found_by_another_list(bench: Bench, tmp_path: Path) -> None:
    running = Running(bench, tmp_path / "state")
    try:
        until(lambda: sum(slot.verdict is Verdict.SUCCEEDED for slot in running.slots) == COUNT, 60)
        running.backend._cache.replace((), "1")
        until(running.doubted, 30)
        until(lambda: not running.doubted(), 30)
        until(lambda: len(running.backend.observe(time.monotonic(), {}).machines) == COUNT, 30, what="another list")
        assert bench.calls("pods.list") == 1
        assert [slot.verdict for slot in running.slots] == [Verdict.SUCCEEDED] * COUNT
        assert len(bench.pods()) == COUNT
    finally:
        running.end()


def test_machines_that_the_other_list_lacks_too_are_lost(bench: Bench, tmp_path: Path) -> None:
    running = Running(bench, tmp_path / "state")
    try:
        until(lambda: sum(slot.verdict is Verdict.SUCCEEDED for slot in running.slots) == COUNT, 60)
        bench.cluster(lambda cluster: cluster.pods._objects.clear())  # as an etcd that was put back: no event says it
        running.backend._cache.replace((), "1")
        until(lambda: [slot.verdict for slot in running.slots] == [Verdict.LOST] * COUNT, 60)
        assert bench.calls("pods.list") == 1
    finally:
        running.end()
