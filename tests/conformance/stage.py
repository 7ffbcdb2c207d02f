"""The stage of the cases: an embedded cloud, and on it a provider instance for each case.

HostFactory's calls run in the test's process. If a case is about processes, the calls are processes. The loop is the
real loop, in a thread of the test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest.mock import patch

import requests
import yaml
from prometheus_client.parser import text_string_to_metric_families

from provisioner.commands.loop_service import Service
from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.server import Simulator
from provisioner.lab.cloud.world import Fault
from provisioner.loop.clock import LoopClock
from provisioner.settings.reload import Configuration
from provisioner.state.errors import StateMissing
from provisioner.state.protocols import State
from tests.support.clouds.specs import advised
from tests.support.hostfactory.in_process import InProcess
from tests.support.hostfactory.provider import INSTANCE, TEMPLATES
from tests.support.waiting import PATIENCE, until

SECONDS = 30.0
"""Seconds that any act of the loop may take; on an idle machine it takes a tenth of a second."""

PROJECT, ZONE = "demo-project", "us-central1-a"
MIG_CASES = (54, 85)
"""Cases about VMs: each has a managed instance group."""

TIMINGS: Mapping[str, Mapping[str, Any]] = {
    "gke": {"schedule": 0.01, "start": 0.02, "ready": 0.01, "stop": 0.02, "confirm": 0.01, "preempt_grace": 0.1},
    "mig": {"call": 0, "operation": 0.02, "schedule": 0.02, "boot": 0.05, "delete": 0.05, "leave": 0.02},
}


@dataclass(frozen=True)
class Case:
    """A line of the conformance checklist."""

    number: int
    condition: str
    """The action → the expected result, as in the checklist."""
    play: Callable[[Grid], None]
    loop: bool = True
    """True when the loop runs."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of provisioner.yaml, beside those that every case has."""
    pool: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the one pool, beside those that every case has."""
    processes: bool = False
    """True if the case is about what only a process has: stdin, signals, limits, seconds until its answer."""
    slow: bool = False
    """True when it takes many seconds."""

    @property
    def place(self) -> str:
        """Return the case's own namespace, and group."""
        return f"case-{self.number}"


class Cases(list[Case]):
    """Cases of one part of the checklist, in its order."""

    def case(
        self,
        number: int,
        condition: str,
        *,
        loop: bool = True,
        pool: Mapping[str, Any] | None = None,
        processes: bool = False,
        slow: bool = False,
        **settings: object,
    ) -> Callable[[Callable[[Grid], None]], Callable[[Grid], None]]:
        """Make the function a case."""

        def add(play: Callable[[Grid], None]) -> Callable[[Grid], None]:
            self.append(Case(number, condition, play, loop, settings, pool or {}, processes, slow))
            return play

        return add


def stage() -> Simulator:
    """Return a cloud for any of the cases: a namespace for each, a group for some."""
    return Simulator(
        namespaces=[f"case-{number}" for number in range(1, 101)],
        migs=[advised(project=PROJECT, zone=ZONE, name=f"case-{number}") for number in MIG_CASES],
        conditions=Conditions.of(timings=TIMINGS),
    )


