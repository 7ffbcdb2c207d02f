"""Events on lost pods on a real API server. The rights of the deployment's Role are enough to write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.backends.gke.loss_event_writer import COMPONENT
from tests.kube.client import Document
from tests.kube.provider_instance import POOL, TEMPLATE, Grid
from tests.kube.space import Space
from tests.support.waiting import until

pytestmark = pytest.mark.kube


def said(space: Space) -> list[Document]:
    """Return our Events, as the newer of the two Event APIs shows them."""
    events = space.admin.get(f"/apis/events.k8s.io/v1/namespaces/{space.name}/events")["items"]
    return [one for one in events if one.get("reportingController") == COMPONENT]


def test_a_pod_that_is_lost_has_an_event_with_cause_request_and_template(space: Space, tmp_path: Path) -> None:
    with Grid(tmp_path / "grid", space).start() as grid:
        deleted, evicted, kept = grid.complete(3)
        uids = space.uids()
        space.delete(deleted)
        space.evict(evicted)
        until(lambda: set(grid.hf.reclaimed([deleted, evicted, kept])) == {deleted, evicted}, 60, what="both losses")
        events = until(lambda: len(found := said(space)) == 2 and found, 60, what="two Events")
    by_name = {one["regarding"]["name"]: one for one in events}
    assert {name: one["reason"] for name, one in by_name.items()} == {deleted: "Deleted", evicted: "Evicted"}
    for name, one in by_name.items():
        assert (one["type"], one["regarding"]["kind"], one["regarding"]["uid"]) == ("Warning", "Pod", uids[name])
        whose = f"Request {name.split('-')[1]}, template {TEMPLATE}, pool {POOL};"
        assert whose in one["note"]
        assert one["metadata"]["labels"]["hf-provisioner/template"] == TEMPLATE
