"""HostFactory's requests, the loop's cycles and the MIG backend over HTTP. A test advances the time of the groups.

Loop time is the cloud's time, and advances only between two cycles. So the speed of the test does not matter. All parts
of the loop are real except its threads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from provisioner.backends import BackendError
from provisioner.backends.mig.api import ComputeTimes
from provisioner.backends.mig.backend import MigBackend
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.mig.shared_lists import Projects
from provisioner.lab.cloud.compute.group import Mig
from provisioner.lab.cloud.compute.settings import MigSpec, Switches
from provisioner.lab.cloud.compute.vms import Vm
from provisioner.lab.cloud.world import Fault
from provisioner.loop.cycle_report import Mandate
from provisioner.loop.reconciler import Reconciler
from provisioner.model import Limits, Observation, ObservationFailed, PoolLimits, TemplateLimits
from provisioner.schema.setting_types import Compute, Site
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateMissing
from tests.support.clouds.compute_cloud import ComputeCloud
from tests.support.clouds.mig_cloud import EXACT
from tests.support.clouds.specs import advised
from tests.support.inline_actors import InlineActors
from tests.support.stores import add_request, add_return

PROJECT = "demo-project"
LAG = 30.0
STEP = 5.0
"""Seconds between two cycles."""
FIRST = advised(project=PROJECT, name="hf-a", zone="us-central1-a")
SECOND = advised(project=PROJECT, name="hf-b", zone="us-central1-b")


class Grid:
    """``with Grid(tmp_path, [FIRST, SECOND]) as grid``: one pool for each group, and one template ``T`` that names all
    pools."""

    def __init__(
        self,
        directory: Path,
        specs: Sequence[MigSpec],
        *,
        switches: Switches | None = None,
        step: float = STEP,
        operation: float = 0.0,
        request_deadline: float = 1800.0,
        **limits: float,
    ) -> None:
        """Make a grid. ``operation``: seconds until a group acts on a call. ``limits``: limits of every pool."""
        self.specs = tuple(specs)
        timings = replace(EXACT, operation=(operation, operation))
        self.cloud = ComputeCloud(specs, speed=0.0, timings=timings, switches=switches)
        self.state = StateDir(str(directory))
        self._step = step
        defaults = {
            "initial_window": 3000,
            "max_pending": 3000,
            "boot_deadline_seconds": 300.0,
            "spill_after_seconds": 90.0,
        }
        pools = {spec.name: PoolLimits(spec.name, **{"lag_seconds": LAG, **defaults, **limits}) for spec in specs}
        self.limits = Limits(
            "hf", pools, {"T": TemplateLimits("T", tuple(pools))}, request_deadline_seconds=request_deadline
        )
        self.made: list[str] = []
        """Names of all instances that were ever inserted, in order."""

    def __enter__(self) -> Grid:
        self.cloud.__enter__()
        self._note_inserts()
        self.state.intent.create("demo")
        self.restart()
        return self

    def __exit__(self, *error: Any) -> None:
        self._close()
        self.cloud.__exit__(*error)

    # --- the loop -----------------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Start a new loop that has only what the former loop has recorded."""
        self._close()
        times = ComputeTimes(admission=0.1, window=0.0)
        projects = Projects(Site("demo", "hf", compute=Compute(calls_per_minute=1_000_000)), times=times)
        self.backends = {spec.name: MigBackend(self._pool(spec), projects) for spec in self.specs}
        self._loop = Reconciler(
            clock=self,
            state=self.state,
            actors=InlineActors(self.backends),
            limits=self.limits,
            provisioner="demo",
            mandate=Mandate(),
        )

    def now(self) -> float:
        return 1000.0 + self.cloud.world.now

    def wall(self) -> float:
        return self.cloud.world.wall()

    def uptime(self) -> None:
        """Return None for an unknown uptime, so that the wall clock counts across a restart."""

    def cycle(self) -> None:
        """Observe every pool, and run one cycle of the loop."""
        observations: dict[str, Observation] = {}
        for name, backend in self.backends.items():
            now = self.now()
            try:
                observations[name] = backend.observe(now, self._loop.sought().get(name, {}))
            except BackendError as error:
                observations[name] = ObservationFailed(name, now, error.failure)
        report = self._loop.cycle(observations)
        assert not report.problem, report.problem

    def until(self, condition: Callable[[], Any], seconds: float, what: str) -> Any:
        """Run cycles until ``condition`` returns a true value, and return this value. Fail after ``seconds`` of loop
        time."""
        deadline = self.now() + seconds
        while not (value := condition()):
            assert self.now() < deadline, f"{what}: not within {seconds} s"
            self.cycle()
            self.cloud.do(lambda: self.cloud.world.advance(self.cloud.world.now + self._step))
        return value

    def run(self, seconds: float) -> None:
        """Run cycles for this many seconds of loop time."""
        end = self.now() + seconds
        self.until(lambda: self.now() >= end, seconds + 1.0, "time")

    # --- HostFactory --------------------------------------------------------------------------------------------------

    def request(self, count: int) -> str:
        return add_request(self.state, "T", count, created_wall=self.wall())

    def return_machines(self, names: Collection[str]) -> str:
        return add_return(self.state, sorted(names), created_wall=self.wall())

    def answer(self, id_: str) -> dict[str, Any]:
        """Return the answer to a request. Its status is ``running`` until a cycle has published an answer."""
        with suppress(StateMissing):
            if (answer := self.state.status.read_answers([id_]).get(id_)) is not None:
                body: dict[str, Any] = json.loads(answer.text)
                return body
        return {"status": "running", "machines": []}

    def ended(self, id_: str, seconds: float = 600.0) -> dict[str, Any]:
        """Run cycles until the request has a terminal answer, and return this answer."""

        def over() -> dict[str, Any] | None:
            answer = self.answer(id_)
            return None if answer["status"] == "running" else answer

        body: dict[str, Any] = self.until(over, seconds, f"the end of {id_}")
        return body

    def running(self, id_: str) -> list[str]:
        """Return the machines that succeeded according to a request's answer."""
        return [machine["name"] for machine in self.answer(id_)["machines"] if machine["result"] == "succeed"]

    def lost(self) -> set[str]:
        return set(self.state.status.read_lost())

    # --- the cloud ----------------------------------------------------------------------------------------------------

    def group(self, spec: MigSpec) -> Mig:
        return self.cloud.groups.mig(spec.project, spec.scope, spec.name)

    def members(self, spec: MigSpec) -> set[str]:
        group = self.group(spec)
        return self.cloud.do(lambda: set(group.members))

    def size(self, spec: MigSpec) -> int:
        """Return the group's targetSize."""
        return self.group(spec).target_size

    def faults(self, *faults: Fault) -> None:
        self.cloud.set_faults(*faults)

    def calls(self, kind: str) -> int:
        """Return the number of requests of this kind that the API has received so far."""
        return sum(path.endswith(kind.replace(".", "/")) for _, path in self.cloud.requests)

    def operations(self, kind: str) -> int:
        """Return the number of operations of this kind that the API has started so far."""
        scopes = [spec.scope for spec in self.specs]
        operations = self.cloud.do(
            lambda: [
                one for scope in scopes for one in self.cloud.groups.operations.documents_of(PROJECT, scope).values()
            ]
        )
        return sum(one["operationType"].endswith(kind) for one in operations)

    def _pool(self, spec: MigSpec) -> MigPool:
        place = {"zone": spec.zone} if spec.zone else {"region": spec.region}
        return MigPool(
            name=spec.name,
            project=spec.project,
            group=spec.name,
            endpoint=self.cloud.url,
            observe_seconds=0.001,
            lag_seconds=0.0,
            **place,
        )

    def _note_inserts(self) -> None:
        insert = self.cloud.groups.vms.insert

        def noted(spec: MigSpec, zone: str, name: str, **more: Any) -> Vm:
            self.made.append(name)
            return insert(spec, zone, name, **more)

        self.cloud.groups.vms.insert = noted  # type: ignore[method-assign]

    def _close(self) -> None:
        for backend in getattr(self, "backends", {}).values():
            backend.close()
