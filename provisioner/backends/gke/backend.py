"""The gke backend. A pool consists of one provisioner's pods in one namespace. All these pods are made from one pod
spec."""

from __future__ import annotations

import contextlib
import json
import math
import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from provisioner.backends import BackendError, Ended, Finding, MayStart, Severity
from provisioner.backends.call_batch import Call, run_calls
from provisioner.backends.concurrency import MOST
from provisioner.backends.dns import Resolver
from provisioner.backends.gke.api import KubeError
from provisioner.backends.gke.live_check import TRIED, rehearse
from provisioner.backends.gke.own_pods import Identity, alteration
from provisioner.backends.gke.pod_cache import PodCache
from provisioner.backends.gke.pod_spec import PodSpec, PodSpecFile
from provisioner.backends.gke.pod_status import is_terminating
from provisioner.backends.gke.pod_watch import pods_path
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.gke.shared_connections import Namespaces
from provisioner.backends.http import Document
from provisioner.backends.responses import translated_errors
from provisioner.model import Create, Delete, ErrorClass, Failure, MachineEnd, Outcome, Snapshot
from provisioner.names import REQUEST_ID_LENGTH, machine_name

POD_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{,251}[a-z0-9])?")
"""Shape of a pod's name. Names from HF are checked, because HF may name any host, and a name of another shape could
lead a call to another resource."""


STRAYED = "pods that run on without our labels, which were removed: {}, e.g. {}: only a return deletes them"


