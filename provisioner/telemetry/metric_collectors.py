"""The building blocks of metrics. ``Metric`` describes one metric, and a ``Group`` has described metrics. ``Table`` is
a gauge whose series are replaced all at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from provisioner.backends import Backend, Measuring
from provisioner.state.errors import StateError

log = logging.getLogger(__name__)

# Without this call, every counter and histogram would export a second, useless series.
disable_created_metrics()  # type: ignore[no-untyped-call]

Key = TypeVar("Key", bound=str | tuple[str, ...])
"""Type of a series' label values: a text if the metric has one label, or a tuple if it has several."""

CONFIGURED = None
"""Placeholder for a label's values, if these values come from the configuration."""


class Table(Collector, Generic[Key]):
    """A gauge whose series are replaced all at once. A scrape sees either all old series or all new series."""

    family: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily

    def __init__(
        self,
        name: str,
        meaning: str,
        labels: Sequence[str],
        registry: CollectorRegistry,
        empty: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Register the gauge. ``empty``: function that returns the value of an expected series that has no value of its
        own."""
        self._empty_family = partial(self.family, name, meaning, labels=labels)
        self._empty = empty
        self._expected: Mapping[tuple[str, ...], float] = {}
        self._values: Mapping[tuple[str, ...], float] = {}
        self._source: Callable[[], Mapping[Key, float]] | None = None
        registry.register(self)

    def expect(self, keys: Iterable[tuple[str, ...]]) -> None:
        """Export a series for each of these label values, even if ``replace`` gives it no value."""
        self._expected = {key: self._expected[key] if key in self._expected else self._empty() for key in keys}

    def replace(self, values: Mapping[Key, float]) -> None:
        """Replace the values of all series. ``values``: the new values, by label values."""
        self._values = {(key,) if isinstance(key, str) else key: value for key, value in values.items()}

    def follow(self, source: Callable[[], Mapping[Key, float]]) -> None:
        """Call ``source`` at each scrape, and replace all values by its result. If ``source`` raises StateError, the
        old values stay."""
        self._source = source

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the metric with all its present series."""
        if self._source is not None:
            with suppress(StateError):
                self.replace(self._source())
        family = self._empty_family()
        for key, value in {**self._expected, **self._values}.items():
            family.add_metric([str(part) for part in key], value)
        yield family


class CountedTable(Table[Key]):
    """A counter whose series are replaced all at once. Its values are counted and stored elsewhere, so they survive
    restarts."""

    family = CounterMetricFamily


class KindMetrics(Collector):
    """The metrics that backends measure. Each scrape calls the backends."""

    def __init__(self, kinds: Mapping[str, str], backends: Mapping[str, Backend], registry: CollectorRegistry) -> None:
        """Register the metrics. ``kinds``: the kind of each pool, by pool."""
        self._kinds = kinds
        self._backends = {name: backend for name, backend in backends.items() if isinstance(backend, Measuring)}
        self._failed: set[str] = set()
        """Pools whose backend raised an error at the last scrape. An error that repeats at the next scrapes is logged
        only once."""
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield each metric with its series. A pool whose backend raises an error has no series."""
        families: dict[str, GaugeMetricFamily] = {}
        for pool, backend in self._backends.items():
            try:
                prefix = f"hf_provisioner_{self._kinds[pool].replace('-', '_')}_"
                measured = [
                    (GaugeMetricFamily(prefix + one.name, one.meaning, labels=["pool"]), float(one.value))
                    for one in backend.measures()
                ]
            except Exception:  # a bug in a backend must not stop the scrape
                if pool not in self._failed:
                    log.exception("Backend failed to measure", extra={"pool": pool})
                self._failed.add(pool)
                continue
            self._failed.discard(pool)
            for family, value in measured:
                families.setdefault(family.name, family).add_metric([pool], value)
        yield from families.values()


Configured = Mapping[tuple[str, ...], Sequence[tuple[str, ...]]]
"""The label values that the configuration gives, by the names of the labels."""

Made = TypeVar("Made", bound=Table[Any] | Counter | Gauge | Histogram)


@dataclass(frozen=True, eq=False)
class Metric(Generic[Made]):
    """The description of a metric: its type, name, labels and meaning."""

    make: Callable[..., Made]
    name: str
    labels: Mapping[str, Iterable[str] | None]
    """The labels. For each label: the values whose series are exported as zero from the start, or None if the values
    come from the configuration."""
    meaning: str

    def __get__(self, group: object, owner: type) -> Made:
        """Tell type checkers which type the metric has. Each instance of a group has an attribute of the same name, so
        Python does not call this method for an instance. An access through the class raises AttributeError."""
        raise AttributeError(self.name)

    def first_keys(self, configured: Configured) -> list[tuple[str, ...]]:
        """Return the label values of the series that are exported as zero from the start."""
        if not self.labels:
            return []
        names = tuple(name for name, values in self.labels.items() if values is CONFIGURED)
        given = configured.get(names, []) if names else [()]
        fixed = [[str(value) for value in values] for values in self.labels.values() if values is not CONFIGURED]
        return [(*key, *others) for key in given for others in product(*fixed)]


class Group:
    """A group of metrics on one registry. Each class attribute of type ``Metric`` describes a metric. The instance has
    the metric itself in an attribute of the same name."""

    def __init__(self, registry: CollectorRegistry, configured: Configured = MappingProxyType({})) -> None:
        self.registry = registry
        self._rows = {name: row for name, row in vars(type(self)).items() if isinstance(row, Metric)}
        for name, row in self._rows.items():
            vars(self)[name] = row.make(row.name, row.meaning, list(row.labels), registry=registry)
        self._begin(configured)

    def _begin(self, configured: Configured) -> None:
        """Export, with the value zero, the series that each metric has from the start."""
        for name, row in self._rows.items():
            metric, keys = vars(self)[name], row.first_keys(configured)
            if isinstance(metric, Table):
                metric.expect(keys)
            else:
                for key in keys:
                    metric.labels(*key)


def timed(*bounds: float) -> Callable[..., Histogram]:
    """Return a function that makes histograms with these upper bounds in seconds. Each bound adds a series for each
    combination of label values."""
    return partial(Histogram, buckets=bounds)
