"""The resources that a loop's process needs: processor time, memory, and calls to the clouds, which the clouds count.

HostFactory, the loop and the embedded cloud are processes. They communicate only by HTTP or by scripts. The
configuration has groups and namespaces, so that the clients of both kinds are loaded. Only one kind makes machines.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from provisioner.hostfactory import MAX_NUMBER
from provisioner.hostfactory.script_calls import HostFactory
from tests.bench import bench_gce
from tests.support.hostfactory.sites import SPEC, Site, template
from tests.support.processes import cpu_seconds, mebibytes
from tests.support.waiting import until

EACH = -(-bench_gce.MACHINES // bench_gce.GROUPS)
"""Number of machines in a group. Google allows a thousand in a zonal group."""

TEN, MINUTE, HOUR = 10.0, 60.0, 3600.0
PATIENCE, SETTLED = 1800.0, 5.0
SAMPLE_SECONDS = 1.0
KUBERNETES = re.compile(r"(pods|nodes|events|namespaces|selfsubjectaccessreviews)\.")
"""Methods that are calls of the Kubernetes API, and not of Compute Engine."""


class Pace(NamedTuple):
    """The durations that a run uses, in seconds."""

    boot: float
    """Seconds until an instance runs."""
    lag: float
    """``lag_seconds`` of the groups. For this time after a change, the loop lists also the group's members."""
    quiet: float
    """Seconds without changes that are measured. The calls are converted to a minute."""


REAL = Pace(boot=45.0, lag=30.0, quiet=60.0)


class Use(NamedTuple):
    """The resources that a loop used after its start."""

    quiet_cpu: float
    """Processor seconds of an hour in which nothing changes."""
    churn_cpu: float
    """Processor seconds of an hour in which all machines are also made and returned."""
    processors: float
    """Number of processors that are busy in the ten seconds with the most work."""
    mebibytes: float
    """The peak memory."""
    quiet_calls: float
    """Calls to Compute in a minute in which nothing changes."""
    most_calls: float
    """Calls to Compute in the minute with the most calls, while machines are created and returned."""
    pod_calls: int
    """Number of creates and deletes of pods in the whole run."""


class Sample(NamedTuple):
    """The resources that a loop has used from its start to the time ``at``."""

    at: float
    cpu: float
    compute: int
    pods: int


class Meter:
    """Samples of the loop's processor time and of the clouds' counts of calls."""

    def __init__(self, pid: int, cloud: bench_gce.Cloud) -> None:
        self.pid, self._cloud = pid, cloud
        self.samples = [self.sample()]

    def sample(self) -> Sample:
        """Return a sample of the resources that were used until now."""
        calls = self._cloud.calls()
        compute = sum(number for method, number in calls.items() if not KUBERNETES.match(method))
        return Sample(time.monotonic(), cpu_seconds(self.pid), compute, calls["pods.create"] + calls["pods.delete"])

    def note(self) -> Sample:
        """Take a sample of the resources that were used until now. Keep the sample and return it."""
        self.samples.append(self.sample())
        return self.samples[-1]

    def most(self, seconds: float, value: Callable[[Sample], float]) -> float:
        """Return the largest growth of a value between two samples. They are at most ``seconds``, plus the interval of
        one sample, apart."""
        return max(
            value(later) - value(earlier)
            for earlier in self.samples
            for later in self.samples
            if earlier.at <= later.at <= earlier.at + seconds + SAMPLE_SECONDS
        )


def parts(machines: int) -> list[int]:
    """Return the number of machines of each template. HF requests at most 10,000 machines of one template."""
    return [min(MAX_NUMBER, machines - first) for first in range(0, machines, MAX_NUMBER)]


