"""The choice of the store: files or a Kubernetes API. The keys STATE and STATE_KUBECONFIG of the provider config
decide.

The scripts import this module at each call, so it imports a store only if it is chosen.
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from provisioner.hostfactory.provider_config import KUBERNETES, PLACE, Directories
from provisioner.state.errors import StateError

if TYPE_CHECKING:
    from provisioner.hostfactory.shards import Shards
    from provisioner.state.kube.api_login import Access
    from provisioner.state.kube.connection import ApiServer
    from provisioner.state.protocols import ScriptState

STATE_KEYS = ("STATE", "STATE_KUBECONFIG", "STATE_SHARDS")


class KubeStore(NamedTuple):
    """A state in a Kubernetes API."""

    namespace: str
    kubeconfig: str
    """Path of the kubeconfig; empty to use the pod's service account."""
    shards: Shards = ()
    """The pools of each shard; empty if one loop has all pools."""

    def api(self) -> ApiServer:
        """Return a client of the API server, which sends no call yet."""
        from provisioner.state.kube.connection import ApiServer

        return ApiServer(self._read_access, self.namespace)

    def _read_access(self) -> Access:
        from provisioner.state.kube import api_login

        # One provider config serves HF's host, which has the kubeconfig, and the loop's pod, which has an account.
        is_pod = "KUBERNETES_SERVICE_HOST" in os.environ and not os.path.exists(self.kubeconfig)
        return api_login.from_kubeconfig(self.kubeconfig) if self.kubeconfig and not is_pod else api_login.in_cluster()


def find_kube_store(directories: Directories, given: str = "") -> KubeStore | None:
    """Return the Kubernetes API that keeps the state; None if files keep it. ``given``: a value that takes precedence
    over the key STATE.

    Raises StateError for a wrong value, so that no other store is used by mistake. Raises TemplatesError or
    DirectoryError if the provider config cannot be read.
    """
    file = os.path.join(directories.conf, f"{directories.name}prov_config.json")
    config, problems, _ = directories.config_file(file)
    if wrong := next((problem for problem in problems if problem.where in STATE_KEYS), None):
        raise StateError(f"{file}: {wrong}. Correct it: the state is used only if its place is certain.")
    if given.startswith(KUBERNETES) and not re.fullmatch(PLACE, given):
        raise StateError(f"{given}: expected {KUBERNETES}NAMESPACE with the name of a namespace. No state was used.")
    namespace = given.removeprefix(KUBERNETES) if given else config.state_namespace
    if not namespace or (given and not given.startswith(KUBERNETES)):
        if config.state_shards:
            raise StateError(f"{file}: STATE_SHARDS: loops share only a state in a Kubernetes API. Set STATE, too.")
        return None
    kubeconfig = config.state_kubeconfig and os.path.join(directories.conf, os.path.expanduser(config.state_kubeconfig))
    return KubeStore(namespace, kubeconfig, config.state_shards)


def instance_of(store: KubeStore, directories: Directories) -> str:
    """Return the name under which a loop and an operator's commands find their state. Raises StateError if there are
    shards and PROVISIONER_SHARD does not name a shard."""
    if not store.shards:
        return directories.name
    from provisioner.hostfactory.shards import SHARD_VARIABLE, read_shard, shard_instance

    try:
        shard = read_shard(store.shards, directories.environment)
    except ValueError as error:
        raise StateError(str(error)) from error
    if shard is None:
        raise StateError(f"STATE_SHARDS: {len(store.shards)} loops share the pools. Name one by {SHARD_VARIABLE}.")
    return shard_instance(directories.name, shard)


def open_script_state(directories: Directories) -> ScriptState:
    """Return the state of a provider instance as its scripts use it. Raises StateError, TemplatesError or
    DirectoryError."""
    if (store := find_kube_store(directories)) is None:
        from provisioner.state.directory import StateDir

        return StateDir(directories.state)
    if store.shards:
        from provisioner.state.kube.shards import ShardedScriptState

        read_pools = partial(_pools_by_template, directories)
        return ShardedScriptState(store.api(), directories.name, store.shards, read_pools, directories.state)
    from provisioner.state.kube.script_state import KubeScriptState

    return KubeScriptState(store.api(), directories.name, directories.state)


def _pools_by_template(directories: Directories) -> dict[str, tuple[str, ...]]:
    from provisioner.hostfactory import templates

    provider = templates.load(directories.conf, directories.environment, directories.config_file)
    return {template.id: template.pools or (template.id,) for template in provider.templates}
