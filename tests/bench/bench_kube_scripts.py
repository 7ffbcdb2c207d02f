"""The cost of each script if a real API server keeps the state, compared with ``python -c "import tinydb"``.

    KUBEBUILDER_ASSETS=… python tests/bench/bench_kube_scripts.py [--rounds N] [--machines N]

Goal: at most 2.8 times the bare import, for 10,000 machines in 100 requests. Exits 1 if the goal is missed.
getRequestStatus is measured for one request. It is also measured for all requests, without a goal.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[2]))

from provisioner.names import machine_name
from provisioner.state.kube import objects
from provisioner.state.kube.objects import CYCLE, REQUESTS, STATES
from provisioner.state.new_ids import new_id
from tests.bench.bench_scripts import BASE, BATCH, LOSSES, call, entry, measure
from tests.kube.client import Client
from tests.kube.cluster import Cluster
from tests.support.hostfactory.provider import HostFactory
from tests.support.manifests import KUSTOMIZE
from tests.support.waiting import until

GOAL = 2.8
ALL = "getRequestStatus of all"
NAMESPACE = "default"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def define(admin: Client) -> None:
    """Define the custom resources of the state on the API server."""
    for definition in yaml.safe_load_all((KUSTOMIZE / "components/kubernetes-state/crds.yaml").read_text()):
        admin.create(CRDS, definition)
    until(lambda: "machinerequests" in str(admin.get(f"/apis/{objects.API_VERSION}")), 60, what="the kinds are served")


def prepare(hf: HostFactory, admin: Client, machines: int) -> dict[str, list[str]]:
    """Store the machines on the API server, in requests of ``BATCH`` machines. Return a command line for each script
    that uses these machines."""
    requests = [new_id() for _ in range(machines // BATCH)]
    names = [machine_name("hf", request, number) for request in requests for number in range(BATCH)]

    def add(request: str) -> None:
        entries = [entry(machine_name("hf", request, number)) for number in range(BATCH)]
        text = json.dumps({"requestId": request, "status": "complete", "message": "", "machines": entries})
        spec = {"provisioner": hf.instance, "template": "T2", "count": BATCH, "created": 0}
        admin.create(objects.collection(NAMESPACE, REQUESTS), objects.body(REQUESTS, request, spec))
        packed = objects.pack({"text": text, "ended": True})
        status = {"phase": "Complete", "epoch": 1, "generation": 1, "answer": packed, "record": packed}
        admin.patch(objects.item(NAMESPACE, REQUESTS, request, "status"), {"status": status})

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, requests))
    state = objects.body(STATES, hf.instance, {"provisioner": hf.instance})
    admin.create(objects.collection(NAMESPACE, STATES), state)
    lost = objects.pack({name: [0, "gone"] for name in names[:LOSSES]})
    status = {"epoch": 1, "generation": 1, "lost": lost}
    admin.patch(objects.item(NAMESPACE, STATES, hf.instance, "status"), {"status": status})
    metadata = {"name": f"{hf.instance}.loop", "annotations": {CYCLE: str(time.time())}}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
    admin.create(objects.leases(NAMESPACE), lease)
    hosts = [{"name": f"{name}.c.demo.internal", "machineId": name} for name in names]
    polled = [{"requestId": request} for request in requests]
    calls = {
        "getAvailableTemplates": call(hf, "getAvailableTemplates", {}),
        "requestMachines": call(hf, "requestMachines", {"template": {"templateId": "T2", "machineCount": BATCH}}),
        "getRequestStatus": call(hf, "getRequestStatus", {"requests": polled[:1]}),
        "requestReturnMachines": call(hf, "requestReturnMachines", {"machines": hosts[-BATCH:]}),
        "getReturnRequests": call(hf, "getReturnRequests", {"machines": hosts}),
    }
    hf.input = hf.input.with_name("all.json")
    return calls | {ALL: hf.command("getRequestStatus", {"requests": polled})}


def main() -> int:
    """Print a line for each script, and return 1 if a goal is missed."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=15, help="runs of each command, default 15")
    arguments.add_argument("--machines", type=int, default=10_000, help="machines in the state, default 10,000")
    options = arguments.parse_args()
    with Cluster(Path(os.environ["KUBEBUILDER_ASSETS"])) as cluster, tempfile.TemporaryDirectory() as directory:
        define(cluster.admin)
        hf = HostFactory(Path(directory))
        chosen = {"STATE": f"kubernetes:{NAMESPACE}", "STATE_KUBECONFIG": str(cluster.directory / "kubeconfig")}
        (hf.conf / f"{hf.instance}prov_config.json").write_text(json.dumps(chosen))
        commands = {BASE: [sys.executable, "-c", BASE], **prepare(hf, cluster.admin, options.machines)}
        costs = measure(hf, commands, options.rounds)
    cluster.forget()
    missed = False
    for name, cost in costs.items():
        ratio = cost.seconds / costs[BASE].seconds
        is_missed = ratio > GOAL and name != ALL
        missed |= is_missed
        numbers = (
            f"{1000 * cost.seconds:>7.1f} ms {1000 * cost.cpu:>7.1f} ms CPU {ratio:>6.2f} x {cost.megabytes:>6.1f} MB"
        )
        print(f"{name:<24}{numbers}{'  MISSED' if is_missed else ''}")
    print(f"{options.machines:,} machines, medians of {options.rounds} runs; goal {GOAL} x")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