def site(directory: Path, machines: int, lag: float) -> Site:
    """Return a site whose templates together allow ``machines`` machines as instances of groups, and as many as pods.
    No template allows more than HF may request of it, so there may be several templates of each kind."""
    directory.mkdir()
    (directory / "spec.yaml").write_text(SPEC)
    pools: dict[str, Mapping[str, object]] = {}
    templates = []
    groups = iter(bench_gce.pools(None, sum(-(-part // EACH) for part in parts(machines))).values())
    for number, part in enumerate(parts(machines)):
        size = {"max_pending": part, "initial_window": part}
        chosen = [next(groups) for _ in range(-(-part // EACH))]
        for group in chosen:
            place = {"zone": group.zone} if group.zone else {"region": group.region}
            made_in = {"project": group.project, "group": group.group, **place}
            pools[group.name] = {
                "kind": "mig", "max_machines": EACH, "lag_seconds": lag, **made_in, **size
            }  # fmt: skip
        gke = {"kind": "gke", "namespace": f"grid-{number}", "pod_spec": "spec.yaml", "kubeconfig": "kubeconfig"}
        pools[f"gke-{number}"] = {**gke, **size}
        templates += [
            template(f"groups-{number}", maxNumber=part, pools=[group.name for group in chosen]),
            template(f"pods-{number}", maxNumber=part, pools=[f"gke-{number}"]),
        ]
    made = Site(directory, settings={"id": "bench", "pools": pools}, templates=templates)
    made.write()
    return made


@contextmanager
def loop(directory: Path, compute: str) -> Iterator[tuple[int, HostFactory]]:
    """Yield the process id of a running loop, and its HostFactory."""
    places = {name: directory / name.lower() for name in ("CONF", "WORK", "LOG")}
    environment = {"HF_PROVIDER_NAME": "t", "HF_PYTHON": sys.executable}
    for name, place in places.items():
        place.mkdir(exist_ok=True)
        environment[f"HF_PROVIDER_{name}DIR"] = str(place)
    with (places["LOG"] / "loop.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "provisioner", "run", "--listen", "127.0.0.1:0"],
            env={**os.environ, **environment, "PROVISIONER_COMPUTE_ENDPOINT": compute},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            until((places["WORK"] / "heartbeat").exists, MINUTE, what="the loop begins")
            yield process.pid, HostFactory(environment)
        finally:
            process.terminate()
            process.wait(MINUTE)


def used(machines: int, kind: str) -> Use:
    """Measure the resources that the loop uses while HostFactory requests ``machines`` machines, keeps them for some
    time, and returns them all. ``kind``: "groups" or "pods"."""
    with tempfile.TemporaryDirectory() as name:
        made = site(Path(name, "conf"), machines, REAL.lag)
        with bench_gce.cloud(made, REAL.boot) as cloud, loop(Path(name), cloud.compute) as (pid, hf):
            meter = Meter(pid, cloud)
            start = meter.note()
            ids = [hf.request(f"{kind}-{number}", part) for number, part in enumerate(parts(machines))]
            _complete(hf, ids, meter)
            names = [machine["name"] for id_ in ids for machine in hf.status(id_)["machines"]]
            assert len(names) == machines
            filled = meter.note()

            time.sleep(REAL.lag + SETTLED)
            before = meter.note()
            time.sleep(REAL.quiet)
            after = meter.note()

            returns = [names[first : first + MAX_NUMBER] for first in range(0, machines, MAX_NUMBER)]
            _complete(hf, [hf.return_machines(some) for some in returns], meter)
            ended = meter.note()
            burst = filled.cpu - start.cpu + ended.cpu - after.cpu
            quiet = (after.cpu - before.cpu) / REAL.quiet * HOUR
            return Use(
                quiet,
                quiet + burst,
                meter.most(TEN, lambda sample: sample.cpu) / TEN,
                mebibytes(pid, "VmHWM"),
                (after.compute - before.compute) / REAL.quiet * MINUTE,
                meter.most(MINUTE, lambda sample: sample.compute),
                ended.pods - start.pods,
            )


def _complete(hf: HostFactory, ids: Sequence[str], meter: Meter) -> None:
    """Wait until all these requests are reported to HostFactory as complete."""

    def are_complete() -> bool:
        meter.note()
        answers = {hf.status(id_)["status"] for id_ in ids}
        assert answers <= {"running", "complete"}, answers
        return answers == {"complete"}

    until(are_complete, PATIENCE, every=SAMPLE_SECONDS, what="the end of all requests")
