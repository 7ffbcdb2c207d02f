"""A provisioner with simulated MIGs in virtual time. State files, cycles and backend are real. The test makes HF's
calls."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from provisioner.backends import BackendError
from provisioner.backends.mig.api import ComputeTimes
from provisioner.backends.mig.backend import MigBackend
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.mig.shared_lists import Projects
from provisioner.lab.cloud.cloud import Cloud, Conditions
from provisioner.lab.cloud.compute.settings import MigSpec, Switches, Timings
from provisioner.lab.cloud.world import Fault, World
from provisioner.loop.announced_ends import Notices
from provisioner.loop.cycle_report import CycleReport, Mandate
from provisioner.loop.reconciler import Reconciler
from provisioner.model import (
    Backoff,
    Limits,
    LossCause,
    Notice,
    Observation,
    ObservationFailed,
    OrphanLimits,
    PoolLimits,
    Snapshot,
    TemplateLimits,
)
from provisioner.schema.setting_types import Compute, Site
from provisioner.state import new_ids
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateMissing
from tests.support.clouds.specs import advised
from tests.support.clouds.virtual_compute import ENDPOINT, VirtualWire
from tests.support.inline_actors import InlineActors
from tests.support.stores import add_request, add_return

if TYPE_CHECKING:
    from provisioner.backends.pubsub_events import Worth

PREFIX = "hf"
SPEC = advised(project="p", name="hf-a", zone="us-central1-a", provisioning_model="SPOT")

EXACT = Timings(
    call=(0.0, 0.0),
    operation=(0.0, 0.0),
    schedule=(2.0, 2.0),
    inserts_per_second=0.0,
    boot=(20.0, 20.0),
    delete=(10.0, 10.0),
    delete_spot=(10.0, 10.0),
    leave=(3.0, 3.0),
    repair=(15.0, 15.0),
)
"""Timings without randomness."""

PATIENCE = ComputeTimes(call=10.0, observation=60.0, admission=0.2, window=0.0)
"""Time limits of calls. A call waits in the world's time. Real time passes in the waits for operations, and in the
window of the call budget; this window would never end in the world's time."""

PACE = 10.0
"""World seconds between two cycles."""

MUTATIONS = ("createInstances", "deleteInstances", "abandonInstances", "recreateInstances", "resize", "delete", "stop")


def limits_of(pools: Sequence[str]) -> Limits:
    """Return limits that allow all requests at once and have short deadlines."""
    pool = PoolLimits(
        "",
        initial_window=1000,
        boot_deadline_seconds=300.0,
        spill_after_seconds=120.0,
        lag_seconds=30.0,
        stale_after_seconds=90.0,
    )
    return Limits(
        prefix=PREFIX,
        pools={name: replace(pool, name=name) for name in pools},
        templates={"T": TemplateLimits("T", tuple(pools))},
        request_deadline_seconds=600.0,
        return_deadline_seconds=600.0,
        orphans=OrphanLimits(300.0),
        backoff=Backoff(last_seconds=300.0),
    )


class Crash(BaseException):
    """Exception that stands for the end of the process."""


