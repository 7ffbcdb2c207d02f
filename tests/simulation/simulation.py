"""A simulation in virtual time: a cloud, HostFactory, the loop on real state files, and all faults between them.

The judge of ``judge.py`` checks the simulation against its own records.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hf_scripts import commands
from hf_scripts.commands import ScriptCall
from hf_scripts.input_documents import Document
from provisioner.backends import BackendError, MayStart
from provisioner.hostfactory import Answer
from provisioner.hostfactory.provider_config import Directories
from provisioner.lab.cloud.compute.group_registry import Groups
from provisioner.lab.cloud.compute.settings import MigSpec, Timings
from provisioner.lab.cloud.kubernetes.errors import ApiError
from provisioner.lab.cloud.kubernetes.pods import Cluster
from provisioner.lab.cloud.world import Fault, World
from provisioner.loop.announced_ends import Notices
from provisioner.loop.batch_threads import Batch, Results, carry_out
from provisioner.loop.cycle_report import CycleReport, Mandate, SupersededError
from provisioner.loop.reconciler import Reconciler
from provisioner.model import (
    Backoff,
    Create,
    Delete,
    ErrorClass,
    Failure,
    Hold,
    HoldKind,
    Limits,
    Memory,
    Observation,
    ObservationFailed,
    OrphanLimits,
    Outcome,
    PoolLimits,
    RequestStatus,
    Snapshot,
    TemplateLimits,
)
from provisioner.state import intent_recovery, new_ids
from provisioner.state.errors import StateMissing, StateStale, StateUnreadable, StateUnwritable
from provisioner.state.holds import with_hold, without_holds
from provisioner.state.protocols import State
from provisioner.state.settled_answers import SettledAnswers
from tests.simulation.judge import Judge, TrueMachine, machines_of
from tests.simulation.stores import FileStore, KubeStore, Store
from tests.support.clouds.direct import Direct, DirectGke, DirectMig, Line
from tests.support.clouds.specs import advised

PROVISIONER = "demo"
PREFIX = "hf"

POOLS = (
    PoolLimits("alpha", max_machines=5, max_pending=4, initial_window=2, boot_deadline_seconds=300.0,
               spill_after_seconds=90.0),
    PoolLimits("beta", max_machines=4, max_pending=3, initial_window=3, boot_deadline_seconds=400.0,
               spill_after_seconds=120.0,
               lag_seconds=30.0, stale_after_seconds=90.0),
    PoolLimits("gamma", max_pending=3, initial_window=1, boot_deadline_seconds=300.0, spill_after_seconds=90.0),
)  # fmt: skip
TEMPLATES = (
    TemplateLimits("wide", ("alpha", "beta", "gamma"), max_machines=9, max_lifetime_seconds=900.0),
    TemplateLimits("pods", ("alpha",), tries=0),
    TemplateLimits("vms", ("beta", "gamma"), straggler_after_seconds=60.0, straggler_share=0.5),
)
LIMITS = Limits(
    prefix=PREFIX,
    pools={one.name: one for one in POOLS},
    templates={one.id: one for one in TEMPLATES},
    request_deadline_seconds=1800.0,
    return_deadline_seconds=1800.0,
    orphans=OrphanLimits(300.0, 4),
    cancel_after_seconds=1200.0,
    retention_seconds=7200.0,
    backoff=Backoff(last_seconds=300.0),
)

SPEC = advised(project="p", name="mig-beta", zone="r1-a")
TIMINGS = Timings(operation=(0.0, 0.0))

BLIND = Failure(ErrorClass.UNAVAILABLE, "not all pages came")


class Crash(BaseException):
    """Exception that stands for the end of the loop's process. Only the driver catches it."""


def crash(where: str) -> None:
    """End the process."""
    raise Crash(where)


EXPECTED = ("no space left", "is rebuilt as soon as every pool was observed", "`provisioner recover`")
"""Words of problems that may keep a cycle from its work."""

