"""The choice of the store by the provider config."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioner.hostfactory.provider_config import Directories, TemplatesError
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateError
from provisioner.state.kube import api_login
from provisioner.state.kube.api_login import Access
from provisioner.state.kube.script_state import KubeScriptState
from provisioner.state.kube.shards import ShardedScriptState
from provisioner.state.opening import KubeStore, find_kube_store, instance_of, open_script_state
from tests.support.hostfactory.sites import template


def directories(place: Path, **config: object) -> Directories:
    (place / "gcp1prov_config.json").write_text(json.dumps(config))
    names = {"HF_PROVIDER_NAME": "gcp1", "HF_PROVIDER_CONFDIR": str(place), "HF_PROVIDER_WORKDIR": str(place)}
    return Directories(names)


@pytest.mark.parametrize("config", [{}, {"STATE": "files"}, {"STATE": ""}, {"STATE": None}])
def test_files_are_the_default(tmp_path: Path, config: dict[str, object]) -> None:
    opened = open_script_state(directories(tmp_path, **config))
    assert isinstance(opened, StateDir)
    assert opened.path == str(tmp_path)


def test_key_chooses_the_namespace_and_the_kubeconfig_beside_the_file(tmp_path: Path) -> None:
    given = directories(tmp_path, STATE="kubernetes:grid", STATE_KUBECONFIG="kubeconfig")
    assert find_kube_store(given) == KubeStore("grid", f"{tmp_path}/kubeconfig")
    assert isinstance(open_script_state(given), KubeScriptState)
    absolute = directories(tmp_path, STATE="kubernetes:grid", STATE_KUBECONFIG="/etc/kubeconfig")
    assert find_kube_store(absolute) == KubeStore("grid", "/etc/kubeconfig")
    assert find_kube_store(directories(tmp_path, STATE="kubernetes:grid")) == KubeStore("grid", "")


def test_given_place_wins_over_the_key(tmp_path: Path) -> None:
    assert find_kube_store(directories(tmp_path), "kubernetes:other") == KubeStore("other", "")
    assert find_kube_store(directories(tmp_path, STATE="kubernetes:grid"), "/var/lib/state") is None


@pytest.mark.parametrize(
    "value", ["kubernetes", "kubernetes:", "kubernetes:Grid", "kubernetes:a/b", "/dir", 7, ["files"]]
)
def test_wrong_place_is_refused_instead_of_using_files(tmp_path: Path, value: object) -> None:
    with pytest.raises(StateError, match=r'STATE: expected "files" or "kubernetes:NAMESPACE", got .* Correct it'):
        open_script_state(directories(tmp_path, STATE=value))


def test_wrong_kubeconfig_and_an_unreadable_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="STATE_KUBECONFIG: expected a text, got 7"):
        open_script_state(directories(tmp_path, STATE="kubernetes:grid", STATE_KUBECONFIG=7))
    broken = directories(tmp_path)
    (tmp_path / "gcp1prov_config.json").write_text("{")
    with pytest.raises(TemplatesError, match="not JSON"):
        open_script_state(broken)


def test_pod_without_the_kubeconfig_uses_its_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pod, file = Access("https://pod"), Access("https://file")
    monkeypatch.setattr(api_login, "in_cluster", lambda: pod)
    monkeypatch.setattr(api_login, "from_kubeconfig", lambda path: file)
    existing = tmp_path / "kubeconfig"
    existing.touch()
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    names = [KubeStore("g", path).api().name for path in ("", "/none", str(existing))]
    assert names == ["https://pod", "https://file", "https://file"]
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    names = [KubeStore("g", path).api().name for path in ("", "/none", str(existing))]
    assert names == ["https://pod", "https://pod", "https://file"]
    assert KubeStore("g", "").api().namespace == "g"


def test_loops_that_share_the_pools_have_names_of_their_own(tmp_path: Path) -> None:
    given = directories(tmp_path, STATE="kubernetes:grid", STATE_SHARDS=3)
    store = find_kube_store(given)
    assert store == KubeStore("grid", "", ((), (), ()))
    with pytest.raises(StateError, match=r"3 loops share the pools\. Name one by PROVISIONER_SHARD"):
        instance_of(store, given)
    given.environment = {**given.environment, "PROVISIONER_SHARD": "2"}
    assert instance_of(store, given) == "gcp1-s2"
    given.environment = {**given.environment, "PROVISIONER_SHARD": "3"}
    with pytest.raises(
        StateError, match="PROVISIONER_SHARD: expected the number of this loop's shard, 0 to 2, got '3'"
    ):
        instance_of(store, given)
    assert instance_of(KubeStore("grid", ""), given) == "gcp1"


def test_scripts_find_the_pools_of_shared_templates(tmp_path: Path) -> None:
    entries = [template("Wide", pools=["a", "b"]), template("Google", gcp_zone="z", gcp_instance_group="g")]
    (tmp_path / "gcp1prov_templates.json").write_text(json.dumps({"templates": entries}))
    state = open_script_state(directories(tmp_path, STATE="kubernetes:grid", STATE_SHARDS=[["a"], ["b", "Google"]]))
    assert isinstance(state, ShardedScriptState)
    assert state.pools() == {"Wide": ("a", "b"), "Google": ("Google",)}


def test_files_cannot_be_shared(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="STATE_SHARDS: loops share only a state in a Kubernetes API"):
        open_script_state(directories(tmp_path, STATE_SHARDS=2))
