"""The six compute classes. Each class has a template whose pods select the class. A pod that is made has all fields of
its pool's pod spec file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from provisioner.backends.gke.settings import GkePool
from provisioner.lab.cloud.server import Simulator
from tests.support.clouds.kube_cloud import SPACE, url
from tests.support.manifests import GKE, KUSTOMIZE, Manifest, built, write_configuration
from tests.support.passing import made_by, missing_from, pools_of

CLASSES = [f"{aim}-{what}" for aim in ("performance", "cost", "spot") for what in ("cpu", "gpu")]


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    with Simulator(namespaces=[SPACE]) as running:
        yield running


@pytest.fixture(scope="module")
def manifests() -> list[Manifest]:
    return built(GKE, "compute-classes")


@pytest.fixture(scope="module")
def classes(manifests: list[Manifest]) -> dict[str, Manifest]:
    return {one["metadata"]["name"]: one["spec"] for one in manifests if one["kind"] == "ComputeClass"}


@pytest.fixture(scope="module")
def pools(manifests: list[Manifest], tmp_path_factory: pytest.TempPathFactory) -> dict[str, GkePool]:
    directory = tmp_path_factory.mktemp("conf")
    write_configuration(manifests, directory)
    return {pool.name: pool for pool in pools_of(directory)}


def spec_of(pool: GkePool) -> dict[str, Any]:
    """Return the content of a pool's pod spec file."""
    return dict(yaml.safe_load(pool.pod_spec.read_text()))


def test_there_are_six_and_each_has_a_pool(classes: dict[str, Manifest], pools: dict[str, GkePool]) -> None:
    assert sorted(classes) == sorted(CLASSES) == sorted(pools)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_a_fallback_and_moves_no_machine(classes: dict[str, Manifest], name: str) -> None:
    spec = classes[name]
    spot = [rule.get("spot", False) for rule in spec["priorities"]]

    assert len(spec["priorities"]) > 1
    assert spec["activeMigration"] == {"optimizeRulePriority": False}, "HostFactory would lose what GKE moves"
    assert all(("gpu" in rule) == name.endswith("gpu") for rule in spec["priorities"])
    assert spot == sorted(spot, reverse=True)
    assert (spot[0], spot[-1]) == (name.startswith("spot"), False)


@pytest.mark.parametrize("name", CLASSES)
def test_the_pods_of_a_class_select_it_and_bear_the_taints_of_its_nodes(pools: dict[str, GkePool], name: str) -> None:
    spec = spec_of(pools[name])
    tolerated = {one["key"]: one.get("value") for one in spec["tolerations"]}
    resources = spec["containers"][0]["resources"]
    gpus = {kind: amounts.get("nvidia.com/gpu") for kind, amounts in resources.items()}

    assert spec["nodeSelector"] == {"cloud.google.com/compute-class": name}
    assert tolerated["cloud.google.com/compute-class"] == name
    assert ("nvidia.com/gpu" in tolerated) == name.endswith("gpu")
    assert gpus == dict.fromkeys(["requests", "limits"], "1" if name.endswith("gpu") else None)


@pytest.mark.parametrize("name", CLASSES)
def test_a_pod_of_a_class_is_made_as_its_file_says(pools: dict[str, GkePool], simulator: Simulator, name: str) -> None:
    def read(pod: str) -> dict[str, Any]:
        return dict(requests.get(url(simulator, f"/{pod}"), timeout=30).json())

    simulator.reset()
    made = made_by(pools[name], Path(simulator.kubeconfig), read)

    assert missing_from(made["spec"], spec_of(pools[name])) == []
    assert missing_from(made["spec"], {**spec_of(pools[name]), "nodeSelector": {"a": "b"}}) != []


def test_the_pod_of_a_queue_keeps_its_label_and_its_annotation(simulator: Simulator, tmp_path: Path) -> None:
    def read(pod: str) -> dict[str, Any]:
        return dict(requests.get(url(simulator, f"/{pod}"), timeout=30).json())

    simulator.reset()
    write_configuration(built(GKE, "kueue"), tmp_path)
    (pool,) = pools_of(tmp_path)
    made = made_by(pool, Path(simulator.kubeconfig), read)
    queue = next(
        one
        for one in yaml.safe_load_all((KUSTOMIZE / "components/kueue/kueue.yaml").read_text())
        if one["kind"] == "LocalQueue"
    )["metadata"]

    assert missing_from(made, spec_of(pool)) == []
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == queue["name"]
    assert made["metadata"]["namespace"] == queue["namespace"]
