"""The caches of all pools that share a watch. The watch reads one list for all these caches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping

from provisioner.backends.gke.own_pods import Identity, Reading, Wait
from provisioner.backends.gke.pod_cache import PodCache, check_number
from provisioner.backends.gke.pod_status import Pod, node_of
from provisioner.model import Failure

IsSpot = Callable[[str], bool | None]
"""A function that returns True if Google may preempt the node with this name; None if this is unknown, perhaps only
for now."""


def unknown(_: str) -> None:
    """Return None, because it is unknown whether Google may preempt the node. The pod's own spec then decides this."""


class PodList:
    """The pods of a list that is being read. Only the fields that pools need are kept. Pods that belong to no pool are
    left out."""

    def __init__(self, pools: Iterable[Identity], is_spot: IsSpot = unknown) -> None:
        self._is_spot = is_spot
        self._readings: dict[Identity, dict[str, Reading]] = {pool: {} for pool in pools}
        self._count = 0

    def take(self, kind: str, pod: Pod) -> None:
        """Add a pod of the list (``ADDED``), or apply an event. Events may arrive before the list is complete."""
        self._count += 1
        check_number(self._count)
        is_spot = self._is_spot(node_of(pod))
        for pool, readings in self._readings.items():
            reading = None if kind == "DELETED" else pool.read(pod, is_spot)
            if reading is not None:
                readings[reading[0].name] = reading
            else:
                readings.pop(pod["metadata"].get("name"), None)

    def readings(self, pool: Identity) -> Collection[Reading]:
        """Return the pods that belong to a pool."""
        return self._readings[pool].values()


class PodCaches:
    """The caches of all pools that share a watch. Each cache receives all events, and keeps only the pods of its own
    pool."""

    def __init__(self, is_spot: IsSpot = unknown) -> None:
        self._is_spot, self._lock = is_spot, threading.Lock()
        self._wakes: Mapping[PodCache, Callable[[], None]] = {}
        """For each cache, the function to call if it changes. The mapping is replaced and never changed, because the
        watch's thread reads it."""

    def __bool__(self) -> bool:
        return bool(self._wakes)

    def add(self, cache: PodCache, wake: Callable[[], None] = lambda: None) -> None:
        """Send all events to this cache from now on, and call ``wake`` if it changes."""
        self._wakes = {**self._wakes, cache: wake}

    def remove(self, cache: PodCache) -> None:
        """Send no more events to this cache. Several pools may call this at the same time."""
        with self._lock:
            self._wakes = {each: wake for each, wake in self._wakes.items() if each is not cache}

    def empty_list(self) -> PodList:
        """Return a ``PodList`` without pods, into which the pods of all pools can be read."""
        return PodList((cache.identity for cache in self._wakes), self._is_spot)

    def replace(self, pods: PodList, version: str) -> None:
        """Replace the content of all caches by a complete list, whose resource version is ``version``."""
        for cache, wake in self._wakes.items():
            cache.replace(pods.readings(cache.identity), version)
            wake()

    def apply(self, kind: str, pod: Pod) -> None:
        """Apply an event of the watch."""
        is_spot = self._is_spot(node_of(pod))
        for cache, wake in self._wakes.items():
            if cache.apply(kind, pod, is_spot):
                wake()

    def waiting(self, seconds: float) -> frozenset[Wait]:
        """Return the pods of all pools whose wait has not changed for ``seconds``."""
        return frozenset().union(*(cache.waiting(seconds) for cache in self._wakes))

    def explain(self, reasons: Mapping[Wait, Failure]) -> None:
        """Set the reasons why pods wait."""
        for cache, wake in self._wakes.items():
            if cache.explain(reasons):
                wake()

    def advance(self, version: str) -> None:
        """Note a bookmark of the watch: all events up to this version have arrived."""
        for cache in self._wakes:
            cache.advance(version)
