"""Loops that share the pools of one HostFactory, with their state on one real Kubernetes API server.

    make bench-shards   or   python -m tests.bench.bench_shards [--only hold,shards,pods] [--shards 8] [--machines N]

Part ``hold``: one loop holds 10,000 machines of 100 requests, with its state in files or on the server. Goal: a quiet
loop with its state on the server needs at most twice the processor time that it needs with files.

Part ``shards``: first one loop serves its part of the machines alone, then all loops serve all machines. The machines
exist only in each loop's memory. Goal: all loops need at most 1.3 times the seconds of the one loop. The goal does not
count if there are fewer processors than loops.

Part ``pods``: as ``shards``, but with real pods and two loops, and without a goal. Exits 1 if machines are missing, or
if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml
from rich.console import Console
from rich.table import Table

from provisioner.hostfactory.script_calls import HostFactory
from provisioner.hostfactory.shards import SHARD_VARIABLE
from provisioner.hostfactory.templates import UNLIMITED
from provisioner.state.kube import objects
from tests.kube.build import BuildError, assets
from tests.kube.cluster import NODE_CAPACITY, NODES, Cluster, kubeconfig
from tests.kube.kit import define_state_kinds
from tests.kube.provider_instance import POD
from tests.support.manifests import ROOT
from tests.support.processes import cpu_seconds, mebibytes
from tests.support.waiting import until

INSTANCE = "bench"
GOAL, GOAL_QUIET = 1.3, 2.0
PARTS = ("hold", "shards", "pods")
PODS, POD_SHARDS = 10_000, 2
HELD, HELD_REQUESTS = 10_000, 100
"""The numbers of machines and of requests in the part ``hold``."""
SETTLE_SECONDS, QUIET_SECONDS = 20.0, 60.0
REQUEST = 10_000
"""Number of machines in a request, which is HF's maximum."""
PART_SECONDS = 1800.0
LOOP = (
    "import sys; from provisioner.backends import registry; from provisioner.commands import cli;"
    "registry.BUILT_IN['fake'] = 'provisioner.lab.fake_backend'; sys.exit(cli.main(sys.argv[1:]))"
)
"""A loop that knows the kind whose machines exist only in memory."""

console = Console(width=130)


class Run(NamedTuple):
    """The measures of one run. Seconds count from the first request."""

    shards: int
    machines: int
    most: float
    """Seconds until 90 % of the machines were reported as running."""
    all: float
    """Seconds until all requests were complete."""
    returned: float
    """Seconds from the first return until all returns were complete."""
    processor: list[float]
    """Processor seconds of each loop."""
    megabytes: list[float]
    calls: int
    """Calls that the API server has answered, of loops and scripts."""


class Held(NamedTuple):
    """The measures of a loop that holds machines and has nothing to do."""

    seconds: float
    """Seconds from the first request until all machines ran."""
    calls: int
    """Calls of the API server in these seconds."""
    kilobytes: float
    """Size of the state: of its files, or of its objects as JSON."""
    processor: float
    """Processor seconds of the loop in a quiet minute."""


def say(text: str) -> None:
    """Print progress to stderr."""
    print(f"bench-shards: {text}", file=sys.stderr, flush=True)


def write_configuration(
    directory: Path, cluster: Cluster, namespace: str, shards: int, requests: int, *, pods: bool = False
) -> None:
    """Write the files of a provider instance. Each shard has its own pool. Each request has its own template, because
    HF has at most ``REQUEST`` machines of a template.

    ``namespace``: the namespace of the state; empty for files. ``pods``: True if the machines are pods. Each pool then
    has a namespace of the same name.
    """
    sizes = {"max_pending": 100_000, "initial_window": 100_000}
    pools: dict[str, dict[str, object]] = {f"pool-{number}": {"kind": "fake", **sizes} for number in range(shards)}
    if pods:
        (directory / "pod.yaml").write_text(yaml.safe_dump(POD))
        place = {"kind": "gke", "pod_spec": "pod.yaml", "kubeconfig": "kubeconfig.json", **sizes}
        pools = {name: {"namespace": name, **place} for name in pools}
    settings = {"id": INSTANCE, "pools": pools, "request_deadline_minutes": 60, "loop": {"floor_seconds": 1.0}}
    (directory / "provisioner.yaml").write_text(yaml.safe_dump(settings))
    login = directory / "kubeconfig.json"
    token = cluster.admin.headers["Authorization"].removeprefix("Bearer ")
    login.write_text(json.dumps(kubeconfig(cluster.server, token, ca=cluster.ca)))
    place = f"kubernetes:{namespace}" if namespace else "files"
    state: dict[str, object] = {"STATE": place, "STATE_KUBECONFIG": str(login)}
    state |= {"STATE_SHARDS": [[name] for name in pools]} if shards > 1 else {}
    (directory / f"{INSTANCE}prov_config.json").write_text(json.dumps(state))
    attributes = {"type": ["String", "X86_64"], "ncpus": ["Numeric", "4"], "nram": ["Numeric", "8192"]}
    common = {"maxNumber": UNLIMITED, "attributes": attributes, "pools": [*pools]}
    templates = [{"templateId": f"Fake{number}", **common} for number in range(requests)]
    (directory / f"{INSTANCE}prov_templates.json").write_text(json.dumps({"templates": templates}))