class GkeBackend:
    """The backend of a pool of pods. Its cache of pods applies changes in the server's order. The cache contains a pod
    of ours as soon as the server has accepted its create."""

    def __init__(self, pool: GkePool, namespaces: Namespaces, *, provisioner: str, prefix: str = "hf") -> None:
        """Read the pod spec. Raise BackendError if there is no spec, or if the configuration names no cluster.

        ``namespaces``: connections and watches that several pools share. ``prefix``: beginning of a dry-run pod's name.
        """
        self.pool = pool.name
        self.pace = pool.observe_seconds
        self._settings, self._prefix = pool, prefix
        self._identity = Identity(provisioner, pool.name)
        self._path = pods_path(pool.namespace)
        self._spec = PodSpecFile(pool.pod_spec, pool.namespace)
        self._resolver = Resolver() if pool.require_dns else None
        self._cache = PodCache(self._identity, resolver=self._resolver)
        self._namespace = namespaces.join(pool, self._cache)
        self._api = self._namespace.api
        self._list_after_time = -math.inf
        self._list_times: tuple[float, float] | None = None
        """Monotonic time and loop time at which the list behind the observations began; None without a watch or before
        the first list. The loop time is computed only once for each list."""
        self._endpoint_identity = ""
        """Value of ``Snapshot.endpoint_identity``, read after the list."""

    def start(self, wake: Callable[[], None]) -> None:
        """Begin to watch. Without a watch, each observation lists the pods."""
        self._namespace.watch(self._cache, wake)

    def list_after(self, when: float) -> None:
        """Let a live watch list the pods again, unless its last list began after ``when`` (loop time)."""
        self._list_after_time = when

    @translated_errors()
    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        """Return a snapshot of our pods in the namespace.

        If the watch is live, the snapshot counts as made at ``now`` and contains all our own creates. If the stream is
        silent, other changes may be missing until the stream counts as dead.
        """
        listed = self._refresh(now)
        sought = self._cache.worth_asking(dict(sought))
        there = self._find_pods(sought)
        machines = self._cache.with_strayed(there, sought, now)
        strayed = [name for name in there if name in machines and machines[name].is_strayed]
        if self._cache.is_missing_any(there):
            self._list_after_time = now
        others = there.keys() - machines.keys()
        ours = {name for name in others if self._identity.is_of_provisioner(there[name])}
        return Snapshot(
            pool=self.pool,
            began_at=now,
            wall=self._api.clock.now(),
            machines=machines,
            foreign=frozenset(others - ours),
            name_collisions=frozenset(ours),
            spec=self._spec.current().digest,
            asked=frozenset(sought),
            ends={name: MachineEnd(cause) for name, cause in self._cache.causes().items()},
            problems=(*self._spec.problems(), *self._api.clock.slowness(), *_strayed_problems(strayed)),
            endpoint_identity=self._endpoint_identity,
            listed_at=listed,
        )

    def _refresh(self, now: float) -> float | None:
        """Make sure that the cache is current. Return the loop time at which the cache's list began; None if the pods
        were listed for this observation."""
        oldest = now - self._list_after_time
        began_at = self._namespace.refresh(self._cache, oldest if oldest >= 0 else math.inf)
        if began_at is None or self._list_times is None or self._list_times[0] != began_at:
            self._endpoint_identity = self._namespace.identity()
            self._list_times = None if began_at is None else (began_at, now - (time.monotonic() - began_at))
        return self._list_times[1] if self._list_times else None

    def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
        """Create pods, several at a time."""
        spec = self._spec.current()
        calls = [Call((create,), partial(self._create, spec, create)) for create in creates]
        return run_calls(calls, workers=MOST, may_start=may_start, flow=self._api.flow)

    def delete(self, deletes: Sequence[Delete], may_start: MayStart) -> list[Outcome]:
        """Delete pods, several at a time. Each pod gets its own grace period, unless it is deleted by force."""
        calls = [Call((delete,), partial(self._delete, delete)) for delete in deletes]
        return run_calls(calls, workers=MOST, may_start=may_start, flow=self._api.flow)

    def record_ends(self, ends: Sequence[Ended]) -> None:
        """Write Events on the pods, unless the pool's settings disable them."""
        if self._settings.loss_events:
            self._namespace.losses.record(self.pool, ends)

    def close(self) -> None:
        """End the watch unless another pool needs it."""
        self._namespace.leave(self._cache)
        if self._resolver is not None:
            self._resolver.close()

    @translated_errors()
    def rehearse(self, template: str) -> list[Finding]:
        """Check our rights, and try the create of a pod with an unused name as a dry run. Return the findings."""
        request = secrets.token_hex(REQUEST_ID_LENGTH // 2)
        create = Create(machine_name(self._prefix, request, 0), self.pool, template, request)
        spec = self._spec.current()
        if refused := self._spec.problems():  # the spec in force is an earlier one, whose trial proves nothing
            return [Finding(self.pool, Severity.ERROR, text) for text in refused]
        return rehearse(
            self._settings, self._api, lambda: self._altered_message(spec, create, self._send(spec, create, TRIED))
        )

    def ahead(self) -> float | None:
        """Return the seconds by which the API server's clock is ahead of this host's; None if unknown."""
        return self._api.clock.ahead()

    def _send(self, spec: PodSpec, create: Create, query: Mapping[str, str | int] | None = None) -> Document:
        """Send the create of a slot's pod. Return the pod in the server's response."""
        query = {**(query or {}), "fieldManager": self._identity.manager}
        return self._api.send("POST", self._path, query=query, body=spec.body(create, self._identity.labels(create)))

    def _altered_message(self, spec: PodSpec | None, create: Create, pod: Document) -> str:
        """Return a message about fields that differ from the request; empty if all are as requested."""
        asked = {"name": create.name, "namespace": self._settings.namespace, "labels": self._identity.labels(create)}
        return alteration({"metadata": asked, "spec": {"restartPolicy": spec.restart_policy} if spec else {}}, pod)

    @translated_errors(ErrorClass.UNAVAILABLE)
    def _create(self, spec: PodSpec, create: Create) -> Mapping[str, Failure]:
        """Create one pod. If the server accepts the pod, the next observation contains it, even if the watch has not
        reported it yet."""
        asked: PodSpec | None = spec
        try:
            pod = self._send(spec, create)
        except KubeError as error:
            if error.status != 409 or error.reason != "AlreadyExists":
                raise
            pod, asked = self._find_existing(create), None  # The pod may come from an earlier spec.
        if text := self._altered_message(asked, create, pod):
            self._delete_altered(pod)
            raise BackendError(ErrorClass.INVALID, text)
        self._cache.add_created(pod)
        return {}

    def _delete_altered(self, pod: Document) -> None:
        """Delete a pod that differs from the request. If the delete fails, later observations find the pod by its
        name."""
        made = pod["metadata"]
        with contextlib.suppress(BackendError):
            self._send_delete(f"{pods_path(made['namespace'])}/{made['name']}", made["uid"], {})

    def _find_existing(self, create: Create) -> Document:
        """Return the slot's existing pod. Raise BackendError if the pod is gone, is being deleted or is not ours."""
        pod = self._find_pod(create.name)
        if pod is None:
            raise BackendError(ErrorClass.UNAVAILABLE, f'pod "{create.name}" existed already, and is gone now')
        if not (self._identity.owns(pod) or self._identity.made(pod, "")):
            raise BackendError(ErrorClass.OTHER, f'the name is taken: pod "{create.name}" exists and is not ours')
        if is_terminating(pod):
            raise BackendError(ErrorClass.OTHER, f'pod "{create.name}" exists already and is being deleted')
        return pod

    @translated_errors(ErrorClass.UNAVAILABLE)
    def _delete(self, delete: Delete) -> Mapping[str, Failure]:
        """Delete the slot's own pod. If the pod is gone or belongs to another owner, this is a success."""
        uid = delete.uid
        if not uid and (pod := self._find_pod(delete.name)) and (delete.is_adopted or self._identity.owns(pod)):
            uid = str(pod["metadata"]["uid"])
        if uid:
            self._send_delete(f"{self._path}/{delete.name}", uid, {"gracePeriodSeconds": 0} if delete.is_forced else {})
        return {}

    def _send_delete(self, path: str, uid: str, more: Mapping[str, object]) -> None:
        """Delete the pod with this uid at ``path``. If the path has no such pod, this is a success."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}, **more}
        try:
            self._api.send("DELETE", path, body=json.dumps(options).encode())
        except KubeError as error:
            if error.status != 404 and not (error.status == 409 and "UID" in error.failure.text):
                raise

    def _find_pod(self, name: str) -> Document | None:
        """Return the pod of this name, whoever owns it; None if there is none."""
        try:
            return self._api.get(f"{self._path}/{name}")
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    def _find_pods(self, names: Collection[str]) -> dict[str, Document]:
        """Return the existing pods of these names, by name."""
        names = [name for name in names if POD_NAME.fullmatch(name)]
        pods = self._api.readers.map(self._find_pod, names)
        return {name: pod for name, pod in zip(names, pods, strict=True) if pod is not None}


def _strayed_problems(names: Sequence[str]) -> tuple[str, ...]:
    return (STRAYED.format(len(names), min(names)),) if names else ()
