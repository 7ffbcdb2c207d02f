"""The choice of the store: files, or a Kubernetes API, by the keys STATE and STATE_KUBECONFIG of the provider config.

The scripts import this module at each call, so it imports a store only if it is chosen.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from provisioner.hostfactory.provider_config import KUBERNETES, Directories
from provisioner.state.errors import StateError

if TYPE_CHECKING:
    from provisioner.state.kube.access import Access
    from provisioner.state.kube.connection import ApiServer
    from provisioner.state.protocols import ScriptState

STATE_KEYS = ("STATE", "STATE_KUBECONFIG", "STATE_SHARDS")


class KubeStore(NamedTuple):
    """A state in a Kubernetes API."""

    namespace: str
    kubeconfig: str
    """Path of the kubeconfig; empty for the account of the pod."""

    def api(self) -> ApiServer:
        """Return the API server, which is called only later."""
        from provisioner.state.kube.connection import ApiServer

        return ApiServer(self._read_access, self.namespace)

    def _read_access(self) -> Access:
        from provisioner.state.kube import access

        # One provider config serves HF's host, which has the kubeconfig, and the loop's pod, which has an account.
        is_pod = "KUBERNETES_SERVICE_HOST" in os.environ and not os.path.exists(self.kubeconfig)
        return access.from_kubeconfig(self.kubeconfig) if self.kubeconfig and not is_pod else access.in_cluster()


def find_kube_store(directories: Directories, given: str = "") -> KubeStore | None:
    """Return the Kubernetes API that keeps the state; None if files keep it. ``given``: a place that wins over the key.

    Raises StateError for a wrong value, because the state must not be looked for in another place. Raises
    TemplatesError and DirectoryError if the provider config cannot be read.
    """
    file = os.path.join(directories.conf, f"{directories.name}prov_config.json")
    config, problems, _ = directories.config_file(file)
    for problem in problems:
        if problem.where in STATE_KEYS:
            raise StateError(f"{file}: {problem}. Correct it: the state is used only if its place is certain.")
    namespace = given.removeprefix(KUBERNETES) if given else config.state_namespace
    if not namespace or (given and not given.startswith(KUBERNETES)):
        return None
    kubeconfig = config.state_kubeconfig and os.path.join(directories.conf, os.path.expanduser(config.state_kubeconfig))
    return KubeStore(namespace, kubeconfig)


def open_script_state(directories: Directories) -> ScriptState:
    """Return the state of a provider instance as its scripts use it. Raises as ``find_kube_store``."""
    if (store := find_kube_store(directories)) is None:
        from provisioner.state.directory import StateDir

        return StateDir(directories.state)
    from provisioner.state.kube.script_state import KubeScriptState

    return KubeScriptState(store.api(), directories.name, directories.state)
