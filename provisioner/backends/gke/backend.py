"""The gke backend: one pool is the pods of one provisioner in one namespace, all made from one pod spec."""

from __future__ import annotations

import contextlib
import json
import math
import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from provisioner.backends import BackendError, Ended, Finding, MayStart
from provisioner.backends.batch import Call, run_calls
from provisioner.backends.concurrency import MOST
from provisioner.backends.dns import Resolver
from provisioner.backends.gke.api import USUAL_TIMES, Document, KubeError, KubeTimes
from provisioner.backends.gke.live_check import TRIED, rehearse
from provisioner.backends.gke.login import connect
from provisioner.backends.gke.namespace import Namespaces
from provisioner.backends.gke.pod_cache import PodCache
from provisioner.backends.gke.pod_spec import PodSpec, PodSpecFile
from provisioner.backends.gke.pod_status import is_terminating
from provisioner.backends.gke.pod_watch import pods_path
from provisioner.backends.gke.pods import Identity, altered
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.responses import understood
from provisioner.model import Create, Delete, ErrorClass, Failure, Outcome, Snapshot
from provisioner.names import REQUEST_ID_LENGTH, machine_name

POD_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{,251}[a-z0-9])?")
"""The shape of a pod's name. HF may name any host, and one of another shape would make the path of something else than
a pod."""


STRAYED = "{} pods run on without our labels, which something took away, e.g. {}: only a return deletes them"