REFUSED = (StateMissing, StateStale, StateUnreadable)
"""The error of a script that exits 1 while a file is lost, cut or an old copy, so that HF calls again."""

WRITES = ("memory.write", "status.write", "intent.remove", "terminal_answers.forget", "terminal_answers.settle_revised")


def disk_is_full(where: str) -> None:
    """Raise the error of a full disk if the step is a write. A fuse can have this function as its ``end``."""
    if where.startswith("before ") and where.endswith(WRITES):
        raise StateUnwritable(f"no space left for {where}")


@dataclass
class Fuse:
    """A countdown of the loop's steps. At zero it calls ``end``, which ends the process or calls a script as HF
    does."""

    left: int | None = None
    end: Callable[[str], None] | None = None

    def light(self, steps: int, end: Callable[[str], None]) -> None:
        """Call ``end`` after this number of steps."""
        self.left, self.end = steps, end

    def put_out(self) -> None:
        """Stop the countdown."""
        self.left = self.end = None

    def burn(self, where: str) -> None:
        """Count a step, and call ``end`` if this was the last step of the countdown."""
        if self.left is None or self.end is None:
            return
        self.left -= 1
        if self.left <= 0:
            end = self.end
            self.put_out()
            end(where)

    def around(self, function: Callable[..., Any], where: str) -> Callable[..., Any]:
        """Return the function with a step counted before it and after it. The process may end at these steps."""

        def guarded(*arguments: Any, **options: Any) -> Any:
            self.burn(f"before {where}")
            result = function(*arguments, **options)
            self.burn(f"after {where}")
            return result

        return guarded


class VirtualClock:
    """The loop's clock in virtual time. After a restart it continues from the time in memory, as the loop's real clock
    does."""

    def __init__(self, world: World, skew: Callable[[], float], before: Memory | None) -> None:
        self._world = world
        self._skew = skew
        start = self.wall()
        if before is not None:
            start = before.written.time + min(max(self.wall() - before.written.wall, 0.0), 3600.0)
        self._base = start - world.now

    def now(self) -> float:
        return self._base + self._world.now

    def wall(self) -> float:
        return self._world.wall() + self._skew()

    def uptime(self) -> None:
        """Return None for an unknown uptime, so that the wall clock counts across a restart."""


