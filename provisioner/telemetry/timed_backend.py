"""A backend that wraps another backend, times its calls and counts its errors. So the wrapped backend needs no
metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from provisioner.backends import Backend, BackendError, MayStart, Recording, Watching
from provisioner.model import Create, Delete, ErrorClass, Outcome, Snapshot
from provisioner.telemetry.metrics import Metrics, Operation


class TimedBackend:
    """A backend that passes each call to the wrapped backend. It records the duration and the failures of each call in
    the metrics."""

    def __init__(self, backend: Backend, metrics: Metrics) -> None:
        self._backend, self._metrics = backend, metrics
        self.pool, self.pace = backend.pool, backend.pace
        self.start, self.close = backend.start, backend.close
        if isinstance(backend, Watching):
            self.list_after = backend.list_after
        if isinstance(backend, Recording):
            self.record_ends = backend.record_ends

    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        """Observe the pool. If the observation fails, count the failure under its error class. An unexpected exception
        counts as ``other``."""
        try:
            with self._metrics.calls.labels(self.pool, "observe").time():
                return self._backend.observe(now, sought)
        except Exception as error:
            kind = error.failure.error if isinstance(error, BackendError) else ErrorClass.OTHER
            self._metrics.errors.labels(self.pool, "observe", kind).inc()
            raise

    def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
        """Create machines by the wrapped backend."""
        return self._act("create", lambda: self._backend.create(creates, may_start))

    def delete(self, deletes: Sequence[Delete], may_start: MayStart) -> list[Outcome]:
        """Delete machines by the wrapped backend."""
        return self._act("delete", lambda: self._backend.delete(deletes, may_start))

    def _act(self, operation: Operation, act: Callable[[], list[Outcome]]) -> list[Outcome]:
        with self._metrics.calls.labels(self.pool, operation).time():
            outcomes = act()
        for outcome in outcomes:
            if outcome.failure is not None:
                self._metrics.errors.labels(self.pool, operation, outcome.failure.error).inc()
        return outcomes
