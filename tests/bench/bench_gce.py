"""The cost of managed instance groups: calls to Compute, CPU per observation, and memory.

Goals for 10,000 instances in 12 groups, if each group is listed at least every 30 s:

* at most 0.01 calls for each created machine, and 300 calls a minute without changes;
* 0.3 s of CPU for an observation of all groups;
* 300 MB with both backends loaded.

Exits 1 if a goal is missed. The cloud is a simulator process, in real time. ``python -m tests.bench.bench_gce``
"""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests
import yaml
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1
from rich.console import Console
from rich.table import Table

from provisioner.backends.mig.backend import MigBackend
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.mig.shared_lists import Projects
from provisioner.backends.registry import make_backends
from provisioner.loop.clock import LoopClock
from provisioner.loop.observers import Observer
from provisioner.model import Create, Outcome, Phase, Snapshot
from provisioner.names import machine_name
from provisioner.schema.setting_types import Site as Owner
from tests.support.hostfactory.sites import Site, template

ROOT = Path(__file__).parent.parent.parent
MACHINES = 10_000
GROUPS = 12
ZONES = ("a", "b", "c")
REGIONAL = 4
"""The number of groups for each regional group; the other groups are zonal."""

CALLS_PER_MACHINE, CALLS_PER_MINUTE, UNSEEN_SECONDS, OBSERVE_SECONDS, MEGABYTES = 0.01, 300, 30.0, 0.3, 300
QUICK = {"call": 0, "operation": 0.5, "schedule": 0.5, "inserts_per_second": 0, "boot": 3, "delete": 1, "leave": 1}
QUICK_PODS = {"schedule": 0.5, "start": 0.5, "ready": 0.5, "stop": 1, "confirm": 0.5}
BOOT_PATIENCE = 180.0
LISTS = ("instances.list", "instanceGroupManagers.list", "regionInstanceGroupManagers.list")
"""The calls of an observation of a group without changes."""


def pools(endpoint: str | None, groups: int = GROUPS) -> dict[str, MigPool]:
    """Return the pools of ``groups`` groups in one project. The last quarter of the groups is regional. The others are
    zonal, in three zones."""
    made = {}
    for number in range(groups):
        regional = number >= groups - groups // REGIONAL
        place = {"region": "us-east1"} if regional else {"zone": f"us-central1-{ZONES[number % len(ZONES)]}"}
        name = f"mig-{number:02d}"
        made[name] = MigPool(name=name, project="demo-project", group=name, endpoint=endpoint, **place)
    return made


def site(directory: Path, endpoint: str) -> Site:
    """Return a configuration with the groups of ``pools`` and one GKE pool."""
    (directory / "spec.yaml").write_text("containers: [{name: main, image: example.com/main}]\n")
    bodies: dict[str, dict[str, object]] = {
        name: {"kind": "mig", "project": pool.project, "group": pool.group}
        | {key: value for key in ("zone", "region", "endpoint") if (value := getattr(pool, key))}
        for name, pool in pools(endpoint).items()
    }
    bodies["gke"] = {"kind": "gke", "namespace": "grid", "pod_spec": "spec.yaml", "kubeconfig": "kubeconfig"}
    made = Site(directory, settings={"id": "bench", "pools": bodies}, templates=[template("T", pools=list(bodies))])
    made.write()
    return made


@dataclass
class Cloud:
    """A process of the embedded cloud. ``compute``, ``control``: the addresses of its APIs."""

    compute: str
    control: str

    def calls(self) -> Counter[str]:
        """Return the number of API calls by method, since the cloud started."""
        return Counter(requests.get(f"{self.control}state", timeout=60).json()["calls"])


