"""What `check` warns of without asking any cloud: fields, files, pools and timings that nobody can have meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioner.backends.gke.pod_fields import unknown_fields
from provisioner.commands.cli import run
from tests.support.hostfactory.sites import Site, small_site

MAIN = "containers: [{name: main, image: busybox%s}]\n"


def warnings(site: Site, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What is said of the pools."""
    site.write()
    assert run(["check", str(site.path), "-o", "json"]) == 0
    listed: list[str] = json.loads(capsys.readouterr().out)["warnings"]
    return [line for line in listed if not line.startswith("template ")]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return small_site(tmp_path)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        pytest.param(MAIN % "", [], id="nothing"),
        pytest.param("nodeSelektor: {a: b}\n" + MAIN % "", ["spec.nodeSelektor", "mean 'nodeSelector'?"], id="a field"),
        pytest.param(
            MAIN % ", ressources: {}", ["spec.containers[0].ressources", "mean 'resources'?"], id="of a container"
        ),
        pytest.param(
            MAIN % ", resources: {request: {cpu: 1}}", ["containers[0].resources.request:", "'requests'"], id="deeper"
        ),
        pytest.param("zzz: 1\n" + MAIN % "", ["spec.zzz: no pod has such a field"], id="nothing is near"),
        pytest.param(
            "metadata: {label: {a: b}}\nspec: {containers: [{name: main, image: busybox}]}\n",
            ["metadata.label", "'labels'"],
            id="of a manifest",
        ),
        pytest.param(
            "restartPolicy: Always\n" + MAIN % "", ["spec.restartPolicy: 'Always'", "leave it out"], id="restarted"
        ),
        pytest.param(
            "nodeSelector: {anything: goes}\nvolumes: [{name: v, emptyDir: {sizeLimit: 1Gi}}]\n" + MAIN % "",
            [],
            id="mappings with free keys, and what models nest",
        ),
    ],
)
def test_a_pod_spec_that_says_what_no_pod_has(
    site: Site, capsys: pytest.CaptureFixture[str], spec: str, words: list[str]
) -> None:
    (site.directory / "spec.yaml").write_text(spec)
    listed = warnings(site, capsys)
    assert len(listed) == bool(words)
    for word in words:
        assert listed[0].startswith("pools.gke-main.pod_spec: 'spec.yaml': ")
        assert word in listed[0]


def test_every_unknown_field_is_named() -> None:
    pod = {"spec": {"a1": 1, "containers": [{}, {"b2": 1, "env": [{"c3": 1}]}], "volumes": "no list"}, "d4": {}}
    paths = [field.path for field in unknown_fields(pod)]
    assert paths == ["spec.a1", "spec.containers[1].b2", "spec.containers[1].env[0].c3", "d4"]


def test_files_that_are_not_there(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.settings["pools"]["gke-main"]["kubeconfig"] = "kube/config"
    site.settings["pools"]["mig-a"]["credentials"] = "key.json"
    listed = warnings(site, capsys)
    assert listed == [
        f"pools.gke-main.kubeconfig: no such file: '{site.directory}/kube/config'",
        f"pools.mig-a.credentials: no such file: '{site.directory}/key.json'",
    ]
    (site.directory / "key.json").write_text("{}")
    assert len(warnings(site, capsys)) == 1


def test_a_kubeconfig_of_several_files_is_there_if_one_is(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", f"{site.directory}/none:{site.directory}/one")
    assert len(warnings(site, capsys)) == 1
    (site.directory / "one").write_text("{}")
    assert warnings(site, capsys) == []


def test_a_pool_that_no_template_uses(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.templates[0]["pools"] = ["mig-a"]
    (listed,) = warnings(site, capsys)
    assert listed.startswith("pools.gke-main: no template uses it")


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        pytest.param({"lag_seconds": 2}, True, id="Google's own"),
        pytest.param({"lag_seconds": 2, "endpoint": "https://compute.example"}, True, id="by another way"),
        pytest.param({"lag_seconds": 2, "endpoint": "http://127.0.0.1:9"}, False, id="the embedded cloud"),
        pytest.param({"lag_seconds": 30}, False, id="as long as lists may lag"),
        pytest.param({}, False, id="the default"),
    ],
)
def test_the_timings_of_a_demonstration_on_a_real_cloud(
    site: Site, capsys: pytest.CaptureFixture[str], settings: dict[str, object], warned: bool
) -> None:
    site.settings["pools"]["mig-a"] |= settings
    listed = warnings(site, capsys)
    assert [line.startswith("pools.mig-a.lag_seconds: 2 is for the embedded cloud") for line in listed] == [
        True
    ] * warned
