"""Clients that create and delete many pods: our backend, and the fastest raw Python clients, with which it is
compared."""

from __future__ import annotations

import asyncio
import json
import resource
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import aiohttp
import urllib3

from provisioner.backends.gke.backend import GkeBackend
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.gke.shared_connections import Namespaces
from provisioner.model import Create, Delete, DeleteReason
from tests.kube.space import Space

REQUEST = "abcdefghij"
POD: Mapping[str, Any] = {
    "terminationGracePeriodSeconds": 1,
    "schedulerName": "none",
    "containers": [
        {
            "name": "main",
            "image": "registry.example.com/grid/compute:2.7.1",
            "env": [{"name": f"SETTING_{number}", "value": "x" * 24} for number in range(6)],
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
        }
    ],
}
"""A pod that no scheduler assigns to a node. The server only creates and deletes it, and it is gone at once after a
delete."""


class Client(Protocol):
    """A client that creates and deletes pods. Each call of ``create`` gets names that were not used before."""

    title: str

    def create(self, names: Sequence[str]) -> None:
        """Create pods with these names. Raise AssertionError if a create is refused."""

    def delete(self, uids: Mapping[str, str]) -> None:
        """Delete the pods with these names and uids."""

    def close(self) -> None:
        """End the connections."""


class Rate(NamedTuple):
    """The results of a batch of calls."""

    per_second: float
    milliseconds: float
    """Milliseconds of this process's processor time per call."""


def timed(calls: int, act: Callable[[], None]) -> Rate:
    """Run ``act``, which makes ``calls`` calls, and return their rate."""
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    act()
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Rate(calls / seconds, 1000 * used / calls)


class Target:
    """The namespace, with the address and the credentials that the raw clients use."""

    def __init__(self, space: Space, directory: Path) -> None:
        self.kubeconfig = space.write_kubeconfig(directory / "kubeconfig")
        user = json.loads(self.kubeconfig.read_text())["users"][0]["user"]
        self.headers = {"Authorization": f"Bearer {user['token']}", "Content-Type": "application/json"}
        self.url = space.admin.server + space.pods_path
        self.ca = space.admin.ca

    def bodies(self, names: Sequence[str]) -> list[bytes]:
        """Return the bodies of the requests that create the pods."""
        labels = {f"hf-provisioner/{key}": "value" for key in ("id", "pool", "request", "template", "slot")}
        head = {"apiVersion": "v1", "kind": "Pod"}
        return [
            json.dumps({**head, "metadata": {"name": name, "labels": labels}, "spec": POD}).encode() for name in names
        ]

    def options(self, uids: Mapping[str, str]) -> list[tuple[str, bytes]]:
        """Return, for each delete request, the address and the body with the options of the delete."""
        return [
            (f"{self.url}/{name}", json.dumps({"preconditions": {"uid": uid}}).encode()) for name, uid in uids.items()
        ]


class Threads:
    """A raw client that uses urllib3 in threads."""

    def __init__(self, target: Target, workers: int) -> None:
        self.title = f"urllib3, {workers} threads"
        self._target = target
        self._connections = urllib3.PoolManager(ca_certs=target.ca, maxsize=workers, retries=False)
        self._workers = ThreadPoolExecutor(workers)

    def create(self, names: Sequence[str]) -> None:
        self._send("POST", [(self._target.url, body) for body in self._target.bodies(names)])

    def delete(self, uids: Mapping[str, str]) -> None:
        self._send("DELETE", self._target.options(uids))

    def close(self) -> None:
        self._workers.shutdown()
        self._connections.clear()

    def _send(self, verb: str, calls: Sequence[tuple[str, bytes]]) -> None:
        def send(call: tuple[str, bytes]) -> int:
            return self._connections.request(verb, call[0], body=call[1], headers=self._target.headers).status

        statuses = set(self._workers.map(send, calls))
        assert max(statuses) < 300, statuses


class Coroutines:
    """A raw client that uses aiohttp."""

    def __init__(self, target: Target, workers: int) -> None:
        self.title = f"aiohttp, {workers} at once"
        self._target, self._workers = target, workers
        self._loop = asyncio.new_event_loop()
        self._session = self._loop.run_until_complete(self._open())

    async def _open(self) -> aiohttp.ClientSession:
        context = ssl.create_default_context(cafile=self._target.ca)
        connector = aiohttp.TCPConnector(ssl=context, limit=self._workers)
        return aiohttp.ClientSession(connector=connector, headers=self._target.headers)

    def create(self, names: Sequence[str]) -> None:
        self._loop.run_until_complete(
            self._send("POST", [(self._target.url, body) for body in self._target.bodies(names)])
        )

    def delete(self, uids: Mapping[str, str]) -> None:
        self._loop.run_until_complete(self._send("DELETE", self._target.options(uids)))

    def close(self) -> None:
        self._loop.run_until_complete(self._session.close())
        self._loop.close()

    async def _send(self, verb: str, calls: Sequence[tuple[str, bytes]]) -> None:
        left = iter(calls)

        async def work() -> None:
            for url, body in left:
                async with self._session.request(verb, url, data=body) as answer:
                    await answer.read()
                    assert answer.status < 300, answer.status

        await asyncio.gather(*(work() for _ in range(self._workers)))


class Ours:
    """The backend as the loop uses it: it watches the namespace."""

    title = "the gke backend"

    def __init__(self, space: Space, target: Target, directory: Path) -> None:
        spec = directory / "pod.json"
        spec.write_text(json.dumps(POD))
        pool = GkePool(name="bench", namespace=space.name, pod_spec=spec, kubeconfig=target.kubeconfig)
        self._backend = GkeBackend(pool, Namespaces(), provisioner="bench")
        self._backend.start(lambda: None)
        self._backend.observe(0.0, {})

    def create(self, names: Sequence[str]) -> None:
        outcomes = self._backend.create([Create(name, "bench", "T", REQUEST) for name in names], lambda: True)
        assert [outcome.failure for outcome in outcomes] == [None] * len(names), outcomes[-1]

    def delete(self, uids: Mapping[str, str]) -> None:
        deletes = [Delete(name, "bench", DeleteReason.RETURNED, uid) for name, uid in uids.items()]
        outcomes = self._backend.delete(deletes, lambda: True)
        assert [outcome.failure for outcome in outcomes] == [None] * len(deletes), outcomes[-1]

    def close(self) -> None:
        self._backend.close()