class Instance(InProcess):
    """A provider instance on the embedded cloud. A context manager: the loop and the faults end with it."""

    def __init__(self, directory: Path, cloud: Simulator, place: str, *, instance: str = INSTANCE) -> None:
        """Use the namespace, or group, ``place``."""
        super().__init__(directory, instance=instance)
        self.simulator = cloud
        self.place = place
        self._service: Service | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_loop()
        self.simulator.impose(timings=TIMINGS)

    # --- the loop -----------------------------------------------------------------------------------------------------

    def start_loop(self) -> None:
        """Start ``provisioner run`` without its signals."""
        endpoints = {
            "KUBECONFIG": str(self.simulator.kubeconfig),
            "PROVISIONER_COMPUTE_ENDPOINT": self.simulator.compute,
        }
        configuration = Configuration(self.conf / "provisioner.yaml", self.environment | endpoints)
        self._service = Service(configuration, self.loop_state(), listen="127.0.0.1:0")
        self._thread = threading.Thread(target=self._service.run, name=f"loop-{self.place}")
        self._thread.start()

    def loop_state(self) -> State:
        """Return the state as the loop opens it."""
        return self.state

    def stop_loop(self) -> None:
        """End the loop after the action in hand."""
        if self._service is not None and self._thread is not None:
            self._service.loop.stop()
            self._thread.join()
        self._service = self._thread = None

    def cycles(self, count: int = 2) -> None:
        """Wait until the loop has run so many cycles."""
        for _ in range(count):
            before = self.heartbeats()
            until(lambda before=before: self.heartbeats() != before, SECONDS, what="the loop beats")  # type: ignore[misc]

    def heartbeats(self) -> int:
        """Return a number that changes with each cycle."""
        path = self.work / "heartbeat"
        return path.stat().st_mtime_ns if path.exists() else 0

    @property
    def url(self) -> str:
        """Return the address of the loop's HTTP server."""
        assert self._service is not None
        return self._service.server.url

    def metric(self, name: str) -> float:
        """Return a metric's sum over its labels, as Prometheus scrapes it."""
        families = text_string_to_metric_families(requests.get(f"{self.url}/metrics", timeout=10 * PATIENCE).text)
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)

    # --- the cloud ----------------------------------------------------------------------------------------------------

    def fault(self, mode: str, *, target: str = "", **fields: Any) -> None:
        """Set this fault alone from now on, in this case's place or at ``<place>/<target>``."""
        place = f"{self.place}/{target}" if target else self.place
        self.simulator.impose([Fault(mode, place, **fields)])

    def faults(self, *faults: Fault) -> None:
        """Set these faults alone from now on."""
        self.simulator.impose(faults)

    def cloud(self, *phases: str) -> list[str]:
        """Return the names of the machines in the cloud. ``phases``: return only machines in one of these phases."""
        machines = [machine for machine in self.simulator.state()["machines"] if machine["pool"] == self.place]
        return sorted(machine["name"] for machine in machines if not phases or machine["phase"] in phases)

    def until_cloud(self, condition: Callable[[Sequence[str]], bool], *phases: str) -> list[str]:
        """Return the cloud's machines once ``condition`` holds of them."""
        self._until(lambda: condition(self.cloud(*phases)), "the cloud comes to it")
        return self.cloud(*phases)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition. A failure's text has the state of the cloud, the output of `status`, and the loop's
        last lines."""
        try:
            until(condition, SECONDS, what=what)
        except AssertionError as error:
            journal = self.work / "journal.jsonl"
            lines = journal.read_text().splitlines()[-20:] if journal.exists() else []
            error.add_note("\n".join([f"The cloud holds {self.cloud()}. {self.shown()}", *lines]))
            raise

    def shown(self) -> str:
        """Return the JSON that `provisioner status` prints."""
        command = [sys.executable, "-m", "provisioner", "status", "-o", "json"]
        done = subprocess.run(
            command,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=60 * PATIENCE,
            check=False,
        )
        return done.stdout

    # --- HostFactory --------------------------------------------------------------------------------------------------

    def ended(self, id_: str) -> dict[str, Any]:
        """Return the answer to a request or return once it has ended."""
        self._until(lambda: self._published(id_, lambda answer: answer.ended), f"{id_} ends")
        return self.status(id_)[0]

    def shows(self, id_: str, *results: str) -> dict[str, Any]:
        """Return the answer to a request once its machines have these results."""

        def fits(answer: Any) -> bool:
            machines = json.loads(answer.text)["machines"]
            return sorted(machine["result"] for machine in machines) == sorted(results)

        self._until(lambda: self._published(id_, fits), f"{id_} shows {results}")
        return self.status(id_)[0]

    def complete(self, machines: int = 3, template: str = "T2") -> list[str]:
        """Return names of so many new machines, all of which were reported to HF."""
        entry = self.ended(self.request(template, machines))
        assert entry["status"] == "complete", entry
        return names(entry)

    def reclaimed(self, *machines: str) -> dict[str, int]:
        """Return hosts that HF, listing these, is asked to give back, with the seconds left."""
        hosts = {"machines": [{"name": name, "machineId": name} for name in machines]}
        answer = self.call("getReturnRequests", hosts)
        return {entry["machine"]: entry["gracePeriod"] for entry in answer["requests"]}

    def reclaims(self, *machines: str, among: Sequence[str] = ()) -> None:
        """Wait until HF, listing ``among``, is asked to return exactly these."""
        listed = among or machines
        until(lambda: set(self.reclaimed(*listed)) == set(machines), SECONDS, every=0.1, what=f"{machines} reported")

    def recorded(self) -> int:
        """Return requests and returns in intent."""
        try:
            intent = self.state.intent.read()
        except StateMissing:
            return 0
        return len(intent.requests) + len(intent.returns)

    def write_templates(self, *templates: Mapping[str, Any]) -> None:
        """Replace the templates file at once, by a rename."""
        aside = self.templates_file.with_suffix(".new")
        aside.write_text(json.dumps({"templates": templates}))
        aside.replace(self.templates_file)

    def _published(self, id_: str, fits: Callable[[Any], bool]) -> bool:
        if not self.state.status.exists():
            return False
        answer = self.state.status.read_all().get(id_)
        return answer is not None and fits(answer)


class Grid(Instance):
    """The provider instance of a case."""

    def __init__(self, directory: Path, cloud: Simulator, case: Case) -> None:
        super().__init__(directory, cloud, case.place)
        self.as_processes = case.processes
        (self.conf / "pod.yaml").write_text("containers: [{name: main, image: busybox}]\n")
        own = {"kind": "gke", "namespace": self.place, "pod_spec": "pod.yaml", "observe_seconds": 0.05}
        if case.number in MIG_CASES:
            own = {"kind": "mig", "project": PROJECT, "zone": ZONE, "group": self.place, "observe_seconds": 0.2}
            own |= {"lag_seconds": 0.2}
        settings = {
            "id": "demo",
            "loop": {"interval_seconds": 0.1, "floor_seconds": 0.02, "intent_poll_seconds": 0.02},
            "pools": {"gke-main": own | dict(case.pool)},
            **case.settings,
        }
        self.settings = settings
        self.configure()
        if case.loop:
            self.start_loop()

    def configure(self, **settings: object) -> None:
        """Replace provisioner.yaml at once by the case's file with these settings."""
        file = self.conf / "provisioner.yaml"
        aside = file.with_suffix(".new")
        aside.write_text(yaml.safe_dump(self.settings | settings))
        aside.replace(file)


class Ahead:
    """The seconds by which loop time is ahead of the real time; read by the loop's thread."""

    seconds = 0.0

    def go_on(self, seconds: float = 5.0) -> None:
        """Advance loop time by so much; call it repeatedly for a time that begins when the loop observes an event."""
        self.seconds += seconds


@contextmanager
def loop_time() -> Iterator[Ahead]:
    """Allow a test to advance loop time. The loop's deadlines and delays follow loop time, but threads do not."""
    ahead, now = Ahead(), LoopClock.now
    with patch.object(LoopClock, "now", lambda clock: now(clock) + ahead.seconds):
        yield ahead


def names(entry: Mapping[str, Any], *results: str) -> list[str]:
    """Return machines of an entry of getRequestStatus; with ``results``, those that have one of them."""
    return [machine["name"] for machine in entry["machines"] if not results or machine["result"] in results]


def template(name: str, **fields: object) -> dict[str, object]:
    """Return a template of the file: as the fixture's first, but for these fields."""
    return TEMPLATES["templates"][0] | {"templateId": name} | fields
