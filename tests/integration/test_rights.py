"""The provisioner has exactly the rights that it uses in Google Cloud and Kubernetes. Every test of the suite checks
that each call is granted (``tests/support/checks/callers.py``). This module checks that each right is used: it plays
the main situations of each kind of place, and compares the calls with the roles."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from provisioner.backends import BackendError, Ended
from provisioner.backends.gke.backend import GkeBackend
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.gke.shared_connections import Namespaces
from provisioner.backends.mig.api import ComputeTimes
from provisioner.backends.mig.backend import MigBackend
from provisioner.backends.mig.group_checks import NEEDED
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.mig.shared_lists import Projects
from provisioner.backends.pubsub_events import EventStream, Judged, Worth
from provisioner.backends.pubsub_subscription import CONSUME, subscription_findings
from provisioner.demand.kubernetes import Kubernetes
from provisioner.demand.sources import Fleet, Running
from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.compute.settings import MigSpec
from provisioner.lab.cloud.server import Simulator
from provisioner.lab.cloud.world import Fault
from provisioner.model import Create, Delete, DeleteReason, LossCause, Phase, Snapshot
from provisioner.schema.setting_types import Site
from provisioner.testing.place import always
from tests.contract.mig_place import QUICK_GROUP
from tests.contract.places import QUICK_PODS, QUICK_WATCH
from tests.support.checks import callers, rights
from tests.support.checks.discovery_schema import discovery
from tests.support.clouds.specs import advised
from tests.support.network.pubsub import subscription_server
from tests.support.waiting import PATIENCE, until

REQUEST = "abcdefghij"
SPOT = {"project": "p", "autoscaler_mode": "OFF", "provisioning_model": "SPOT"}
ZONAL = advised(name="z", zone="us-central1-a", **SPOT)
REGIONAL = advised(name="r", region="us-central1", **SPOT)
GROUP = replace(QUICK_GROUP, delete=(0.0, 0.0), delete_spot=(0.0, 0.0), leave=(5.0, 5.0))
"""An instance that others delete is gone before anybody sees it stop."""
NAME = f"hf-{REQUEST}-000000"
"""The machine of every situation."""
FLEET = Fleet(0.0, {}, {NAME: Running("T", 0.0)})
"""A machine of which a source of demand reads node and pods."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Return the set of the calls that are made from now on."""
    made: set[str] = set()
    monkeypatch.setattr(callers, "CALLS", made)
    return made


