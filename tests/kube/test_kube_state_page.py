"""docs/kubernetes-state.md, followed on a real server. The page's commands must make a login with which the scripts
work."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.state.errors import StateDenied
from provisioner.state.kube.api_login import from_kubeconfig
from provisioner.state.kube.connection import ApiServer
from provisioner.state.kube.objects import PARTS, collection
from provisioner.state.kube.script_state import KubeScriptState
from tests.kube.cluster import Cluster
from tests.kube.kit import Kit
from tests.support.manifests import ROOT, built
from tests.support.pages import blocks_of
from tests.support.waiting import PATIENCE, until

pytestmark = [
    pytest.mark.kube,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl"),
    pytest.mark.usefixtures("state_kinds"),
]

PAGE = (ROOT / "docs" / "kubernetes-state.md").read_text()


@pytest.fixture
def component(kit: Kit) -> Iterator[Kit]:
    """Yield a cluster with the applied component ``kubernetes-state``."""
    with kit.deploying(
        [one for one in built("components/kubernetes-state") if one["kind"] != "CustomResourceDefinition"]
    ):
        yield kit


class Terminal:
    """The administrator's terminal, in a directory that has the repository's folder ``deploy``."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.directory, self._cluster = directory, cluster
        (directory / "deploy").symlink_to(ROOT / "deploy")

    def type(self, block: str) -> str:
        environment = {**os.environ, "KUBECONFIG": str(self._cluster.directory / "kubeconfig")}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.replace("SERVER", self._cluster.server)],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60 * PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def test_the_lines_of_the_page_make_a_login_with_which_scripts_work(
    component: Kit, any_cluster: Cluster, tmp_path: Path
) -> None:
    token, kubeconfig = [block for block in blocks_of(PAGE) if "state-token" in block]
    terminal = Terminal(any_cluster, tmp_path)
    secret = "kubectl -n hostfactory get secret hostfactory-scripts -o jsonpath='{.data.token}'"

    first, *rest = token.splitlines()
    terminal.type(first)
    until(lambda: terminal.type(secret), 30, what="the server has made the token")
    terminal.type("\n".join(rest))
    terminal.type(kubeconfig)

    api = ApiServer(lambda: from_kubeconfig(str(tmp_path / "state.kubeconfig")))
    state = KubeScriptState(api, "gkeinst", str(tmp_path))
    id_ = state.record_request("gkeinst", "GkePod", 3, created_wall=1e9, rc_account="").id
    assert list(state.poll([id_]).answers) == [id_]
    with pytest.raises(StateDenied):
        api.call("GET", collection(api.namespace, PARTS))
    (line,) = [line for line in terminal.type("kubectl -n hostfactory get mreq").splitlines() if line.startswith(id_)]
    assert line.split()[1:3] == ["3", "GkePod"]