@contextmanager
def loops(environment: dict[str, str], directory: Path, shards: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run the loops of all shards during the block. Yield their processes."""
    with ExitStack() as stack:
        started = []
        for number in range(shards):
            own = environment | ({SHARD_VARIABLE: str(number)} if shards > 1 else {})
            own |= {"HF_PROVIDER_WORKDIR": str(directory / f"work-{number}")}
            os.mkdir(own["HF_PROVIDER_WORKDIR"])
            log = stack.enter_context((directory / f"loop-{number}.log").open("wb"))
            command = [sys.executable, "-c", LOOP, "run", "--listen", "127.0.0.1:0"]
            process = subprocess.Popen(command, env=own, stdout=log, stderr=log, cwd=ROOT)
            stack.callback(process.wait)
            stack.callback(process.kill)
            started.append(process)
        yield started


def answered_calls(cluster: Cluster) -> int:
    """Return the number of calls about the state's objects that the API server has answered. Do not count watches."""
    total = 0
    counted = re.compile(r'apiserver_request_total.*group="(provisioner\.hostfactory\.dev|coordination\.k8s\.io)"')
    for line in cluster.admin.text("/metrics").splitlines():
        if counted.match(line) and 'verb="WATCH"' not in line:
            total += int(float(line.rpartition(" ")[2]))
    return total


def environment_of(directory: Path) -> dict[str, str]:
    """Return the environment of scripts and loops."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    made = str(directory)
    return given | {
        "HF_PROVIDER_NAME": INSTANCE,
        "HF_PROVIDER_CONFDIR": made,
        "HF_PROVIDER_WORKDIR": made,
        "PYTHONPATH": str(ROOT),
    }


def hold(cluster: Cluster, namespace: str) -> Held:
    """Create the machines, and measure the loop when it has nothing to do. ``namespace``: the namespace of the state;
    empty if files keep the state."""
    if namespace:
        cluster.admin.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        write_configuration(directory, cluster, namespace, 1, 1)
        environment = environment_of(directory) | {"HF_PROVIDER_WORKDIR": str(directory / "work-0")}
        hf = HostFactory(environment)
        with loops(environment, directory, 1) as [process]:
            before, began = answered_calls(cluster), time.monotonic()
            ids = [hf.request("Fake0", HELD // HELD_REQUESTS) for _ in range(HELD_REQUESTS)]
            asked = {"requests": [{"requestId": id_} for id_ in ids]}

            def is_done() -> bool:
                entries = hf.call("getRequestStatus", asked)["requests"]
                return all(entry["status"] == "complete" for entry in entries)

            until(is_done, PART_SECONDS, every=1.0, what="all machines run")
            seconds, calls = time.monotonic() - began, answered_calls(cluster) - before
            say(f"{HELD:,} machines {'on the server' if namespace else 'in files'} after {seconds:.0f} s")
            time.sleep(SETTLE_SECONDS)
            used = cpu_seconds(process.pid)
            time.sleep(QUIET_SECONDS)
            quiet = cpu_seconds(process.pid) - used
        files = [path for path in (directory / "work-0").glob("*.json") if path.name != "journal.jsonl"]
        size = size_of_objects(cluster, namespace) if namespace else sum(path.stat().st_size for path in files)
    return Held(seconds, calls, size / 1000, quiet)


def size_of_objects(cluster: Cluster, namespace: str) -> int:
    """Return the total size in bytes of the Kubernetes objects that keep a state."""
    listed = [cluster.admin.get(objects.collection(namespace, resource))["items"] for resource in objects.KINDS]
    return sum(len(json.dumps(one, separators=(",", ":"))) for items in listed for one in items)


def print_held(held: dict[str, Held]) -> None:
    """Print a table about the loops that hold machines."""
    table = Table("state", "machines", "all s", "calls", "calls/s", "state kB", "CPU s in a quiet minute")
    for name, one in held.items():
        rate = one.calls / one.seconds
        cells = f"{one.seconds:.0f}", f"{one.calls:,}", f"{rate:.0f}", f"{one.kilobytes:.0f}", f"{one.processor:.2f}"
        table.add_row(name, f"{HELD:,}", *cells)
    console.print(table)


def measure(cluster: Cluster, shards: int, machines: int, *, pods: bool = False) -> Run:
    """Request all machines, wait for them, return them and wait for the end."""
    namespace = f"bench-{shards}-{machines}"
    cluster.admin.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        counts = [min(REQUEST, machines - first) for first in range(0, machines, REQUEST)]
        write_configuration(directory, cluster, namespace, shards, len(counts), pods=pods)
        environment = environment_of(directory)
        hf = HostFactory(environment)
        with loops(environment, directory, shards) as processes:
            leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
            until(lambda: _all_lead(cluster, leases, shards), 120, every=0.5, what="every shard has a loop")
            before, cpu = answered_calls(cluster), [cpu_seconds(process.pid) for process in processes]
            began = time.monotonic()
            ids = [hf.request(f"Fake{number}", count) for number, count in enumerate(counts)]
            say(f"{shards} shards: {len(ids)} requests recorded after {time.monotonic() - began:.1f} s")
            most, names = 0.0, list[str]()
            while True:
                entries = [hf.status(id_) for id_ in ids]
                names = [one["name"] for entry in entries for one in entry["machines"] if one["status"] == "running"]
                now = time.monotonic() - began
                most = most or (now if len(names) >= 0.9 * machines else 0.0)
                say(f"{len(names):,} of {machines:,} run after {now:.0f} s")
                if all(entry["status"] != "running" for entry in entries) or now > PART_SECONDS:
                    break
                time.sleep(2.0)
            if len(names) != machines:
                raise SystemExit(f"{machines - len(names)} machines are missing: {[one['message'] for one in entries]}")
            ended, start = time.monotonic() - began, time.monotonic()
            returns = [hf.return_machines(names[first : first + REQUEST]) for first in range(0, machines, REQUEST)]
            while any(hf.status(id_)["status"] == "running" for id_ in returns):
                if time.monotonic() - start > PART_SECONDS:
                    raise SystemExit("the returns have not ended")
                time.sleep(2.0)
            returned = time.monotonic() - start
            return Run(
                shards,
                machines,
                most,
                ended,
                returned,
                [cpu_seconds(process.pid) - used for process, used in zip(processes, cpu, strict=True)],
                [mebibytes(process.pid, "VmHWM") for process in processes],
                answered_calls(cluster) - before,
            )


def _all_lead(cluster: Cluster, leases: str, shards: int) -> bool:
    return sum(bool(one["spec"].get("holderIdentity")) for one in cluster.admin.get(leases)["items"]) == shards


def print_runs(runs: list[Run]) -> None:
    """Print the table."""
    table = Table("loops", "machines", "T90 s", "all s", "returned s", "CPU s a loop", "CPU s", "most MB", "calls")
    for run in runs:
        share = sum(run.processor) / run.shards
        table.add_row(
            f"{run.shards}",
            f"{run.machines:,}",
            *(f"{seconds:.0f}" for seconds in (run.most, run.all, run.returned, share, sum(run.processor))),
            f"{max(run.megabytes):.0f}",
            f"{run.calls:,}",
        )
    console.print(table)


def compare(cluster: Cluster, shards: int, machines: int, *, pods: bool) -> list[str]:
    """Measure one loop with its part of the machines, then all loops. Print the table and return the missed goals."""
    alone = measure(cluster, 1, machines // shards, pods=pods)
    print_runs([alone])
    together = measure(cluster, shards, machines, pods=pods)
    print_runs([alone, together])
    ratio = together.most / alone.most
    console.print(f"T90 of all: {ratio:.2f} times that of one, goal {GOAL} with a processor for each loop")
    is_fair = (os.cpu_count() or 1) >= shards and not pods  # The one API server makes the pods of all loops.
    return [f"T90 of {shards} loops: {ratio:.2f} times"] if ratio > GOAL and is_fair else []


def main() -> int:
    """Run the chosen parts and print their results. Return 1 if a goal is missed."""
    options = argparse.ArgumentParser(description="loops that share the pools of one HostFactory")
    options.add_argument("--shards", type=int, default=8)
    options.add_argument("--machines", type=int, default=100_000)
    options.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    given = options.parse_args()
    try:
        programs = assets(os.environ)
    except BuildError as error:
        say(str(error))
        return 1
    missed = []
    with Cluster(programs) as cluster:
        define_state_kinds(cluster.admin)
        if "hold" in given.only:
            held = {"files": hold(cluster, ""), "Kubernetes API": hold(cluster, "bench-held")}
            print_held(held)
            files, api = (one.processor for one in held.values())
            missed += [f"quiet loop: {api / files:.1f} times the CPU"] if api > GOAL_QUIET * files else []
        if "shards" in given.only:
            missed += compare(cluster, given.shards, given.machines, pods=False)
        if "pods" in given.only:
            for number in range(NODES, 1 + PODS // int(NODE_CAPACITY["pods"]) + NODES):
                cluster.add_node(f"node-{number}")
            for number in range(POD_SHARDS):
                cluster.admin.create("/api/v1/namespaces", {"metadata": {"name": f"pool-{number}"}})
            missed += compare(cluster, POD_SHARDS, PODS, pods=True)
    for text in missed:
        console.print(f"missed: {text}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
