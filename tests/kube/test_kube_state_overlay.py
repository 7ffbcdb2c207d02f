"""Two loops with the state on a real API server. The overlay deploys them, each with its own rights only.

HostFactory's scripts log in with the account that docs/kubernetes-state.md names. The loops and scripts share no state
directory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from provisioner.state.kube.objects import leases
from tests.kube.cluster import Cluster, kubeconfig
from tests.kube.kit import Kit, LoopPod
from tests.support.manifests import IN_API, Manifest, built, container, only
from tests.support.waiting import until

pytestmark = [
    pytest.mark.kube,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become two users"),
    pytest.mark.usefixtures("state_kinds"),
]

SYSTEM, PODS = "hostfactory", "/api/v1/namespaces/symphony/pods"
SCRIPTS = "hostfactory-scripts"


@pytest.fixture
def manifests(kit: Kit, any_cluster: Cluster, tmp_path: Path) -> Iterator[list[Manifest]]:
    """Yield the applied overlay ``kind`` with the state in the API.

    The provider config has the keys that docs/kubernetes-state.md names.
    """
    made = [one for one in built("overlays/kind", IN_API) if one["kind"] != "CustomResourceDefinition"]
    files = only(made, "ConfigMap")["data"]
    keys = {"STATE": f"kubernetes:{SYSTEM}", "STATE_KUBECONFIG": str(tmp_path / "state.kubeconfig")}
    name = "gkeinstprov_config.json"
    files[name] = json.dumps({**json.loads(files[name]), **keys})
    settings = yaml.safe_load(files["provisioner.yaml"])
    files["provisioner.yaml"] = yaml.safe_dump({**settings, "loop": {"interval_seconds": 2, "floor_seconds": 0.3}})
    with kit.deploying(made):
        asked = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {"expirationSeconds": 7200}}
        path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{SCRIPTS}/token"
        token = kit.admin.create(path, asked)["status"]["token"]
        login = kubeconfig(kit.admin.server, token, ca=any_cluster.ca, namespace=SYSTEM)
        (tmp_path / "state.kubeconfig").write_text(json.dumps(login))
        yield made


def test_a_standby_without_a_common_directory_takes_over_from_a_killed_loop(
    kit: Kit, manifests: list[Manifest], any_cluster: Cluster, tmp_path: Path
) -> None:
    ready = container(manifests)["readinessProbe"]["httpGet"]["path"]
    lease = f"{leases(SYSTEM)}/gkeinst.loop"

    def holder() -> str:
        return str(kit.admin.get(lease)["spec"].get("holderIdentity"))

    def machines() -> set[str]:
        return {one["metadata"]["name"] for one in kit.admin.get(PODS)["items"]}

    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    with LoopPod(kit, manifests, tmp_path / "first", any_cluster.ca) as first:
        until(lambda: first.answers(ready), 60, what="the first loop works")
        with LoopPod(kit, manifests, tmp_path / "second", any_cluster.ca) as second:
            until(lambda: second.answers(ready), 60, what="the second loop stands by")
            leader, hf = holder(), first.hf
            id_ = hf.request("GkePod", 2)
            until(lambda: hf.status(id_)["status"] == "complete", 90, every=0.5, what="machines run")
            first.kill()
            later = second.hf.request("GkePod", 1)
            until(lambda: second.hf.status(later)["status"] == "complete", 90, every=0.5, what="the second loop works")
            names = [one["name"] for asked in (id_, later) for one in second.hf.status(asked)["machines"]]

            assert holder() != leader
            assert len(set(names)) == 3
            assert machines() == set(names)
            back = second.hf.return_machines(names)
            until(lambda: second.hf.status(back)["status"] == "complete", 90, every=0.5, what="they are returned")
            assert machines() == set()
            assert [
                line for log in (first.log, second.log) for line in log.read_text().splitlines() if "403" in line
            ] == []