def test_nothing_is_granted_that_is_never_called(
    calls: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Simulator(namespaces=["symphony"], migs=[ZONAL, REGIONAL]) as cloud:
        cloud.call(lambda model: model.impose(Conditions(mig=GROUP, gke=QUICK_PODS)))
        for spec in (ZONAL, REGIONAL):
            life_in_a_group(cloud, spec)
        life_in_a_namespace(cloud, tmp_path)
        assert Kubernetes(kubeconfig=cloud.kubeconfig).read(FLEET).wanted == {}
    call_by_name(tmp_path)
    life_of_a_subscription(monkeypatch)
    used = {rights.needed(call) for call in calls} - {""}
    assert used == rights.granted()


def life_in_a_group(cloud: Simulator, spec: MigSpec) -> None:
    """Run the checks. Make a machine, observe it, and let another user delete it. Then create another machine whose
    create is decided late."""
    where = {"zone": spec.zone} if spec.zone else {"region": spec.region}
    pool = MigPool(
        name="m", project="p", group=spec.name, endpoint=cloud.compute, observe_seconds=0.01, lag_seconds=0.0, **where
    )
    backend = MigBackend(pool, Projects(Site("demo", "hf"), times=ComputeTimes(admission=0.2)))
    create = Create(NAME, "m", "T", REQUEST)
    try:
        assert backend.check(10) != []
        assert backend.rehearse("T") == []
        assert backend.size(10) is not None
        backend.create([create], always)
        until(lambda: phase(observe(backend)) is Phase.RUNNING, 30, what="the machine runs")
        zone = cloud.call(lambda model: model.groups.mig("p", spec.scope, spec.name).members[NAME].zone)
        requests.delete(
            f"{cloud.compute}projects/p/zones/{zone}/instances/{NAME}", timeout=10 * PATIENCE
        ).raise_for_status()
        until(lambda: phase(observe(backend)) is not Phase.RUNNING, 30, what="the machine is gone")
        assert "zoneOperations.list" in callers.CALLS, "why it went was asked"
        backend.delete([Delete(NAME, "m", DeleteReason.RETURNED)], always)
        slow = replace(GROUP, operation=(1.0, 1.0))
        cloud.call(lambda model: model.impose(Conditions(mig=slow)))
        backend.create([replace(create, name=f"hf-{REQUEST}-000001")], always)
        observe(backend)
        cloud.call(lambda model: model.impose(Conditions(mig=GROUP)))
    finally:
        backend.close()


def life_in_a_namespace(cloud: Simulator, directory: Path) -> None:
    """Create a pod as a dry run, then really, then again under the same name. Read Events while it waits for a node.
    Record the loss of the pod, and delete it."""
    spec = directory / "pod.yaml"
    spec.write_text("containers: [{name: main, image: busybox}]\n")
    pool = GkePool(name="g", namespace="symphony", pod_spec=spec, endpoint=cloud.kubernetes)
    backend = GkeBackend(pool, Namespaces(replace(QUICK_WATCH, waiting=0.0)), provisioner="demo")
    create = Create(NAME, "g", "T", REQUEST)
    try:
        assert backend.rehearse("T") == []
        observe(backend)
        backend.start(lambda: None)
        cloud.impose([Fault("stockout", target="symphony")])
        backend.create([create], always)
        backend.create([create], always)
        until(lambda: observe(backend) and "events list" in callers.CALLS, 30, what="events are read")
        cloud.impose([])
        until(lambda: observe(backend) and "nodes list anywhere" in callers.CALLS, 30, what="its node is read")
        backend.record_ends([Ended(NAME, REQUEST, "T", "", True, LossCause.NODE, None)])
        until(lambda: "events create" in callers.CALLS, 30, what="its loss is recorded")
        backend.delete([Delete(NAME, "g", DeleteReason.RETURNED)], always)
    finally:
        backend.close()


def call_by_name(directory: Path) -> None:
    """Call a cluster by its DNS endpoint. The call fails before it leaves this host, because there are no
    credentials."""
    pool = GkePool(
        name="d",
        namespace="symphony",
        pod_spec=directory / "pod.yaml",
        endpoint="https://gke-0123456789abcdef.us-central1.gke.goog",
        credentials=directory / "none.json",
    )
    backend = GkeBackend(pool, Namespaces(), provisioner="demo")
    try:
        with pytest.raises(BackendError, match="no Google credentials"):
            backend._api.get("/api/v1/namespaces/symphony/pods")
    finally:
        backend.close()


def life_of_a_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a subscription, receive a message and acknowledge it, all by Google's own client."""
    taken: list[Judged] = []
    with subscription_server(data=b"?") as server:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", ":".join(map(str, server.address)))
        assert subscription_findings("p", "s", 10) == []
        stream = EventStream("p", "s", prefix="hf", taken=taken.append)
        stream.start()
        until(lambda: "/google.pubsub.v1.Subscriber/Acknowledge" in server.calls, 30, what="the message is taken")
        stream.close()
    assert [judged.worth for judged in taken][:1] == [Worth.MALFORMED]
    assert server.calls == {call for call in callers.CALLS if call.startswith("/google.")}, "none is made unseen"


def observe(backend: MigBackend | GkeBackend) -> Snapshot:
    """Return the present snapshot of the pool."""
    return backend.observe(time.monotonic(), {})


def phase(snapshot: Snapshot) -> Phase | None:
    """Return the phase of the machine; None if there is no machine."""
    machine = snapshot.machines.get(NAME)
    return machine.phase if machine else None


def test_every_method_of_the_table_is_google_s_own() -> None:
    """Expect only methods that Google has. A misspelt method would never match a call."""
    official = {
        method["id"].partition(".")[2]
        for version in ("v1", "beta")  # testIamPermissions of a group is beta
        for resource in discovery(version)["resources"].values()
        for method in resource.get("methods", {}).values()
    }
    assert set(rights.COMPUTE) <= official


def test_the_page_says_what_each_permission_is_for() -> None:
    page = (rights.ROOT / "docs" / "deploy-google.md").read_text()
    named = set(re.findall(r"`((?:compute|container|pubsub)\.\w+\.\w+)`", page))
    assert named == {right for right in rights.granted() if right.startswith(("compute.", "container.", "pubsub."))}


def test_rights_that_check_asks_for_are_granted() -> None:
    assert {*NEEDED, CONSUME} <= rights.granted()
