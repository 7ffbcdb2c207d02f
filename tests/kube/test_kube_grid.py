"""The whole path on a real API server: scripts, loop, and pods that are scheduled and run. The results are compared
with what the server itself shows."""

from __future__ import annotations

import json
import time
from collections import Counter
from itertools import dropwhile, pairwise
from pathlib import Path

import pytest

from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.kubernetes.kubeconfig import kubeconfig
from provisioner.lab.cloud.server import Simulator
from tests.contract.places import QUICK_PODS
from tests.kube.cluster import Cluster
from tests.kube.kubelets import LABEL, STUCK
from tests.kube.provider_instance import POD, POOL, TEMPLATE, Grid
from tests.kube.proxy import Proxy
from tests.kube.space import Space
from tests.support.waiting import until

pytestmark = pytest.mark.kube

KWOK = pytest.mark.usefixtures("cluster")
"""Mark of tests that need a cluster of our own, in which kubelets follow a pod's label."""


def name_of(request: str, number: int) -> str:
    """Return the machine name of a request's slot. Slots count from 0."""
    return f"hf-{request}-{number:06}"


def pod_with(kubelet: str) -> dict[str, object]:
    """Return the manifest of pods that get the behaviour ``kubelet`` from their kubelet."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {LABEL: kubelet}}, "spec": POD}


@pytest.mark.timeout(400)
def test_500_pods_are_complete_with_addresses_and_after_their_return_none_is_left(space: Space, tmp_path: Path) -> None:
    with Grid(tmp_path / "grid", space).start() as grid:
        id_ = grid.hf.request(TEMPLATE, 500)
        answer = grid.ended(id_, 180)
        assert answer["status"] == "complete"
        machines = {machine["name"]: machine for machine in answer["machines"]}
        pods = {pod["metadata"]["name"]: pod for pod in space.pods()}
        assert len(machines) == 500
        assert machines.keys() == pods.keys()
        for name, machine in machines.items():
            assert (machine["result"], machine["status"]) == ("succeed", "running")
            assert machine["privateIpAddress"] == pods[name]["status"]["podIP"]
        assert len({machine["privateIpAddress"] for machine in machines.values()}) == 500
        assert sum(line["event"] == "create" for line in grid.journal()) == 500, "no create was sent twice"
        back = grid.ended(grid.hf.return_machines(list(machines)), 180)
        assert back["status"] == "complete"
        assert space.names() == set()


def test_a_quota_of_50_with_100_wanted_is_50_machines_and_50_failures_in_the_quotas_words(
    space: Space, proxy: Proxy, tmp_path: Path
) -> None:
    space.limit(pods=50)
    settings = {"request_deadline_minutes": 0.5, "backoff": {"first_seconds": 4, "last_seconds": 8}}
    with Grid(tmp_path / "grid", space, proxy=proxy, settings=settings).start() as grid:
        answer = grid.ended(grid.hf.request(TEMPLATE, 100))
        results = Counter(machine["result"] for machine in answer["machines"])
        assert answer["status"] == "complete_with_error"
        assert results == {"succeed": 50, "fail": 50}
        assert "exceeded quota" in answer["message"]
        assert len(space.names()) == 50
    refused = [call.at for call in proxy.creates() if call.status == 403]
    gaps = [later - earlier for earlier, later in pairwise(refused)]
    # A busy server answers the calls of the first round over some seconds: the round ends with the first pause.
    probes = list(dropwhile(lambda gap: gap < 1.5, gaps))
    assert len(refused) - len(probes) <= 32, f"in the first round: {gaps}"
    assert 1 <= len(probes) <= 12, "thirty seconds hold about seven back-offs of two to eight seconds"
    assert all(gap > 1.5 for gap in probes), f"one probe each time: {gaps}"


@KWOK
def test_a_pod_deleted_before_it_runs_is_replaced_and_one_deleted_later_is_lost(space: Space, tmp_path: Path) -> None:
    slow = {"apiVersion": "v1", "kind": "Pod", "metadata": {"annotations": {"test/delay": "4s"}}, "spec": POD}
    with Grid(tmp_path / "grid", space, pod=slow).start() as grid:
        id_ = grid.hf.request(TEMPLATE, 4)
        until(lambda: len(space.names()) == 4, 20, what="all pods are there")
        space.delete(name_of(id_, 2))
        answer = grid.ended(id_)
        assert answer["status"] == "complete"
        names = {machine["name"] for machine in answer["machines"]}
        assert names == {name_of(id_, number) for number in (0, 1, 3, 4)}
        space.delete(name_of(id_, 3))
        until(
            lambda: grid.hf.reclaimed(sorted(names)).get(name_of(id_, 3)) == 0, 20, every=0.2, what="its loss is known"
        )
        assert grid.hf.status(id_)["status"] == "complete", "a terminal answer stays"
        # Its last second is reported as 0 seconds.
        until(lambda: name_of(id_, 3) not in space.names(), 20, what="it is gone")
        assert space.names() == names - {name_of(id_, 3)}, "HostFactory asks for more if it needs more"


@KWOK
def test_an_evicted_machine_is_lost_and_reported_with_the_seconds_left(space: Space, tmp_path: Path) -> None:
    patient = {**pod_with(STUCK), "spec": {**POD, "terminationGracePeriodSeconds": 60}}
    with Grid(tmp_path / "grid", space, pod=patient).start() as grid:
        names = grid.complete(3)
        space.evict(names[0])
        reclaimed = until(lambda: grid.hf.reclaimed(names), 20, every=0.2, what="the eviction is reported")
        assert reclaimed.keys() == {names[0]}
        assert 30 < reclaimed[names[0]] <= 60
        space.remove(names[0])
        until(lambda: grid.hf.reclaimed(names) == {names[0]: 0}, 20, every=0.2, what="it is gone")
        until(lambda: any(line.get("cause") == "evicted" for line in grid.journal()), 30, what="the journal says why")


def test_an_api_server_that_is_killed_in_mid_creation_doubles_loses_and_deletes_nothing(
    cluster: Cluster, space: Space, tmp_path: Path
) -> None:
    with Grid(tmp_path / "grid", space).start() as grid:
        id_ = grid.hf.request(TEMPLATE, 400)
        before = until(lambda: pods if len(pods := space.uids()) >= 40 else {}, 30, every=0.05, what="some are there")
        cluster.stop_server()
        until(lambda: failures(grid), 60, what="the loop has met the outage")
        grid.until_seen(time.time() + 4)  # and at least one cycle more
        assert grid.hf.status(id_)["status"] == "running"
        cluster.start_server()
        answer = grid.ended(id_, 60)
        assert answer["status"] == "complete"
        after = space.uids()
        assert before.items() <= after.items(), "nothing was deleted and made again"
        journal = grid.journal()
        # A server that starts knows no roles yet and may refuse a create as forbidden: its slot is replaced. If an
        # earlier create of the slot took effect and its response was lost, the pod that appears is not needed any more.
        refused = {line["machine"] for line in journal if line["event"] == "create" and line["result"] == "denied"}
        assert {line["machine"] for line in journal if line["event"] == "delete"} <= refused
        assert len(after) == 400
        assert {name_of(id_, number) for number in range(400)} - after.keys() <= refused, "no other slot was replaced"


def failures(grid: Grid) -> bool:
    """Return whether an action of the loop has failed."""
    return any(line.get("result", "ok") != "ok" for line in grid.journal())


def test_two_provisioners_in_one_namespace_never_touch_each_others_pods_nor_foreign_ones(
    space: Space, tmp_path: Path
) -> None:
    """Each provisioner must leave the other's pods alone. Both must also leave a pod of another owner alone, although
    it has a name like ours, or our labels."""
    eager = {"orphan_grace_minutes": 0.02}
    foreign = space.add_pod("hf-abcdefghij-000001")
    borrowed = space.add_pod("web-1", {"hf-provisioner/id": "one", "hf-provisioner/pool": POOL})
    kept = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in (foreign, borrowed)}
    with (
        Grid(tmp_path / "a", space, id_="one", settings=eager).start() as one,
        Grid(tmp_path / "b", space, id_="two", settings=eager).start() as two,
    ):
        ours, theirs = one.complete(15), two.complete(10)
        before = space.uids()
        assert before.keys() == {*ours, *theirs, *kept}
        # The other provisioner's machine is not ours: it is left alone, and its return is reported as failed.
        others = [theirs[0], "hf-abcdefghij-000001"]
        answer = one.ended(one.hf.return_machines([*ours, *others]))
        results = {machine["name"]: machine["result"] for machine in answer["machines"]}
        assert results == dict.fromkeys(ours, "succeed") | dict.fromkeys(others, "fail")
        # Longer than the grace of an orphan, and several cycles: whatever could be deleted by mistake would be by now.
        for grid in (one, two):
            grid.until_seen(time.time() + 4)
        assert space.uids() == kept | {name: before[name] for name in theirs}
        assert two.hf.reclaimed(theirs) == {}


@KWOK
def test_a_pod_that_is_stuck_terminating_under_a_closed_slots_name_is_harmless(space: Space, tmp_path: Path) -> None:
    settings = {"return_deadline_minutes": 0.1}
    with Grid(tmp_path / "grid", space, pod=pod_with(STUCK), settings=settings).start() as grid:
        names = grid.complete(3)
        back = grid.ended(grid.hf.return_machines(names[:1]))
        assert back["status"] == "complete_with_error"
        assert names[0] in space.names()
        more = grid.complete(2)
        assert space.names() == {*names, *more}
        space.remove(names[0])
        assert grid.complete(1)
        assert names[0] not in space.names(), "a closed slot's name is not used again"


def test_machines_of_a_node_that_is_gone_are_lost_and_those_of_a_spot_node_preempted(
    cluster: Cluster, space: Space, tmp_path: Path
) -> None:
    """A pod whose node is gone was preempted if the node was on Spot. Here only the node's label shows this, because
    the pod specs do not ask for Spot. The loop can read the label only if its account may list nodes.

    The server deletes the pods of a missing node only after most of a minute.
    """
    cluster.add_node("doomed", doomed="yes")
    cluster.add_node("taken-away", doomed="on-spot", **{"cloud.google.com/gke-spot": "true"})
    plain, spot = ({**POD, "nodeSelector": {"doomed": value}} for value in ("yes", "on-spot"))
    with (
        Space(cluster.admin) as other,
        other.seeing_nodes(),
        Grid(tmp_path / "plain", space, pod=plain).start() as grid,
        Grid(tmp_path / "spot", other, pod=spot).start() as spot_grid,
    ):
        names, (preempted,) = grid.complete(2), spot_grid.complete(1)
        for node in ("doomed", "taken-away"):
            cluster.remove_node(node)
        lost = dict.fromkeys(names, 0)
        until(lambda: grid.hf.reclaimed(names) == lost, 120, every=0.5, what="both are lost")
        assert all(f"{name}: node" in grid.hf.reclaim(names)["message"] for name in names)
        until(lambda: spot_grid.hf.reclaimed([preempted]) == {preempted: 0}, 60, every=0.5, what="it is lost, too")
        assert f"{preempted}: preempted" in spot_grid.hf.reclaim([preempted])["message"]
        until(lambda: space.names() == set(), 30, what="nothing is left")


@KWOK
def test_where_force_is_configured_a_return_of_stuck_pods_completes(space: Space, tmp_path: Path) -> None:
    pool = {"force_delete_after_seconds": 2}
    with Grid(tmp_path / "grid", space, pod=pod_with(STUCK), pool=pool).start() as grid:
        names = grid.complete(3)
        space.delete(names[2])
        back = grid.ended(grid.hf.return_machines(names[:2]))
        assert back["status"] == "complete"
        assert space.names() == {names[2]}, "what another user deleted, and HostFactory did not return, is left alone"
        deletes = [line for line in grid.journal() if line["event"] == "delete"]
        for force in (False, True):
            sent = [line["machine"] for line in deletes if line.get("force", False) is force]
            assert sorted(sent) == sorted(names[:2])


def test_one_loop_fills_two_namespaces_and_a_second_cluster_and_empties_them(space: Space, tmp_path: Path) -> None:
    with Space(space.admin) as other, Simulator(namespaces=["symphony"]) as simulator:
        simulator.call(lambda cloud: cloud.impose(Conditions(gke=QUICK_PODS)))
        near, far = other.write_kubeconfig(tmp_path / "other"), tmp_path / "far"
        far.write_text(json.dumps(kubeconfig(simulator.kubernetes, "symphony", {})))
        more = {
            "gke-other": {"namespace": other.name, "kubeconfig": str(near), "max_machines": 3},
            "gke-far": {"namespace": "symphony", "kubeconfig": str(far)},
        }

        def spread() -> tuple[int, int, int]:
            far_pods = simulator.call(lambda cloud: len(cloud.cluster.pods.select("symphony")))
            return len(space.names()), len(other.names()), far_pods

        with Grid(tmp_path / "grid", space, pool={"max_machines": 4}, more=more).start() as grid:
            log = grid.logs / "loop.log"
            until(lambda: '"result": "ok"' in log.read_text(), 60, what="a cycle has seen all three pools")
            names = grid.complete(10)
            assert spread() == (4, 3, 3)
            assert grid.ended(grid.hf.return_machines(names))["status"] == "complete"
            assert spread() == (0, 0, 0)