class VirtualSite:
    """A site with one pool for each MIG: ``with VirtualSite(directory) as site``. A pool has the name of its MIG."""

    def __init__(
        self,
        directory: Path,
        *specs: MigSpec,
        faults: Sequence[Fault] = (),
        switches: Switches | None = None,
        limits: Limits | None = None,
        seed: int = 1,
        pace: float = PACE,
    ) -> None:
        self.specs = specs or (SPEC,)
        self.cloud = Cloud(World(seed=seed), (), self.specs)
        self.world = self.cloud.world
        self.cloud.impose(Conditions(faults=tuple(faults), mig=EXACT, switches=switches))
        self.limits = limits or limits_of([spec.name for spec in self.specs])
        self.hf = StateDir(directory)
        self.hf.intent.create("demo")
        self._directory = directory
        self._pace = pace
        self.groups = {spec.name: spec.name for spec in self.specs}
        """The group of each pool in the configuration, as the next start reads it."""
        self._numbers = itertools.count(1)
        self._wire = VirtualWire(self.cloud.groups)
        self._notices = Notices()
        self.backends: dict[str, MigBackend] = {}
        self.reports: list[CycleReport] = []

    def __enter__(self) -> VirtualSite:
        self._wire.__enter__()
        self.restart()
        return self

    def __exit__(self, *error: Any) -> None:
        self._close()
        self._wire.__exit__(*error)

    # --- the loop -------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return loop time."""
        return self.world.now

    def wall(self) -> float:
        """Return the wall time of the loop's host. No fault of the cloud changes it."""
        return self.world.start_wall + self.world.now

    def uptime(self) -> None:
        """Return None: this host does not know its uptime. So the loop measures a restart by the wall clock."""

    def restart(self) -> None:
        """Start a new loop that has only the files of the former loop."""
        self._close()
        projects = Projects(Site("demo", PREFIX, compute=Compute(calls_per_minute=1_000_000)), times=PATIENCE)
        pools = {spec.name: _pool(spec, self.groups[spec.name]) for spec in self.specs}
        self.backends = {name: MigBackend(pool, projects) for name, pool in pools.items()}
        self.actors = InlineActors(self.backends)
        limits = {name: replace(pool, where=pools[name].limits().where) for name, pool in self.limits.pools.items()}
        self.reconciler = Reconciler(
            clock=self,
            state=StateDir(self._directory),
            actors=self.actors,
            limits=replace(self.limits, pools=limits),
            provisioner="demo",
            mandate=Mandate(),
        )

    def _close(self) -> None:
        for backend in self.backends.values():
            backend.close()

    def cycle(self) -> CycleReport:
        """Observe every pool, and run one cycle of the loop."""
        sought = self.reconciler.sought()
        self.reports.append(
            self.reconciler.cycle({name: self.observe(name, sought.get(name)) for name in self.backends})
        )
        return self.reports[-1]

    def observe(self, pool: str, sought: Mapping[str, str] | None = None) -> Observation:
        """Observe a pool once."""
        began = self.now()
        try:
            seen = replace(self.backends[pool].observe(began, sought or {}), asked=frozenset(sought or ()))
        except BackendError as error:
            return ObservationFailed(pool, began, error.failure)
        known = self.limits.pools.get(pool)  # A group that no pool of the loop names has a backend, too.
        return self._notices.add_to(seen, known.lag_seconds if known else 0.0)

    def listen(self) -> Counter[Worth]:
        """From now on, let the loop read the audit log. Return a counter of the log's entries, by the use that the loop
        could make of them."""
        from provisioner.backends.pubsub_events import Sieve  # Google's library of Pub/Sub takes a second to import

        sieve = Sieve(PREFIX)
        worths: Counter[Worth] = Counter()

        def hear(data: bytes, published: float) -> None:
            judged = sieve.judge(data, datetime.fromtimestamp(published, UTC))
            worths[judged.worth] += 1
            if judged.news and judged.news.grace is not None:
                ends = self.now() + judged.news.grace
                self._notices.add(judged.news.instance, Notice(LossCause.PREEMPTED, ends), self.now())

        self.cloud.groups.audit.listeners.append(hear)
        return worths

    def run(self, seconds: float, *, polls: bool = True) -> None:
        """Run cycles for this many seconds. ``polls``: HF polls each request before each cycle."""
        end = self.now() + seconds
        while self.now() < end:
            self._wire.advance(self._pace)
            for id_ in self.hf.intent.read().requests if polls else ():
                self.hf.seen.touch(id_)
            self.cycle()

    def unseen(self, seconds: float) -> None:
        """Advance the time without an observation."""
        self._wire.advance(seconds)

    def until(self, condition: Callable[[], object], seconds: float = 3600.0, what: str = "it") -> None:
        """Run cycles until the condition holds. Raises AssertionError after ``seconds`` of the world's time."""
        end = self.now() + seconds
        while not condition():
            assert self.now() < end, f"{what} did not come true within {seconds} s: {self.phases()}"
            self.run(self._pace)

    # --- HostFactory ----------------------------------------------------------------------------------------------

    def request(self, count: int) -> str:
        """Call requestMachines."""
        with patch.object(new_ids, "new_id", lambda: f"r{next(self._numbers):09d}"):
            return add_request(self.hf, "T", count, created_wall=self.wall())

    def return_machines(self, names: Sequence[str]) -> str:
        """Call requestReturnMachines."""
        return add_return(self.hf, list(names), created_wall=self.wall())

    def answer(self, id_: str) -> dict[str, Any]:
        """Return the published answer to a request. Its status is ``running`` until an answer is published."""
        try:
            answer = self.hf.status.read_answers([id_]).get(id_)
        except StateMissing:
            answer = None
        entry: dict[str, Any] = (
            json.loads(answer.text) if answer else {"status": "running", "machines": [], "message": ""}
        )
        return entry

    def ended(self, id_: str) -> bool:
        """Return True if the published answer to this request is terminal."""
        return self.answer(id_)["status"] != "running"

    def asked(self, count: int) -> dict[str, Any]:
        """Request machines, run until the answer is terminal, and return this answer."""
        id_ = self.request(count)
        self.until(lambda: self.ended(id_), what=f"the end of {id_}")
        return self.answer(id_)

    def lost(self) -> dict[str, int]:
        """Return what getReturnRequests would report: the names of the lost machines, with the seconds left."""
        return {name: loss.grace for name, loss in self.hf.status.read_lost().items()}

    # --- the cloud ------------------------------------------------------------------------------------------------

    def faults(self, *faults: Fault) -> None:
        """Impose these faults and no others."""
        self.world.set_faults(faults)

    def phases(self) -> dict[str, str]:
        """Return every machine's phase, as ``GET state`` gives it."""
        return {machine["name"]: machine["phase"] for machine in self.cloud.state()["machines"]}

    def mutations(self) -> dict[str, int]:
        """Return the number of calls of each mutating method, as ``GET state`` does.

        Calls of zonal and regional groups are counted together.
        """
        calls: dict[str, int] = {}
        for method, count in self.world.calls.items():
            name = method.rpartition(".")[2]
            if name in MUTATIONS:
                calls[name] = calls.get(name, 0) + count
        return calls

    def in_sight(self) -> bool:
        """Return True if every pool was seen completely in the last cycle."""
        return all(isinstance(observation, Snapshot) for observation in self.reports[-1].observations.values())


def succeeded(answer: dict[str, Any]) -> list[str]:
    """Return the names of the machines that succeeded according to an answer."""
    return sorted(machine["name"] for machine in answer["machines"] if machine["result"] == "succeed")


def messages(answer: dict[str, Any]) -> str:
    """Return all messages of an answer."""
    return " ".join([answer["message"], *(machine["message"] for machine in answer["machines"])])


def _pool(spec: MigSpec, group: str) -> MigPool:
    place = {"zone": spec.zone} if spec.zone else {"region": spec.region}
    return MigPool(name=spec.name, project=spec.project, group=group, endpoint=ENDPOINT, observe_seconds=0.001, **place)


@contextmanager
def dying(backend: MigBackend, method: str, *, applied: bool) -> Iterator[None]:
    """Raise ``Crash`` at the next call of ``method`` (create or delete), before the cloud gets the call.

    If ``applied``, raise ``Crash`` after the cloud has carried out the call.
    """
    act = getattr(backend, method)

    def last_act(*arguments: Any) -> None:
        if applied:
            act(*arguments)
        raise Crash(method)

    setattr(backend, method, last_act)
    try:
        yield
    finally:
        setattr(backend, method, act)
