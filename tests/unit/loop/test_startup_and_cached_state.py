"""Tests of the start: the memory that a loop continues with, and the files that a superseded loop leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.backends.gke.settings import GkePool
from provisioner.backends.registry import built_in_kinds, longest_call
from provisioner.loop.cycle_report import SupersededError
from provisioner.loop.startup_and_cached_state import LONE_MEMORY, CachedIntent
from provisioner.model import BrakeReason
from tests.support.cycle_bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_an_old_memory_beside_a_lost_intent_is_neither_used_nor_written(bench: Bench) -> None:
    """If intent is lost, an old copy of memory must be neither used nor written. If the loop wrote it, it would count
    as the newest."""
    bench.succeed(1)
    file = Path(bench.state.memory.path)
    old = file.read_bytes()
    bench.succeed(1)
    file.write_bytes(old)
    Path(bench.state.intent.path).unlink()
    bench.restarted()
    report = bench.cycle(2)
    assert "intent.json" in report.problem
    assert bench.reconciler.memory is None
    assert file.read_bytes() == old


def test_a_memory_that_stands_without_its_lock_file_latches_the_brake(bench: Bench) -> None:
    bench.request(1)
    bench.cycle(2)
    bench.restarted()
    bench.cycle()
    assert bench.state.memory.read().brake is None, "with its lock file it is taken as it is"
    Path(bench.state.memory.lock_path).unlink()
    bench.restarted()
    bench.cycle()
    brake = bench.state.memory.read().brake
    assert brake is not None
    assert (brake.reason, brake.detail) == (BrakeReason.MEMORY_OLDER, LONE_MEMORY)


def superseded() -> None:
    raise SupersededError("a newer loop works here")


def test_a_loop_that_has_been_succeeded_trims_nothing(bench: Bench) -> None:
    id_ = bench.request(1)
    bench.state.seen.touch(id_)
    cached = CachedIntent(bench.state, "demo", superseded)
    with pytest.raises(SupersededError):
        cached.forget([id_])
    assert id_ in bench.state.intent.read().requests
    assert id_ in bench.state.seen.marks()


def test_a_loop_that_has_been_succeeded_tells_writers_of_no_generation(bench: Bench) -> None:
    bench.request(1)
    before = bench.state.intent.read_newest()
    with pytest.raises(SupersededError):
        CachedIntent(bench.state, "demo", superseded).record_generation(before[1] + 5)
    assert bench.state.intent.read_newest() == before


def test_a_successor_waits_for_calls_of_kinds_that_the_configuration_names_no_more() -> None:
    """A successor must wait as long as the slowest built-in kind needs for a call, because the previous loop may have
    had pools of kinds that are no longer configured."""
    slowest = max(kind.longest_call for kind in built_in_kinds())
    pods = GkePool(name="a", pod_spec=Path("pod.yaml"))
    assert longest_call([pods]) == longest_call([]) == slowest
    assert slowest > 35.0, "more than pods alone would take"
