"""The sample of a pod that is a worker of a Ray cluster."""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

SAMPLE = Path(__file__).parents[4] / "config" / "places" / "ray-worker-pod.yaml"


@pytest.mark.parametrize("version", ["1.27", kubernetes_validate.latest_version()])
def test_the_pod_has_only_fields_of_pods_and_stays_with_ray(version: str) -> None:
    spec = yaml.safe_load(SAMPLE.read_text())
    kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", "spec": spec}, version, strict=True)
    assert "ray start" in spec["containers"][0]["args"][0]
    assert "--block" in spec["containers"][0]["args"][0]
