"""A MIG backend on a simulated group, and the observations and calls that its tests need."""

from __future__ import annotations

import socketserver
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from provisioner.backends.mig.api import USUAL_TIMES, ComputeTimes
from provisioner.backends.mig.backend import MigBackend
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.mig.shared_lists import Projects
from provisioner.lab.cloud.compute.settings import MigSpec
from provisioner.model import Create, Delete, DeleteReason, ErrorClass, Machine, Outcome, Phase, Snapshot
from provisioner.names import machine_name
from provisioner.schema.setting_types import Site
from tests.support.clouds.compute_cloud import QUICK, ComputeCloud
from tests.support.clouds.specs import advised
from tests.support.waiting import until

PROJECT = "demo-project"
ZONAL = advised(project=PROJECT, name="hf-a", zone="us-central1-a", size_limit=3000)
REGIONAL = advised(project=PROJECT, name="hf-r", region="us-central1", size_limit=3000)
TIMINGS = replace(QUICK, notice=3.0)
REQUEST = "abcde01234"
CREATES = "createInstances"
DELETES = "deleteInstances"


def pool(endpoint: str, spec: MigSpec = ZONAL, **more: Any) -> MigPool:
    place = {"zone": spec.zone} if spec.zone else {"region": spec.region}
    settings = {"name": "m", "observe_seconds": 0.01, "lag_seconds": 1.0, **place, **more}
    return MigPool(project=spec.project, group=spec.name, endpoint=endpoint, **settings)


class Bench:
    """A backend on a simulated group. The bench advances loop time."""

    def __init__(self, spec: MigSpec, **cloud: Any) -> None:
        self.spec = spec
        self.cloud = ComputeCloud([spec], speed=2.0, timings=TIMINGS, **cloud)
        self.now = 1000.0
        self.backends: list[MigBackend] = []

    def __enter__(self) -> Bench:
        self.cloud.__enter__()
        self.backend = self.restarted()
        return self

    def __exit__(self, *error: Any) -> None:
        for backend in self.backends:
            backend.close()
        self.cloud.__exit__(*error)

    def restarted(self, times: ComputeTimes = USUAL_TIMES, adopt_prefixes: tuple[str, ...] = ()) -> MigBackend:
        """Return a new backend without any state, as after a restart of the loop."""
        self.backend = MigBackend(
            pool(self.cloud.url, self.spec), Projects(Site("demo", "hf", adopt_prefixes), times=times)
        )
        self.backends.append(self.backend)
        return self.backend

    def observe(self, names: Sequence[str] = ()) -> Snapshot:
        self.now += 10.0
        return self.backend.observe(self.now, dict.fromkeys(names, ""))

    def machine(self, name: str) -> Machine | None:
        return self.observe().machines.get(name)

    def create(self, *numbers: int, template: str = "t") -> list[Outcome]:
        return self.backend.create(creates(*numbers, template=template), lambda: True)

    def delete(self, *machines: Machine) -> list[Outcome]:
        deletes = [Delete(one.name, "m", DeleteReason.RETURNED, one.fingerprint.uid) for one in machines]
        return self.backend.delete(deletes, lambda: True)

    def running(self, count: int) -> Snapshot:
        """Return the first snapshot that shows exactly ``count`` machines, all running."""
        observations: list[Snapshot] = []

        def all_run() -> bool:
            observations.append(self.observe())
            return phases(observations[-1]) == [Phase.RUNNING] * count

        until(all_run, 20, every=0.05, what=f"{count} running machines")
        return observations[-1]

    def empty(self) -> None:
        until(lambda: not self.observe().machines and not self.cloud.state(), 20, every=0.05, what="an empty group")

    def calls(self, method: str) -> int:
        """Return the number of requests to the API whose path ends with this method."""
        return sum(path.endswith(method) for _, path in self.cloud.requests)

    def operations(self, method: str) -> int:
        """Return the number of operations of this kind that the API began."""
        operations = self.cloud.do(lambda: self.cloud.groups.operations.documents_of(PROJECT, self.spec.scope))
        return sum(operation["operationType"].endswith(method) for operation in operations.values())

    def calls_of(self, act: Callable[[], Any]) -> list[str]:
        """Call ``act``. Return the last part of the path of each request that it has made to the API."""
        before = len(self.cloud.requests)
        act()
        return [path.rpartition("/")[2] for _, path in self.cloud.requests[before:]]


def name(number: int) -> str:
    return machine_name("hf", REQUEST, number)


def creates(*numbers: int, template: str = "t") -> list[Create]:
    return [Create(name(number), "m", template, REQUEST) for number in numbers]


def phases(snapshot: Snapshot) -> list[Phase]:
    return [machine.phase for machine in snapshot.machines.values()]


def classes(outcomes: Sequence[Outcome]) -> dict[str, ErrorClass | None]:
    return {outcome.action.name: outcome.failure.error if outcome.failure else None for outcome in outcomes}


def failures(outcomes: Sequence[Outcome]) -> list[ErrorClass]:
    return [outcome.failure.error for outcome in outcomes if outcome.failure]


class OddServer:
    """Server that answers each request with status 200 and the same body.

    It waits ``pause`` seconds before each byte.
    """

    def __init__(self, body: bytes, pause: float = 0.0) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n".encode()
        pieces = [bytes([byte]) for byte in body] if pause else [body]

        class Response(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while self.rfile.readline().strip():
                    pass
                self.wfile.write(head)
                with suppress(OSError):
                    for piece in pieces:
                        time.sleep(pause)
                        self.wfile.write(piece)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Response)

    def __enter__(self) -> str:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
