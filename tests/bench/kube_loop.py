"""The cost of the loop on a real cluster, and the seconds until it reacts. The loop is a process of its own."""

from __future__ import annotations

import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.server import Simulator
from provisioner.lab.cloud.world import Fault
from tests.kube.cluster import NODE_CAPACITY, NODES, Cluster
from tests.kube.kubelets import LABEL
from tests.kube.provider_instance import POD, TEMPLATE, Grid
from tests.kube.proxy import Proxy
from tests.kube.space import Space
from tests.support.clouds.specs import advised
from tests.support.processes import cpu_seconds, mebibytes
from tests.support.waiting import until

PACE = {"interval_seconds": 5, "floor_seconds": 0.5}
"""The loop's own defaults."""
QUIET_SECONDS = 30.0
SETTLE_SECONDS = 60.0
"""Seconds until the cluster has sent all events of the last pod."""
MIG_SECONDS = 20.0
MIG = advised(project="demo", name="slow", zone="us-central1-a")
SLOW = "slow"

Say = Callable[[str], None]


class Quiet(NamedTuple):
    """A loop that holds machines and has nothing to do."""

    milliseconds: float
    """Processor time from one cycle to the next, including all other work of the process."""
    lists: float
    """List calls."""
    megabytes: float
    most_megabytes: float


class Reaction(NamedTuple):
    """The seconds until the loop reacts: one number for each try."""

    create: list[float]
    """Seconds from the end of requestMachines.sh to the response to the first create call."""
    reported: list[float]
    """Seconds from the pod being ready to getRequestStatus reporting it."""


def p95(seconds: list[float]) -> float:
    """Return the 95th percentile."""
    return statistics.quantiles(seconds, n=20, method="inclusive")[-1]


@contextmanager
def grid_of(space: Space, **options: Any) -> Iterator[Grid]:
    """Yield a provider instance whose loop runs. Its temporary directory is deleted afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        settings = {"loop": PACE, **options.pop("settings", {})}
        with Grid(Path(directory) / "grid", space, settings=settings, **options) as grid:
            yield grid.start()


# --- holding ----------------------------------------------------------------------------------------------------------


def hold(cluster: Cluster, pods: int, say: Say) -> Quiet:
    """Let the loop create ``pods`` pods. When all of them run and the loop is quiet, measure the loop."""
    for number in range(NODES, 1 + pods // int(NODE_CAPACITY["pods"]) + NODES):
        cluster.add_node(f"node-{number}")
    sizes = {"max_pending": pods, "initial_window": pods, "boot_deadline_seconds": 3600}
    with Space(cluster.admin) as space, grid_of(space, pool=sizes) as grid:
        _run_all(grid, grid.hf.request(TEMPLATE, pods), pods, say)
        _until_still(grid.pid, say)
        used, lists = cpu_seconds(grid.pid), _lists(cluster)
        time.sleep(QUIET_SECONDS)
        cycles = QUIET_SECONDS / PACE["interval_seconds"]
        return Quiet(
            1000 * (cpu_seconds(grid.pid) - used) / cycles,
            _lists(cluster) - lists,
            mebibytes(grid.pid, "VmRSS"),
            mebibytes(grid.pid, "VmHWM"),
        )


def _run_all(grid: Grid, id_: str, pods: int, say: Say) -> None:
    """Wait until the request is complete. Print a line every ten seconds."""
    began = reported_at = time.monotonic()
    while (answer := grid.hf.status(id_))["status"] == "running":
        if time.monotonic() - reported_at > 10:
            reported_at = time.monotonic()
            running = sum(machine["result"] == "succeed" for machine in answer["machines"])
            say(f"{running:,} of {pods:,} pods run after {reported_at - began:.0f} s")
        time.sleep(1)
    assert answer["status"] == "complete", answer["message"]
    say(f"{pods:,} pods run after {time.monotonic() - began:.0f} s")


def _until_still(pid: int, say: Say) -> None:
    """Wait until the loop needs less than 0.1 s of CPU from one cycle to the next. Until then it still processes events
    of the new pods."""
    say("waiting until the last events have come")
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        before = cpu_seconds(pid)
        time.sleep(PACE["interval_seconds"])
        if cpu_seconds(pid) - before < 0.1:
            return


def _lists(cluster: Cluster) -> float:
    """Return how often the API server has listed the pods of a namespace, by page or at the start of a watch.

    While the loop is measured, only the loop makes such lists.
    """
    text = cluster.admin.text("/metrics")
    pages = _count(text, "apiserver_request_total", 'verb="LIST"')
    return pages + _count(text, "apiserver_watch_list_duration_seconds_count")


def _count(text: str, metric: str, *labels: str) -> float:
    """Return the sum of a metric over all its series with these labels. Count only series for pods of one namespace."""
    series = re.findall(rf"^{metric}\{{([^}}]*)\}} (\S+)$", text, re.MULTILINE)
    asked = ('resource="pods"', 'scope="namespace"', *labels)
    return sum(float(count) for given, count in series if all(label in given for label in asked))


# --- reacting ---------------------------------------------------------------------------------------------------------


def react(cluster: Cluster, tries: int, say: Say, *, beside_a_slow_mig: bool = False) -> Reaction:
    """Request one machine from an idle loop, ``tries`` times. The benchmark itself marks each pod as ready."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {LABEL: "never-ready"}}, "spec": POD}
    with Simulator(
        migs=[MIG], conditions=Conditions.of(faults=[Fault("hang", params={"seconds": MIG_SECONDS})])
    ) as simulator:
        others = {SLOW: _slow_pool(simulator)} if beside_a_slow_mig else {}
        with (
            Space(cluster.admin) as space,
            Proxy(space.admin.server, space.admin.ca) as proxy,
            grid_of(space, proxy=proxy, pod=pod, others=others) as grid,
        ):
            if others:
                grid.hf.request(SLOW, 1)
            tried = [_one(grid, space, proxy) for _ in _counted(tries, say)]
    return Reaction([create for create, _ in tried], [reported for _, reported in tried])


