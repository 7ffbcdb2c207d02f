"""Objects that pools share. The pools of a cluster share connections. The pools of a namespace share a watch, and the
reading and writing of Events."""

from __future__ import annotations

import math
from collections.abc import Callable

from provisioner.backends.gke.api import NOT_FOR_US, USUAL_TIMES, KubeApi, KubeError, KubeTimes
from provisioner.backends.gke.failures_from_events import PodEvents
from provisioner.backends.gke.login import connect
from provisioner.backends.gke.loss_event_writer import LossEvents
from provisioner.backends.gke.own_pods import ID_LABEL
from provisioner.backends.gke.pod_cache import PodCache
from provisioner.backends.gke.pod_watch import PodWatch
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.gke.shared_pod_caches import PodCaches
from provisioner.backends.gke.spot_nodes import SpotNodes
from provisioner.backends.responses import text


class Namespace:
    """The pods of one provisioner in one namespace. All pools that join before the watch begins share the watch."""

    def __init__(self, api: KubeApi, name: str, provisioner: str) -> None:
        self.api, self._name = api, name
        self.watched = False
        """True once the watch has begun, even after it has ended."""
        self._spot_nodes = SpotNodes(api)
        self._caches = PodCaches(self._spot_nodes.is_spot)
        self._watch = PodWatch(api, name, f"{ID_LABEL}={provisioner}", self._caches)
        self._events = PodEvents(api, name, self._caches)
        self.losses = LossEvents(api, name, provisioner)

    def join(self, cache: PodCache) -> None:
        """Keep a pool's cache up to date from now on."""
        self._caches.add(cache)

    def watch(self, cache: PodCache, wake: Callable[[], None]) -> None:
        """Begin to watch, and call ``wake`` if this cache changes."""
        self._caches.add(cache, wake)
        if not self.watched:
            self.watched = True
            self._watch.start()

    def refresh(self, cache: PodCache, oldest: float = math.inf) -> float | None:
        """Make the cache complete and current. Raise BackendError on failure.

        With a watch, return the monotonic time at which the watch's list began. If this list is older than ``oldest``
        seconds, the watch makes another list. Events of waiting pods and names of Spot nodes are read in the
        background.

        Without a watch, list the pods and return None.
        """
        if self.watched:
            listed = self._watch.check(oldest)
            self._events.observe()
            self._spot_nodes.observe()
            return listed
        pods, version = self._watch.list_pods(cache.identity)
        cache.replace(pods.readings(cache.identity), version)
        return None

    def identity(self) -> str:
        """Return the namespace's unique identity, which differs between clusters; empty if we have no right to read the
        namespace."""
        try:
            uid = text(self.api.get(f"/api/v1/namespaces/{self._name}")["metadata"]["uid"])
            return f"namespace {self._name} (uid {uid})"
        except KubeError as error:
            if error.status in NOT_FOR_US:
                return ""
            raise

    def leave(self, cache: PodCache) -> None:
        """Remove a pool's cache. When the last pool leaves, the watch ends."""
        self._caches.remove(cache)
        if self.watched and not self._caches:
            self._watch.close()
            self._events.close()
            self._spot_nodes.close()
            self.losses.close()


class Namespaces:
    """All clusters and namespaces that the pools of one process use."""

    def __init__(self, times: KubeTimes = USUAL_TIMES) -> None:
        self._times = times
        self._apis: dict[tuple[str, ...], KubeApi] = {}
        self._namespaces: dict[tuple[str, ...], Namespace] = {}

    def join(self, pool: GkePool, cache: PodCache) -> Namespace:
        """Let ``cache`` join the ``Namespace`` object of a pool, and return this object. If its watch has begun
        already, make a new object, because the old watch's list lacks the pool's pods. Raise the errors of
        ``connect``."""
        if pool.cluster not in self._apis:
            self._apis[pool.cluster] = connect(pool, self._times)
        key = (*pool.cluster, pool.namespace, cache.identity.provisioner)
        namespace = self._namespaces.get(key)
        if namespace is None or namespace.watched:
            namespace = Namespace(self._apis[pool.cluster], pool.namespace, cache.identity.provisioner)
            self._namespaces[key] = namespace
        namespace.join(cache)
        return namespace
