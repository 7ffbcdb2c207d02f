"""An embedded cloud, and on it a provider instance for each case of the conformance checklist.

HostFactory's calls run in the test's process. A case that tests processes starts a process for each call instead. The
loop is the real loop, in a thread of the test.
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
"""Seconds that an action of the loop may take. On an idle machine it takes a tenth of a second."""

PROJECT, ZONE = "demo-project", "us-central1-a"
MIG_CASES = (54, 85)
"""Cases about VMs. Each of them has a managed instance group."""

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
    """True if the loop runs during the case."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of provisioner.yaml, beside those that every case has."""
    pool: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the one pool, beside those that every case has."""
    processes: bool = False
    """True if the case needs real processes, for example because it is about stdin, signals, limits or the time until
    an answer."""
    slow: bool = False
    """True if the case takes many seconds."""

    @property
    def place(self) -> str:
        """Return the name of the case's own namespace, which is also the name of its group."""
        return f"case-{self.number}"


class Cases(list[Case]):
    """The cases of one part of the checklist, in the checklist's order."""

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
        """Return a decorator that adds a function to the cases."""

        def add(play: Callable[[Grid], None]) -> Callable[[Grid], None]:
            self.append(Case(number, condition, play, loop, settings, pool or {}, processes, slow))
            return play

        return add


def stage() -> Simulator:
    """Return a cloud that has a namespace for each case, and a group for each case that needs one."""
    return Simulator(
        namespaces=[f"case-{number}" for number in range(1, 101)],
        migs=[advised(project=PROJECT, zone=ZONE, name=f"case-{number}") for number in MIG_CASES],
        conditions=Conditions.of(timings=TIMINGS),
    )


class Instance(InProcess):
    """A provider instance on the embedded cloud, as a context manager. At the end of the context, the loop and the
    faults end."""

    def __init__(self, directory: Path, cloud: Simulator, place: str, *, instance: str = INSTANCE) -> None:
        """Prepare the instance. ``place``: the name of its namespace or group."""
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
        """Start the loop of ``provisioner run`` in a thread of this process, without handlers of signals."""
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
        """End the loop after its current action."""
        if self._service is not None and self._thread is not None:
            self._service.loop.stop()
            self._thread.join()
        self._service = self._thread = None

    def cycles(self, count: int = 2) -> None:
        """Wait until the loop has run ``count`` cycles."""
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
        """Return the sum of a metric over all its labels, as Prometheus would scrape it."""
        families = text_string_to_metric_families(requests.get(f"{self.url}/metrics", timeout=10 * PATIENCE).text)
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)

    # --- the cloud ----------------------------------------------------------------------------------------------------

    def fault(self, mode: str, *, target: str = "", **fields: Any) -> None:
        """Replace all faults by one fault in this case's place. With ``target``, the fault hits only
        ``<place>/<target>``."""
        place = f"{self.place}/{target}" if target else self.place
        self.simulator.impose([Fault(mode, place, **fields)])

    def faults(self, *faults: Fault) -> None:
        """Replace all faults by these."""
        self.simulator.impose(faults)

    def cloud(self, *phases: str) -> list[str]:
        """Return the names of the machines in the cloud. ``phases``: return only machines in one of these phases."""
        machines = [machine for machine in self.simulator.state()["machines"] if machine["pool"] == self.place]
        return sorted(machine["name"] for machine in machines if not phases or machine["phase"] in phases)

    def until_cloud(self, condition: Callable[[Sequence[str]], bool], *phases: str) -> list[str]:
        """Wait until ``condition`` holds for the names of the cloud's machines. Return these names."""
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
        """Wait until a request or return request has ended. Return its answer."""
        self._until(lambda: self._published(id_, lambda answer: answer.ended), f"{id_} ends")
        return self.status(id_)[0]

    def shows(self, id_: str, *results: str) -> dict[str, Any]:
        """Wait until the machines in the answer to a request have these results. Return the answer."""

        def fits(answer: Any) -> bool:
            machines = json.loads(answer.text)["machines"]
            return sorted(machine["result"] for machine in machines) == sorted(results)

        self._until(lambda: self._published(id_, fits), f"{id_} shows {results}")
        return self.status(id_)[0]

    def complete(self, machines: int = 3, template: str = "T2") -> list[str]:
        """Request machines, and wait until the request is complete. Return the names of the machines."""
        entry = self.ended(self.request(template, machines))
        assert entry["status"] == "complete", entry
        return names(entry)

    def reclaimed(self, *machines: str) -> dict[str, int]:
        """Call getReturnRequests with these machines. Return the machines that HF is asked to return, and the seconds
        that are left for each."""
        hosts = {"machines": [{"name": name, "machineId": name} for name in machines]}
        answer = self.call("getReturnRequests", hosts)
        return {entry["machine"]: entry["gracePeriod"] for entry in answer["requests"]}

    def reclaims(self, *machines: str, among: Sequence[str] = ()) -> None:
        """Wait until getReturnRequests asks HF to return exactly these machines. ``among``: the machines that HF lists
        in its input; empty if HF lists just these machines."""
        listed = among or machines
        until(lambda: set(self.reclaimed(*listed)) == set(machines), SECONDS, every=0.1, what=f"{machines} reported")

    def recorded(self) -> int:
        """Return the number of requests and return requests in intent."""
        try:
            intent = self.state.intent.read()
        except StateMissing:
            return 0
        return len(intent.requests) + len(intent.returns)

    def write_templates(self, *templates: Mapping[str, Any]) -> None:
        """Replace the templates file by a rename, so that a reader never finds a half-written file."""
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
        """Replace provisioner.yaml in one step. Its content is the case's settings, changed by ``settings``."""
        file = self.conf / "provisioner.yaml"
        aside = file.with_suffix(".new")
        aside.write_text(yaml.safe_dump(self.settings | settings))
        aside.replace(file)


class Ahead:
    """The number of seconds by which loop time is ahead of the real time. The loop's thread reads this number."""

    seconds = 0.0

    def go_on(self, seconds: float = 5.0) -> None:
        """Advance loop time by ``seconds``. Call this repeatedly for a deadline that begins only when the loop observes
        an event."""
        self.seconds += seconds


@contextmanager
def loop_time() -> Iterator[Ahead]:
    """Allow a test to advance loop time. The loop's deadlines and delays follow loop time. Its threads still wait in
    real time."""
    ahead, now = Ahead(), LoopClock.now
    with patch.object(LoopClock, "now", lambda clock: now(clock) + ahead.seconds):
        yield ahead


def names(entry: Mapping[str, Any], *results: str) -> list[str]:
    """Return the names of the machines in an entry of getRequestStatus. With ``results``, return only machines with one
    of these results."""
    return [machine["name"] for machine in entry["machines"] if not results or machine["result"] in results]


def template(name: str, **fields: object) -> dict[str, object]:
    """Return a template for the templates file. It is a copy of the first template of ``TEMPLATES`` with this name and
    these fields."""
    return TEMPLATES["templates"][0] | {"templateId": name} | fields