def _slow_pool(simulator: Simulator) -> Mapping[str, Any]:
    place = {"project": MIG.project, "zone": MIG.zone, "group": MIG.name}
    return {"kind": "mig", **place, "endpoint": simulator.compute}


def _counted(tries: int, say: Say) -> Iterator[int]:
    for number in range(tries):
        if number % 10 == 0:
            say(f"{number} of {tries} tries")
        # At any moment between two cycles, and after the last one's work.
        time.sleep(random.uniform(1.0, 1.0 + PACE["interval_seconds"]))
        yield number


def _one(grid: Grid, space: Space, proxy: Proxy) -> tuple[float, float]:
    before = len(proxy.creates())
    id_ = grid.hf.request(TEMPLATE, 1)
    asked = time.monotonic()
    until(lambda: len(proxy.creates()) > before, 30, every=0.005, what="the first create call")
    created = proxy.creates()[before].at
    name = until(lambda: _unready(space, id_), 30, every=0.05, what="the pod runs")
    path = f"{space.pods_path}/{name}/status"
    conditions = space.pod(name)["status"]["conditions"]
    ready = [{**one, "status": "True"} if one["type"] in ("Ready", "ContainersReady") else one for one in conditions]
    space.admin.patch(path, {"status": {"conditions": ready}})
    patched = time.monotonic()
    until(lambda: grid.hf.status(id_)["status"] != "running", 30, every=0.0, what="getRequestStatus says so")
    return max(0.0, created - asked), time.monotonic() - patched


def _unready(space: Space, id_: str) -> str:
    """Return the name of the request's pod if the pod was started. It is not ready yet, because only this benchmark
    marks pods as ready. Return an empty text if the pod was not started yet."""
    for pod in space.pods():
        if f"-{id_}-" in pod["metadata"]["name"] and pod["status"].get("podIP"):
            return str(pod["metadata"]["name"])
    return ""