class SimulationActors:
    """An executor that runs a batch at once. Only the batches of slow pools wait until the driver calls ``release``."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._delayed: dict[str, Batch] = {}
        self._ended: list[Results] = []

    def busy(self) -> Set[str]:
        return frozenset(self._delayed) | {results.pool for results in self._ended if results.pool in self._sim.slow}

    def submit(self, batch: Batch, may_start: MayStart) -> None:
        assert batch.pool not in self.busy(), f"pool {batch.pool} is busy and was given another batch"
        self._sim.judge.check_creates(batch.creates)
        for delete in batch.deletes:
            self._sim.judge.check_delete(delete)
        self._sim.fuse.burn(f"before a batch of {batch.pool}")
        if batch.pool in self._sim.slow:
            self._delayed[batch.pool] = batch
            return
        self._carry_out(batch)

    def collect(self) -> list[Results]:
        ended, self._ended = self._ended, []
        return ended

    def release(self) -> None:
        """Carry out the delayed batches."""
        for pool in list(self._delayed):
            self._carry_out(self._delayed.pop(pool))

    def _carry_out(self, batch: Batch) -> None:
        self._ended.append(carry_out(batch, self._sim.backends[batch.pool], lambda: True))
        self._sim.fuse.burn(f"after a batch of {batch.pool}")


class Watched(Direct):
    """A place that reports calls and effects to the judge. The loop may die before or after each call."""

    sim: Simulation

    def _send(self, action: Create | Delete, do: Callable[[], Failure | None]) -> list[Outcome]:
        self.sim.fuse.burn(f"before the call for {action.name}")
        outcomes = super()._send(action, do)
        for outcome in outcomes:
            if isinstance(action, Create) and outcome.failure is not None:
                self.sim.judge.note_refusal(action)
        self.sim.fuse.burn(f"after the call for {action.name}")
        return outcomes

    def _create(self, create: Create) -> Failure | None:
        failure = super()._create(create)  # type: ignore[safe-super]
        self.sim.judge.check_applied()
        return failure


class WatchedGke(Watched, DirectGke):
    pass


class WatchedMig(Watched, DirectMig):
    pass


@dataclass
class Life:
    """A process of the loop: its parts and its epoch."""

    reconciler: Reconciler
    actors: SimulationActors
    state: State
    clock: VirtualClock


@dataclass
class Wanted:
    """A request in the records of HF."""

    template: str
    count: int
    asked: float
    """World time of the request."""
    polled: float
    """World time of the last poll, or of the request."""
    reported: str | None = None
    """The terminal answer that HF has read."""
    listed: set[str] = field(default_factory=set)
    """Machines that any answer has named."""


class Simulation:
    """The world, HF and the loop. A test, or a random search, calls the methods in any order."""

    expected: tuple[str, ...] = EXPECTED

    def __init__(
        self,
        seed: int = 0,
        limits: Limits = LIMITS,
        spec: MigSpec = SPEC,
        timings: Timings = TIMINGS,
        store: type[Store] = FileStore,
    ) -> None:
        self.limits = limits
        self.world = World(seed=seed)
        self.fuse = Fuse()
        self.skew = 0.0
        self.alters = False
        """True while pods are made otherwise than requested."""
        self.strayed: set[str] = set()
        """Instances that were taken out of their group, so that only an operator deletes them."""
        self.slow: set[str] = set()
        self.cluster = Cluster(self.world, ["ns-alpha", "ns-gamma"])
        self.groups = Groups(self.world, [spec], timings)
        self.mig = self.groups.mig("p", "zones/r1-a", "mig-beta")
        self.lines = {pool: Line() for pool in limits.pools}
        self.backends = {
            "alpha": WatchedGke("alpha", self.cluster, "ns-alpha", provisioner=PROVISIONER, line=self.lines["alpha"]),
            "beta": WatchedMig("beta", self.groups, self.mig, prefix=PREFIX, line=self.lines["beta"]),
            "gamma": WatchedGke("gamma", self.cluster, "ns-gamma", provisioner=PROVISIONER, line=self.lines["gamma"]),
        }
        for backend in self.backends.values():
            backend.sim = self
        self._numbers = itertools.count(1)
        self.store = store(self.world, PROVISIONER, self._numbers)
        self.hf = self.store.hf
        self.requests: dict[str, Wanted] = {}
        self.returned: dict[str, str] = {}
        """Names that HF returned, with the return request's id."""
        self.returns: dict[str, str | None] = {}
        """Return requests, with the terminal answer that HF has read."""
        self.judge = Judge(self)
        self.ghosts: list[Life] = []
        self.notices = Notices()
        self.observations: dict[str, Observation] = {}
        self.due = 0.0
        self.copies: dict[str, bytes] = {}
        """Backups of state files, by kind."""
        self.life = self._live()

    def close(self) -> None:
        """Remove the files."""
        self.store.close()

    # --- the loop -------------------------------------------------------------------------------------------------

    def _live(self) -> Life:
        """Start a new process of the loop on the same state, with a new epoch."""
        state = self.store.open(self.fuse.burn)
        lock = state.loop_lock
        assert lock.acquire(0)
        epoch = lock.raise_epoch()
        lock.release()

        def check() -> None:
            if lock.epoch() != epoch:
                raise SupersededError(f"epoch {lock.epoch()} stands there, not {epoch}")

        clock = VirtualClock(self.world, lambda: self.skew, self.memory())
        actors = SimulationActors(self)
        reconciler = Reconciler(
            clock=clock,
            state=state,
            actors=actors,
            limits=self.limits,
            provisioner=PROVISIONER,
            mandate=Mandate(epoch, check),
        )
        self._guard(state)
        return Life(reconciler, actors, state, clock)

    def _guard(self, state: State) -> None:
        """Count a step of the fuse before and after each write, so that the loop can end there."""
        for write in WRITES:
            store, _, method = write.partition(".")
            part = getattr(state, store)
            setattr(part, method, self.fuse.around(getattr(part, method), write))

    def memory(self) -> Memory | None:
        """Return the content of memory.json."""
        try:
            return self.hf.memory.read()
        except (StateMissing, StateUnreadable):
            return None

    def restart(self) -> None:
        """End the process and begin another."""
        self.fuse.put_out()
        before = self.life.clock.now()
        self.life = self._live()
        self.judge.gained += max(0.0, self.life.clock.now() - before)

    def take_over(self) -> None:
        """Let a second process become the loop. The first process runs on, and does not notice this."""
        self.ghosts = [*self.ghosts, self.life][-2:]
        self.restart()

    def ghost_cycle(self) -> None:
        """Run a cycle of each superseded loop. It must neither write nor act, whatever it plans."""
        for ghost in self.ghosts:
            before = self.store.marks()
            self.judge.superseded = True
            try:
                ghost.reconciler.cycle(self._observe(ghost))
            except SupersededError:
                pass
            finally:
                self.judge.superseded = False
            assert self.store.marks() == before, "a superseded loop wrote"

    def cycle(self, *, blind: Collection[str] = (), late: Collection[str] = ()) -> None:
        """Run a cycle. ``blind`` pools cannot be seen; ``late`` pools have only an old snapshot."""
        observations = self._observe(self.life, blind, late)
        self.observations = observations
        self.judge.begin_cycle(observations, self.life.clock.now())
        report: CycleReport | None = None
        try:
            report = self.life.reconciler.cycle(observations)
        except Crash:
            self.restart()
        self.fuse.put_out()
        self.judge.raise_errors()
        if report is not None:
            assert not report.problem or any(words in report.problem for words in self.expected), report.problem
            if report.plan is not None:
                self.due = report.plan.due_at
        self.judge.after_cycle(None if report is None or report.problem else report)

    def _observe(self, life: Life, blind: Collection[str] = (), late: Collection[str] = ()) -> dict[str, Observation]:
        now, sought = life.clock.now(), life.reconciler.sought()
        observations: dict[str, Observation] = {}
        for pool, backend in self.backends.items():
            backend.line.blind = BLIND if pool in blind else None
            before = self.observations.get(pool)
            if pool in late and before is not None:
                observations[pool] = before
                continue
            try:
                names = sought.get(pool, {})
                seen = replace(backend.observe(now, names), asked=frozenset(names), wall=self.world.wall())
                observations[pool] = self.notices.add_to(seen, self.limits.pools[pool].lag_seconds)
            except BackendError as error:
                observations[pool] = ObservationFailed(pool, now, error.failure)
        return observations

    # --- time and trouble -----------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time pass without an observation."""
        self.world.advance(self.world.now + seconds)
        self.judge.check_cloud()

    def run(self, seconds: float, cycles: int) -> None:
        """Let time pass, with this number of cycles at equal distances."""
        for _ in range(cycles):
            self.advance(seconds / cycles)
            self.cycle()

    def machines(self) -> dict[str, TrueMachine]:
        """Return every machine of ours that truly exists, by name."""
        return machines_of(self)

    def preempt(self, names: Iterable[str]) -> None:
        """Let the place preempt machines."""
        chosen = list(names)
        self.judge.disturbed |= set(chosen)
        self.cluster.preempt(chosen)
        self.groups.preempt(chosen)
        self.judge.check_cloud()

    def vanish(self, name: str) -> None:
        """Delete a machine outside the loop."""
        self.judge.disturbed.add(name)
        for pod in self.cluster.pods.select("", lambda pod: pod.name == name):
            self.cluster.delete(pod, 0)
        for vm in self.groups.vms.named(name):
            self.groups.vms.delete(vm)
        self.judge.check_cloud()

    def alter(self, changes: Mapping[str, Any] | None) -> None:
        """Let an admission policy change each new pod, as the fault ``altered`` defines; None removes the policy."""
        self.alters = changes is not None
        self.world.set_faults([Fault("altered", params=dict(changes))] if changes is not None else [])

    def unlabel(self, name: str, labels: Collection[str]) -> None:
        """Remove these labels from a pod, or take an instance out of its group."""
        self.judge.disturbed.add(name)
        member = self.mig.members.get(name)
        if member is not None and member.action == "NONE":
            self.mig.abandon([f"zones/{member.zone}/instances/{name}"])
            self.strayed.add(name)
        for pod in self.cluster.pods.select("", lambda pod: pod.name == name):
            kept = {key: value for key, value in pod.labels.items() if key not in labels}
            metadata = {**pod.document["metadata"], "labels": kept}
            self.cluster.update(pod, {**pod.document, "metadata": metadata}, status_only=False)
        self.judge.check_cloud()

    def recreate(self, name: str) -> None:
        """Replace a machine by another machine of the same name."""
        self.judge.disturbed.add(name)
        member = self.mig.members.get(name)
        if member is not None and member.action == "NONE":
            self.mig.recreate([f"zones/{member.zone}/instances/{name}"])
        for pod in self.cluster.pods.select("", lambda pod: pod.name == name):
            self.cluster.delete(pod, 0)
            with suppress(ApiError):
                metadata = {"name": name, "labels": pod.labels}
                self.cluster.create(pod.namespace, {"metadata": metadata, "spec": pod.document["spec"]})
        self.judge.check_cloud()

    def lose_node(self, name: str) -> None:
        """Remove a node with every pod on it."""
        node = self.cluster.stores["nodes"].get("", name)
        if node is not None:
            pods = self.cluster.pods.select("", lambda pod: pod.document["spec"].get("nodeName") == name)
            self.judge.disturbed |= {pod.name for pod in pods}
            self.judge.foreigners -= self.judge.disturbed
            self.cluster.fail_node(node)
        self.judge.check_cloud()

    def pause(self, pool: str, *, paused: bool = True) -> None:
        """Pause or resume a pool by a change of the configuration, while the loop runs."""
        changed = replace(self.limits.pools[pool], is_paused=paused)
        self.limits = replace(self.limits, pools={**self.limits.pools, pool: changed})
        self.life.reconciler.limits = self.limits

    def set_hold(self, kind: HoldKind, target: str = "") -> None:
        """Set a hold as an operator."""
        self.hf.holds.change(lambda holds: with_hold(holds, Hold(kind, target, "ann", reason="a simulation")))

    def release_holds(self) -> None:
        """Release all holds as an operator, except cancels."""
        for hold in self.hf.holds.read().current:
            self.hf.holds.change(lambda holds, by=hold: without_holds(holds, {by.kind} - {HoldKind.CANCEL}, by))  # type: ignore[misc]

    def recover(self) -> None:
        """Run `provisioner recover --apply --release-brake` as an operator."""
        try:
            files = intent_recovery.read_files(self.hf)
        except StateMissing:  # no state is left: `provisioner init`
            self.store.init()
            return
        observations = self._observe(self.life)
        if all(isinstance(observation, Snapshot) for observation in observations.values()):
            names = [
                name
                for observation in observations.values()
                if isinstance(observation, Snapshot)
                for name in observation.machines
            ]
            plan = intent_recovery.plan_recovery(files, names, PREFIX, PROVISIONER)
            intent_recovery.apply_recovery(self.hf, plan)
            if plan.releases(applied=True):
                self.hf.ask_release()
            self.judge.too_many = False
            self.judge.accepted = set(self.judge.orphans)

    def keep_copies(self) -> None:
        """Make a backup."""
        for kind in ("intent", "memory", "status"):
            with suppress(FileNotFoundError), open(os.path.join(self.store.directory, f"{kind}.json"), "rb") as file:
                self.copies[kind] = file.read()

    def lose(
        self, kinds: Collection[str], *, put_back: bool = False, cut: bool = False, restarted: bool = True
    ) -> None:
        """Lose or cut state files, or replace them by old copies. If ``restarted``, the loop is restarted
        afterwards."""
        if isinstance(self.store, KubeStore):
            kinds = [kind for kind in kinds if self.store.lose(kind)]
        self.judge.note_lost_files(kinds)
        for kind in kinds if isinstance(self.store, FileStore) else ():
            path = os.path.join(self.store.directory, f"{kind}.json")
            if cut and os.path.exists(path):
                os.truncate(path, os.path.getsize(path) // 2)
                continue
            with suppress(FileNotFoundError):
                os.unlink(path)
            if put_back and kind in self.copies:
                with open(path, "wb") as file:
                    file.write(self.copies[kind])
        if restarted:
            self.restart()

    def wipe(self, *, survivors: Collection[str] = (), put_back: Collection[str] = ()) -> None:
        """Lose all of the state directory except ``survivors`` while no loop runs. Then restore the copies of the files
        in ``put_back``.

        The lock files, which would prove the age of the copies, are not restored.
        """
        self.judge.note_lost_files(["intent", "memory", "status"])
        self.judge.wiped = True
        self.ghosts = []  # the order of two loops is unknown once their epochs are counted anew
        if isinstance(self.store, KubeStore):
            self.store.wipe()
            self.hf = self.store.hf
            self.request("pods", 1)  # which begins a state, as `provisioner init` does with files
        for path in Path(self.store.directory).iterdir() if isinstance(self.store, FileStore) else ():
            if path.name not in survivors:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for kind in put_back:
            Path(self.store.directory, f"{kind}.json").write_bytes(self.copies[kind])
        self.copies.clear()  # with the lock files made from now on, these copies would seem new
        self.restart()

    def add_orphans(self, request: str, count: int) -> None:
        """Let machines appear that carry our identity and belong to no request."""
        for number in range(count):
            create = Create(f"{PREFIX}-{request}-{number:06d}", "alpha", "pods", request)
            if DirectGke._create(self.backends["alpha"], create) is None:
                self.judge.orphans[create.name] = self.world.now
        self.judge.check_cloud()

    def add_foreigner(self, name: str) -> None:
        """Let a pod of another user appear in our namespace."""
        spec = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example/image:1"}]}
        with suppress(ApiError):
            self.cluster.create("ns-alpha", {"metadata": {"name": name, "labels": {"app": "other"}}, "spec": spec})
            self.judge.foreigners.add(name)

    # --- HostFactory ----------------------------------------------------------------------------------------------

    def request(self, template: str, count: int) -> None:
        """Call requestMachines."""
        with suppress(*REFUSED):
            with self._numbered_ids():
                asked = self.world.wall() + self.skew
                state = self.store.script()
                id_ = state.record_request(PROVISIONER, template, count, created_wall=asked, rc_account="").id
            self.requests[id_] = Wanted(template, count, self.world.now, self.world.now)

    def poll(self, id_: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Call getRequestStatus for a request or a return request, with the script's own code.

        The script calls ``meanwhile`` between reading a terminal answer and settling it.
        """
        tell = SettledAnswers.settle_reported

        def slowly(reported: SettledAnswers, name: str, text: str) -> str:
            meanwhile()
            return tell(reported, name, text)

        try:
            with patch.object(SettledAnswers, "settle_reported", slowly):
                printed = self._call(commands.get_request_status, {"requests": [{"requestId": id_}]})
        except REFUSED:
            return
        finally:
            self._polled(id_)
        text = printed.removeprefix('{"requests": [').removesuffix("]}")
        entry = json.loads(text)
        if entry["message"] == commands.UNKNOWN_MESSAGE:
            self.judge.note_unknown(id_)
        else:
            self.judge.note_answer(id_, Answer(text, entry["status"] != RequestStatus.RUNNING))

    def _polled(self, id_: str) -> None:
        if id_ in self.requests:
            self.requests[id_].polled = self.world.now
        self.store.polled(id_)

    def poll_all(self, *left_out: str) -> None:
        """Call getRequestStatus for all requests and return requests except these."""
        for id_ in [*self.requests, *self.returns]:
            if id_ not in left_out:
                self.poll(id_)

    def return_all(self) -> None:
        """Return every host that HF has."""
        hosts = sorted(self.judge.hosts())
        if hosts:
            self.return_machines(hosts)

    def return_machines(self, names: Iterable[str]) -> None:
        """Call requestReturnMachines."""
        chosen = list(dict.fromkeys(names))
        with suppress(*REFUSED):
            with self._numbered_ids():
                given = self.world.wall() + self.skew
                id_ = self.store.script().record_return(PROVISIONER, chosen, created_wall=given).id
            self.returns[id_] = None
            self.judge.note_returned(id_, chosen)
            self.returned |= dict.fromkeys(chosen, id_)

    def list_hosts(self) -> None:
        """Call getReturnRequests with all hosts that HF believes it has. Then HF returns the machines that the script
        printed."""
        hosts = sorted(self.judge.hosts())
        try:
            printed = self._call(commands.get_return_requests, {"machines": [{"name": name} for name in hosts]})
        except REFUSED:
            return
        self.store.listed()
        reported = [entry["machine"] for entry in json.loads(printed)["requests"]]
        self.judge.check_reported_lost(reported)
        if reported:
            self.return_machines(reported)

    def _call(self, command: Callable[[ScriptCall], str], document: dict[str, object]) -> str:
        """Run the code of a script, and return the script's output. If the script would exit with 1, raise one of the
        errors in REFUSED."""
        environment = {"HF_PROVIDER_NAME": PROVISIONER, "HF_PROVIDER_WORKDIR": self.store.directory}
        read = Document("the simulation", json.dumps(document).encode())
        return command(ScriptCall(read, Directories(environment), {}, self.store.script))

    def _numbered_ids(self) -> AbstractContextManager[object]:
        """Return a context in which ids count up, so that a simulation can be repeated."""
        return patch.object(new_ids, "new_id", lambda: f"r{next(self._numbers):09d}")

    # --- the end --------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """End all faults, and check that all requests then end and only wanted machines are left."""
        self.slow.clear()
        self.life.actors.release()
        self.world.set_faults([])
        for pool in self.limits.pools:
            self.pause(pool, paused=False)
        self.release_holds()
        for line in self.lines.values():
            line.mishaps.clear()
            line.lag = 0.0
        self.list_hosts()
        self.cycle()
        self.recover()
        began = self.life.clock.now()
        patience = (
            self.limits.request_deadline_seconds
            + self.limits.return_deadline_seconds
            + self.limits.orphans.grace_seconds
            + 3600.0
        )
        self.poll_all()
        while self.life.clock.now() < began + patience:
            self._call_now_and_then()
            self.cycle()
            self.judge.check_deadlines()
            if not self.judge.find_unsettled():
                break
            self.advance(min(max(self.due - self.life.clock.now(), 1.0), 30.0))
        self.judge.check_end()

    def _call_now_and_then(self) -> None:
        """Let HF call only as often as it has to, because no automatic step may depend on frequent calls."""
        reported = {id_: wanted.reported for id_, wanted in self.requests.items()} | self.returns
        for id_, answer in self.hf.status.read_all().items() if self.hf.status.exists() else ():
            if answer.ended and reported.get(id_, "") is None:
                self.poll(id_)
        for id_, wanted in self.requests.items():
            if wanted.reported is None and self.world.now - wanted.polled > self.limits.cancel_after_seconds / 3:
                self.poll(id_)
        if self.judge.hosts() - self.machines().keys():
            self.list_hosts()
