"""How pods end on a real API server, in one place or several."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.backends.gke.settings import STUCK_SECONDS
from provisioner.model import Delete, DeleteReason, Phase, Verdict
from provisioner.planning.cleanup import delete_closed
from provisioner.simulator.cloud import Conditions
from provisioner.simulator.kubernetes.kubeconfig import kubeconfig
from provisioner.simulator.server import Simulator
from tests.contract.places import PREFIX, QUICK_PODS, REQUEST, always
from tests.kube.grid import POD, Grid
from tests.kube.kubelets import LABEL, STUCK
from tests.kube.place import KubePlace
from tests.kube.proxy import Proxy
from tests.kube.space import Space
from tests.support.waiting import until
from tests.unit import core

pytestmark = pytest.mark.kube

KWOK = pytest.mark.usefixtures("cluster")
ONE = f"{PREFIX}-{REQUEST}-000001"
STUCK_POD = {"metadata": {"labels": {LABEL: STUCK}}, "spec": POD}


@pytest.fixture
def place(space: Space, proxy: Proxy, tmp_path: Path) -> Iterator[KubePlace]:
    made = KubePlace(space, proxy, tmp_path, watched=True)
    yield made
    made.close()


# --- pods that do not end ---------------------------------------------------------------------------------------------


def planned(place: KubePlace, wait: float, *, force_after: float | None = None) -> tuple[list[Delete], bool]:
    """What is deleted ``wait`` seconds after the end of the grace period, and whether the pod counts as stuck."""
    look = place.look()
    notice = look.machines[ONE].notice
    assert notice is not None
    now = notice.ends + wait
    facts = {"pool": place.pool, "delete": DeleteReason.RETURNED, "delete_sent": now - 1}
    slot = core.running(1, Verdict.RETURNED, REQUEST, **facts)
    limits = core.limits(core.pool(place.pool, stuck_after=STUCK_SECONDS, force_after=force_after))
    draft = core.draft_of(core.memory(core.record(slot, id_=REQUEST)), look, limits=limits, now=now)
    delete_closed(draft, frozenset())
    after = draft.slot(REQUEST, 1)
    assert after is not None
    return draft.deletes, after.stuck


@KWOK
def test_a_pod_whose_kubelet_is_dead_is_stuck_after_its_grace_and_goes_only_by_force(
    place: KubePlace, space: Space
) -> None:
    place.rewrite(json.dumps(STUCK_POD))
    place.create(1)
    uid = place.until_seen(ONE).fingerprint.uid
    assert place.delete(ONE, uid).failure is None
    place.until_seen(ONE, Phase.STOPPING)
    assert planned(place, STUCK_SECONDS - 1) == ([], False)
    assert planned(place, STUCK_SECONDS) == ([], True)
    assert place.delete(ONE, uid).failure is None
    assert space.pod(ONE)["metadata"]["deletionGracePeriodSeconds"] == 1, "a second delete changes nothing"
    assert planned(place, 4, force_after=5) == ([], False)
    (forced,), _ = planned(place, 5, force_after=5)
    assert (forced.uid, forced.force) == (uid, True)
    assert [outcome.failure for outcome in place.backend.delete([forced], always)] == [None]
    until(lambda: space.names() == set(), 30, what="the pod is gone")
    place.until_gone(ONE)


@KWOK
def test_where_force_is_configured_a_return_of_stuck_pods_completes(space: Space, tmp_path: Path) -> None:
    pool = {"force_delete_after_seconds": 2}
    with Grid(tmp_path / "grid", space, pod=STUCK_POD, pool=pool).start() as grid:
        names = grid.complete(3)
        space.delete(names[2])
        back = grid.ended(grid.hf.give_back(names[:2]))
        assert back["status"] == "complete"
        assert space.names() == {names[2]}, "what somebody else deleted, and HostFactory did not return, is left alone"
        deletes = [line for line in grid.journal() if line["event"] == "delete"]
        for force in (False, True):
            sent = [line["machine"] for line in deletes if line.get("force", False) is force]
            assert sorted(sent) == sorted(names[:2])


# --- several clusters and namespaces ----------------------------------------------------------------------------------


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
            assert grid.ended(grid.hf.give_back(names))["status"] == "complete"
            assert spread() == (0, 0, 0)