class GkeBackend:
    """One pool of pods."""

    lag = 0.0
    """The cache follows the server's own order, and holds what we created from the moment that was accepted."""

    def __init__(
        self,
        pool: GkePool,
        *,
        provisioner: str,
        prefix: str = "hf",
        times: KubeTimes = USUAL_TIMES,
        namespaces: Namespaces | None = None,
    ) -> None:
        """Reads the pod spec; BackendError when there is none, or no cluster can be found in the configuration.

        ``prefix``: begins the name of a pod that is only tried.
        ``namespaces``: pools with the same ones share connections and watches; without it the pool has its own.
        """
        self.pool = pool.name
        self.pace = pool.observe_seconds
        self._settings, self._prefix = pool, prefix
        self._identity = Identity(provisioner, pool.name)
        self._path = pods_path(pool.namespace)
        self._spec = PodSpecFile(pool.pod_spec, pool.namespace)
        self._resolver = Resolver() if pool.require_dns else None
        self._cache = PodCache(self._identity, resolver=self._resolver)
        self._namespace = (namespaces or Namespaces()).join(pool, self._cache, partial(connect, pool, times))
        self._api = self._namespace.api
        self._list_after = -math.inf
        self._rests_on: tuple[float, float] | None = None
        """When the list began that the observations rest on: in monotonic time and, the same for all of them, in loop
        time."""
        self._answered_by = ""
        """As ``Snapshot.endpoint_identity``, read after that list."""

    def start(self, wake: Callable[[], None]) -> None:
        """Watch from now on; without it every observation lists the pods."""
        self._namespace.watch(self._cache, wake)

    def list_after(self, when: float) -> None:
        """A live watch lists the pods again."""
        self._list_after = when

    @understood()
    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        """Everything of ours in the namespace.

        An observation at a live watch begins now: what we created is in the cache at once, what others did within the
        time that a silent stream takes to be noticed."""
        listed = self._listed(now)
        sought = self._cache.worth_asking(dict(sought))
        there = self._standing(sought)
        machines = self._cache.with_strayed(there, sought, now)
        strayed = [name for name in there if name in machines and machines[name].strayed]
        if self._cache.lacks(there):
            self._list_after = now
        others = there.keys() - machines.keys()
        ours = {name for name in others if self._identity.is_of_provisioner(there[name])}
        return Snapshot(
            pool=self.pool,
            began=now,
            wall=self._api.clock.now(),
            machines=machines,
            foreign=frozenset(others - ours),
            name_collisions=frozenset(ours),
            spec=self._spec.current().digest,
            asked=frozenset(sought),
            causes=self._cache.causes(),
            problems=(*self._api.clock.slowness(), *((STRAYED.format(len(strayed), min(strayed)),) if strayed else ())),
            endpoint_identity=self._answered_by,
            listed=listed,
        )

    def _listed(self, now: float) -> float | None:
        """Make sure that the cache is current; the loop time when the list began that it rests on, None for now."""
        oldest = now - self._list_after
        begun = self._namespace.refresh(self._cache, oldest if oldest >= 0 else math.inf)
        if begun is None or self._rests_on is None or self._rests_on[0] != begun:
            self._answered_by = self._namespace.identity()
            self._rests_on = None if begun is None else (begun, now - (time.monotonic() - begun))
        return self._rests_on[1] if self._rests_on else None

    def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
        """Create pods, some at a time."""
        spec = self._spec.current()
        calls = [Call((create,), partial(self._create, spec, create)) for create in creates]
        return run_calls(calls, workers=MOST, may_start=may_start, flow=self._api.flow)

    def delete(self, deletes: Sequence[Delete], may_start: MayStart) -> list[Outcome]:
        """Delete pods, some at a time, each with its own grace period unless by force."""
        calls = [Call((delete,), partial(self._delete, delete)) for delete in deletes]
        return run_calls(calls, workers=MOST, may_start=may_start, flow=self._api.flow)

    def record_ends(self, ends: Sequence[Ended]) -> None:
        """As Events on the pods, unless the pool is to write none."""
        if self._settings.loss_events:
            self._namespace.losses.record(self.pool, ends)

    def close(self) -> None:
        """End the watch, if no other pool needs it."""
        self._namespace.leave(self._cache)
        if self._resolver is not None:
            self._resolver.close()

    @understood()
    def rehearse(self, template: str) -> list[Finding]:
        """Try a pod under a name that no machine has, and ask for the rights that the loop needs."""
        request = secrets.token_hex(REQUEST_ID_LENGTH // 2)
        create = Create(machine_name(self._prefix, request, 0), self.pool, template, request)
        spec = self._spec.current()
        return rehearse(self._settings, self._api, lambda: self._altered(spec, create, self._send(spec, create, TRIED)))

    def ahead(self) -> float | None:
        """By the clock of the API server."""
        return self._api.clock.ahead()

    def _send(self, spec: PodSpec, create: Create, query: Mapping[str, str | int] | None = None) -> Document:
        """Ask the server for the pod of one slot; what it makes of it."""
        query = {**(query or {}), "fieldManager": self._identity.manager}
        return self._api.send("POST", self._path, query=query, body=spec.body(create, self._identity.labels(create)))

    def _altered(self, spec: PodSpec | None, create: Create, pod: Document) -> str:
        """Return which fields that we rely on differ from the request; an empty text if all are as requested."""
        asked = {"name": create.name, "namespace": self._settings.namespace, "labels": self._identity.labels(create)}
        return altered({"metadata": asked, "spec": {"restartPolicy": spec.restarts} if spec else {}}, pod)

    @understood(ErrorClass.UNAVAILABLE)
    def _create(self, spec: PodSpec, create: Create) -> Mapping[str, Failure]:
        """Create one pod. What is accepted is in the next observation, whatever the watch has heard by then."""
        asked: PodSpec | None = spec
        try:
            pod = self._send(spec, create)
        except KubeError as error:
            if error.status != 409 or error.reason != "AlreadyExists":
                raise
            pod, asked = self._already_there(create), None  # it may be of a spec of before
        if text := self._altered(asked, create, pod):
            self._undo(pod)
            raise BackendError(ErrorClass.INVALID, text)
        self._cache.add_created(pod)
        return {}

    def _undo(self, pod: Document) -> None:
        """Delete what was made otherwise than it was asked for. If that fails, the observations find it by its name."""
        made = pod["metadata"]
        with contextlib.suppress(BackendError):
            self._send_delete(f"{pods_path(made['namespace'])}/{made['name']}", made["uid"], {})

    def _already_there(self, create: Create) -> Document:
        """The pod that has the name already, if it is this slot's own; BackendError otherwise."""
        pod = self._find(create.name)
        if pod is None:
            raise BackendError(ErrorClass.UNAVAILABLE, f'pod "{create.name}" existed already, and is gone now')
        if not (self._identity.owns(pod) or self._identity.made(pod, "")):
            raise BackendError(ErrorClass.OTHER, f'the name is taken: pod "{create.name}" exists and is not ours')
        if is_terminating(pod):
            raise BackendError(ErrorClass.OTHER, f'pod "{create.name}" exists already and is being deleted')
        return pod

    @understood(ErrorClass.UNAVAILABLE)
    def _delete(self, delete: Delete) -> Mapping[str, Failure]:
        """Delete one pod, and no namesake: what is not there any more, or is another's, is a success."""
        uid = delete.uid
        if not uid and (pod := self._find(delete.name)) and (delete.adopted or self._identity.owns(pod)):
            uid = str(pod["metadata"]["uid"])
        if uid:
            self._send_delete(f"{self._path}/{delete.name}", uid, {"gracePeriodSeconds": 0} if delete.force else {})
        return {}

    def _send_delete(self, path: str, uid: str, more: Mapping[str, object]) -> None:
        """Ask for the delete of this pod and of no other; what is not there any more is a success."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}, **more}
        try:
            self._api.send("DELETE", path, body=json.dumps(options).encode())
        except KubeError as error:
            if error.status != 404 and not (error.status == 409 and "UID" in error.failure.text):
                raise

    def _find(self, name: str) -> Document | None:
        """The pod of this name, whoever's it is; None when there is none."""
        try:
            return self._api.get(f"{self._path}/{name}")
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    def _standing(self, names: Collection[str]) -> dict[str, Document]:
        """The pods of these names that exist here, by name."""
        names = [name for name in names if POD_NAME.fullmatch(name)]
        pods = self._api.lookers.map(self._find, names)
        return {name: pod for name, pod in zip(names, pods, strict=True) if pod is not None}
