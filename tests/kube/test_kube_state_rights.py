"""The Roles of the state on a real server: loop and scripts do all their work with them, and each verb is used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import yaml

from provisioner.hostfactory import Answer
from provisioner.hostfactory.provider_config import Digests
from provisioner.state.errors import StateDenied
from provisioner.state.kube.access import Access
from provisioner.state.kube.connection import ApiServer, Response, Watch
from provisioner.state.kube.objects import NOTES, REQUESTS, STATES, collection, item, pack
from provisioner.state.kube.script_state import FEW, KubeScriptState
from tests.kube.space import TOKEN_SECONDS, Space
from tests.support.checks.rights import kube_call
from tests.support.manifests import KUSTOMIZE
from tests.support.waiting import until

pytestmark = pytest.mark.kube

COMPONENT = KUSTOMIZE / "components/kubernetes-state"
LOOP, SCRIPTS = "provisioner-state", "hostfactory-scripts"
ROLES: Mapping[str, dict[str, Any]] = {
    one["metadata"]["name"]: one
    for one in yaml.safe_load_all((COMPONENT / "rbac.yaml").read_text())
    if one["kind"] == "Role"
}


class Recorded(ApiServer):
    """An API server that notes the right that each call needs."""

    def __init__(self, access: Access) -> None:
        super().__init__(lambda: access)
        self.used: set[str] = set()

    def _note(self, method: str, path: str) -> None:
        target = urlsplit(path)
        self.used.add(kube_call(method, target.path, dict(parse_qsl(target.query))))

    def call(self, method: str, path: str, *arguments: Any, **options: Any) -> Response:
        self._note(method, path)
        return super().call(method, path, *arguments, **options)

    def watch(self, path: str, seconds: float) -> Watch:
        self._note("GET", path)
        return super().watch(path, seconds)


def granted(role: str) -> set[str]:
    return {
        f"{group}/{resource} {verb}" if group else f"{resource} {verb}"
        for rule in ROLES[role]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def bind(space: Space, role: str) -> Recorded:
    """Make an account that has the role in this namespace, and nothing else."""
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space.name}"
    accounts = f"/api/v1/namespaces/{space.name}/serviceaccounts"
    space.admin.create(accounts, {"metadata": {"name": role}})
    space.admin.create(f"{rbac}/roles", {"metadata": {"name": role}, "rules": ROLES[role]["rules"]})
    subject = {"kind": "ServiceAccount", "name": role, "namespace": space.name}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role}
    space.admin.create(
        f"{rbac}/rolebindings", {"metadata": {"name": role}, "roleRef": reference, "subjects": [subject]}
    )
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
    response = space.admin.create(f"{accounts}/{role}/token", {**asked, "spec": {"expirationSeconds": TOKEN_SECONDS}})
    access = Access(space.admin.server, space.name, token=response["status"]["token"], ca_file=str(space.admin.ca))
    api = Recorded(access)

    def is_in_force() -> bool:
        try:
            api.call("GET", item(space.name, STATES, "demo"))
        except StateDenied:
            return False
        return True

    until(is_in_force, 30, what="the role is in force")
    api.used.clear()
    return api


def life_of_scripts(space: Space, api: Recorded, directory: Path) -> None:
    """Make requests and returns, read answers one by one and by a list, settle one, and leave every note."""
    state = KubeScriptState(api, "demo", str(directory))
    ids = [state.record_request("demo", "GkePod", 1, created_wall=1e9, rc_account="").id for _ in range(FEW + 1)]
    back = state.record_return("demo", ["hf-0a1b2c3d4e-000000"], created_wall=1e9).id
    answer = {"phase": "Ended", "epoch": 1, "generation": 1, "answer": pack({"text": "{}", "ended": True})}
    space.admin.patch(item(space.name, REQUESTS, ids[0], "status"), {"status": answer})
    for asked in ([ids[0], back], ids, [ids[0]]):
        assert state.poll(asked).answers[ids[0]] == Answer("{}", True)
    space.admin.create(
        collection(space.name, STATES),
        {"apiVersion": "provisioner.hostfactory.dev/v1alpha1", "kind": "ProvisionerState", "metadata": {"name": "demo"}}
        | {"spec": {"provisioner": "demo"}},
    )
    lost = {"epoch": 1, "generation": 1, "lost": pack({"hf-0a1b2c3d4e-000000": [0, "unknown"]})}
    space.admin.patch(item(space.name, STATES, "demo", "status"), {"status": lost})
    assert state.lost(["hf-0a1b2c3d4e-000000"]) == {}
    assert state.available() == {}
    state.note_read(Digests("0", "1"))
    assert state.note_shown({"GkePod": 5})[0] == {"GkePod": 5}
    state.note_hosts({"hf-0a1b2c3d4e-000000": None})
    state.note_refusal("requestMachines", "no template")
    assert space.admin.get(item(space.name, NOTES, "demo"))["spec"]["refused"]


@pytest.mark.usefixtures("state_kinds")
def test_the_scripts_have_the_rights_that_they_use(space: Space, tmp_path: Path) -> None:
    api = bind(space, SCRIPTS)
    life_of_scripts(space, api, tmp_path)

    assert api.used == granted(SCRIPTS)
