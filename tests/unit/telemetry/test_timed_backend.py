"""The times and failures of a backend's calls in the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from prometheus_client import CollectorRegistry

from provisioner.backends import Backend, BackendError, MayStart, Watching
from provisioner.model import Create, Delete, DeleteReason, ErrorClass, Failure, Outcome, Snapshot
from provisioner.telemetry.metrics import Metrics
from provisioner.telemetry.timed_backend import TimedBackend
from tests.unit.core import REQUEST


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


def value(metrics: Metrics, name: str, operation: str, **labels: str) -> float | None:
    labels |= {"pool": "pool", "operation": operation}
    return metrics.registry.get_sample_value(f"hf_provisioner_backend_{name}", labels)


class Place:
    """A backend that fails as configured."""

    pool, pace = "pool", 7.0

    def __init__(self, error: Exception | None = None, failure: Failure | None = None) -> None:
        self.error, self.failure = error, failure
        self.calls: list[object] = []

    def start(self, wake: Callable[[], None]) -> None:
        self.calls.append(wake)

    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        self.calls.append((now, sought))
        if self.error:
            raise self.error
        return Snapshot("pool", now, {})

    def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
        return [Outcome(create, self.failure) for create in creates if may_start()]

    def delete(self, deletes: Sequence[Delete], may_start: MayStart) -> list[Outcome]:
        return [Outcome(delete, self.failure) for delete in deletes if may_start()]

    def close(self) -> None:
        self.calls.append("closed")


def test_a_timed_backend_is_a_backend_that_passes_everything_on(metrics: Metrics) -> None:
    class Watched(Place):
        def list_after(self, when: float) -> None:
            self.calls.append(when)

    place, create = Watched(), Create("a", "pool", "T", REQUEST)
    measured: Backend = TimedBackend(place, metrics)
    measured.start(print)
    assert measured.observe(5.0, {"x"}).began_at == 5.0
    assert measured.create([create], lambda: True) == [Outcome(create)]
    assert measured.create([create], lambda: False) == []
    TimedBackend(place, metrics).list_after(7.0)
    assert not isinstance(TimedBackend(Place(), metrics), Watching), "it can do no more than its backend"
    measured.close()
    assert place.calls == [print, (5.0, {"x"}), 7.0, "closed"]
    assert (measured.pool, measured.pace) == ("pool", 7.0)


@pytest.mark.parametrize(
    ("error", "label"),
    [(BackendError(ErrorClass.THROTTLED, "slow down"), "throttled"), (ValueError("surprise"), "other")],
    ids=["its class", "other for a surprise"],
)
def test_a_failed_observation_is_timed_and_counts_as(metrics: Metrics, error: Exception, label: str) -> None:
    with pytest.raises(type(error)):
        TimedBackend(Place(error=error), metrics).observe(5.0, {})
    assert value(metrics, "errors_total", "observe", error=label) == 1
    assert value(metrics, "call_seconds_count", "observe") == 1


def test_each_failed_action_counts_and_each_batch_is_timed_once(metrics: Metrics) -> None:
    measured = TimedBackend(Place(failure=Failure(ErrorClass.DENIED, "no")), metrics)
    measured.create([Create(name, "pool", "T", REQUEST) for name in "abc"], lambda: True)
    measured.delete([Delete(name, "pool", DeleteReason.LOST) for name in "ab"], lambda: True)
    assert [value(metrics, "errors_total", one, error="denied") for one in ("create", "delete")] == [3, 2]
    assert [value(metrics, "call_seconds_count", one) for one in ("create", "delete")] == [1, 1]