@contextmanager
def cloud(made: Site, boot: float = QUICK["boot"]) -> Iterator[Cloud]:
    """Yield an embedded cloud with the groups of the configuration."""
    faults, kubeconfig = made.directory / "faults.yaml", str(made.directory / "kubeconfig")
    faults.write_text(yaml.safe_dump({"timings": {"mig": QUICK | {"boot": boot}, "gke": QUICK_PODS}}))
    words = [sys.executable, "-m", "provisioner", "--log-level", "ERROR", "simulator", "--config", str(made.path)]
    with subprocess.Popen(
        [*words, "--faults", str(faults), "--kubeconfig", kubeconfig], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        addresses = json.loads(process.stdout.readline())
        try:
            control = addresses["control"].rstrip("/") + "/"
            yield Cloud(addresses["compute"], control)
        finally:
            process.terminate()


def create_all(backends: Mapping[str, MigBackend]) -> list[Outcome]:
    """Create 10,000 machines, divided evenly among the groups, in one batch per group."""
    share = [MACHINES // GROUPS + (number < MACHINES % GROUPS) for number in range(GROUPS)]
    outcomes: list[list[Outcome]] = []

    def create(number: int, backend: MigBackend) -> None:
        request = f"bench{number:05d}"
        names = [machine_name("hf", request, slot) for slot in range(share[number])]
        creates = [Create(name, backend.pool, "T", request) for name in names]
        outcomes.append(backend.create(creates, lambda: True))

    threads = [threading.Thread(target=create, args=item) for item in enumerate(backends.values())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [outcome for some in outcomes for outcome in some]


def running(observers: Sequence[Observer]) -> int:
    """Return the number of machines that run according to the newest observations."""
    observations = [observer.latest({}) for observer in observers]
    snapshots = [observation for observation in observations if isinstance(observation, Snapshot)]
    return sum(machine.phase is Phase.RUNNING for observation in snapshots for machine in observation.machines.values())


@dataclass(frozen=True)
class Measured:
    """The results of a run."""

    caused: int
    """The number of calls that the creates caused: the creates themselves, calls about their operations, and lists of
    members."""
    burst: int
    """The number of all calls from the first create until every machine was seen running."""
    quiet: int
    """The number of all calls in a minute in which nothing changes."""
    unseen: float
    """The longest time in that minute between the starts of two observations of a group, in seconds."""


def traffic(cloud: Cloud, projects: Projects, made: Mapping[str, MigPool]) -> Measured:
    """Create all machines while observers list the groups, as the observers of the loop do. Then count the calls of a
    time without changes."""
    clock = LoopClock()
    backends = {name: MigBackend(pool, projects) for name, pool in made.items()}
    observers = [Observer(backend, clock, lambda: None) for backend in backends.values()]
    for observer in observers:
        observer.start()
    try:
        wait(lambda: all(isinstance(observer.latest({}), Snapshot) for observer in observers))
        before = cloud.calls()
        outcomes = create_all(backends)
        assert len(outcomes) == MACHINES
        assert not [outcome for outcome in outcomes if outcome.failure]
        wait(lambda: running(observers) == MACHINES)
        burst = cloud.calls() - before
        time.sleep(35.0)  # until what was asked of the groups can no longer be news to their lists
        before = cloud.calls()
        unseen = watch(observers, 60.0)
        quiet = cloud.calls() - before
    finally:
        for observer in observers:
            observer.stop()
    caused = sum(burst.values()) - sum(burst[name] for name in LISTS)
    return Measured(caused, sum(burst.values()), sum(quiet.values()), unseen)


def wait(done: Callable[[], bool]) -> None:
    """Wait until ``done()`` returns True. Raise TimeoutError if that takes too long."""
    deadline = time.monotonic() + BOOT_PATIENCE
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError("the cloud does not get there")
        time.sleep(0.2)


def watch(observers: Sequence[Observer], seconds: float) -> float:
    """Return the longest time between the starts of two successive observations by the same observer."""
    began = {observer: observer.latest({}).began for observer in observers}
    longest = 0.0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.2)
        for observer in observers:
            newest = observer.latest({}).began
            longest, began[observer] = max(longest, newest - began[observer]), newest
    return longest


def cpu_of_observations(projects: Projects, made: Mapping[str, MigPool]) -> float:
    """Return the CPU seconds of an observation of all groups when nothing changes. Take the least of five
    observations."""
    quick = {name: pool.model_copy(update={"lag_seconds": 0.0}) for name, pool in made.items()}
    backends = [MigBackend(pool, projects) for pool in quick.values()]
    taken = []
    for _ in range(6):
        gc.collect()
        began = time.process_time()
        seen = sum(len(backend._observer.observe(1.0, (), {}).machines) for backend in backends)
        taken.append(time.process_time() - began)
        assert seen == MACHINES
    return min(taken[1:])


def cpu_of_typed_client(endpoint: str) -> float:
    """Return the CPU seconds that Google's library google-cloud-compute needs to list the same instances."""
    options = ClientOptions(api_endpoint=endpoint.removesuffix("/").removesuffix("/compute/v1"))
    client = compute_v1.InstancesClient(credentials=AnonymousCredentials(), client_options=options)
    gc.collect()
    began = time.process_time()
    seen = 0
    for zone in [f"us-central1-{letter}" for letter in ZONES] + [f"us-east1-{letter}" for letter in ZONES]:
        request = compute_v1.ListInstancesRequest(project="demo-project", zone=zone, max_results=500)
        for instance in client.list(request=request, timeout=60):
            seen += bool(instance.network_interfaces[0].network_i_p and instance.status)
    assert seen == MACHINES
    return time.process_time() - began


def child(path: str) -> int:
    """Observe all groups in this process, with the same backends that a provisioner uses. Print the process's peak
    memory in MB."""
    from provisioner.commands.observe_pools import observe
    from provisioner.loop.loop import relax_collector
    from provisioner.settings.loader import load

    relax_collector()
    settings = load(Path(path), {})
    backends = make_backends(settings.pools, settings.site)
    for now in (1.0, 2.0):
        observations = observe(backends, now)
        seen = {name: len(one.machines) for name, one in observations.items() if isinstance(one, Snapshot)}
        assert len(seen) == GROUPS + 1
        assert sum(seen.values()) == MACHINES
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    return 0


def memory(directory: Path, cloud: Cloud) -> int:
    """Return the peak memory in MB of a process that observes all machines with both backends loaded."""
    made = site(directory, cloud.compute)
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_gce", "--child", str(made.path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return int(done.stdout)


def main() -> int:
    """Print the table, and return 1 if a goal is missed."""
    with tempfile.TemporaryDirectory() as name, cloud(site(Path(name), "http://127.0.0.1:1")) as here:
        projects, made = Projects(Owner("demo", "hf")), pools(here.compute)
        measured = traffic(here, projects, made)
        observations, typed = (
            cpu_of_observations(Projects(Owner("demo", "hf")), made),
            cpu_of_typed_client(here.compute),
        )
        peak = memory(Path(name), here)
    return report(
        [
            ("calls that creates cause, per machine", measured.caused / MACHINES, CALLS_PER_MACHINE, "{:.4f}"),
            ("all calls of the burst, per machine", measured.burst / MACHINES, None, "{:.4f}"),
            ("calls in a minute without changes", measured.quiet, CALLS_PER_MINUTE, "{:.0f}"),
            ("longest time between two observations (s)", measured.unseen, UNSEEN_SECONDS, "{:.1f}"),
            ("CPU of an observation at all machines (s)", observations, OBSERVE_SECONDS, "{:.3f}"),
            ("the same lists with the typed client (s)", typed, None, "{:.3f}"),
            ("peak memory with both backends (MB)", peak, MEGABYTES, "{:.0f}"),
        ]
    )


def report(rows: Sequence[tuple[str, float, float | None, str]]) -> int:
    """Print the table, and return 1 if a value is above its goal."""
    table = Table(title=f"{MACHINES:,} instances in {GROUPS} groups")
    for column in ("", "measured", "goal"):
        table.add_column(column, justify="left" if not column else "right")
    for what, value, goal, form in rows:
        missed = goal is not None and value > goal
        table.add_row(what, form.format(value), "" if goal is None else f"≤ {goal:g}", style="red" if missed else "")
    Console(width=100).print(table)
    return any(goal is not None and value > goal for _, value, goal, _ in rows)


if __name__ == "__main__":
    sys.exit(child(sys.argv[2]) if "--child" in sys.argv else main())
