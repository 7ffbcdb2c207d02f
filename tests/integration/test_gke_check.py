"""The findings of `provisioner check --live`. The command sends a pod as a dry run and asks for its rights, but makes
no objects."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from provisioner.backends import place_clock
from provisioner.backends.gke.backend import GkeBackend
from provisioner.backends.gke.kind import KIND
from provisioner.backends.gke.live_check import RIGHTS, TRIED
from provisioner.commands.cli import run
from provisioner.commands.loop_service import Service
from provisioner.lab.cloud.server import Simulator
from provisioner.lab.cloud.world import Fault
from provisioner.model import Create
from provisioner.schema.setting_types import Site as Identity
from provisioner.settings.reload import Configuration
from provisioner.state.directory import StateDir
from tests.support.hostfactory.sites import Site, template
from tests.support.network.authority import Authority

SPACE = "grid"
SPEC = "containers: [{name: main, image: busybox, resources: {requests: {cpu: '4', memory: 8Gi}}}]\n"
ROLE = Path(__file__).parents[2] / "deploy" / "kustomize" / "base" / "rbac.yaml"


@pytest.fixture(scope="module")
def shared() -> Iterator[Simulator]:
    with Simulator(namespaces=[SPACE]) as running:
        yield running


@pytest.fixture
def cloud(shared: Simulator) -> Iterator[Simulator]:
    yield shared
    shared.impose([])


@pytest.fixture
def site(tmp_path: Path, cloud: Simulator) -> Site:
    (tmp_path / "spec.yaml").write_text(SPEC)
    body = {"kind": "gke", "namespace": SPACE, "pod_spec": "spec.yaml", "endpoint": cloud.kubernetes}
    return Site(tmp_path, settings={"id": "demo", "pools": {"pods": body}}, templates=[template("T", pools=["pods"])])


def checked(site: Site, capsys: pytest.CaptureFixture[str], code: int) -> list[dict[str, str]]:
    site.write()
    assert run(["check", "--live", str(site.path), "-o", "json"]) == code
    listed: list[dict[str, str]] = json.loads(capsys.readouterr().out)["findings"]
    return listed


def test_a_pool_in_order_is_fine_and_nothing_was_made(
    site: Site, cloud: Simulator, capsys: pytest.CaptureFixture[str]
) -> None:
    before = cloud.state()["calls"].get("pods.create", 0)
    assert checked(site, capsys, 0) == []
    assert cloud.state()["machines"] == []
    assert cloud.state()["calls"]["pods.create"] == before + 1


@pytest.mark.parametrize(("seconds", "words"), [(-600, "behind the place's"), (600, "ahead of the place's")])
def test_a_host_with_another_time_is_reported(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, seconds: float, words: str
) -> None:
    monkeypatch.setattr(
        place_clock, "time", SimpleNamespace(time=lambda: time.time() + seconds, monotonic=time.monotonic)
    )
    (finding,) = checked(site, capsys, 1)
    assert (finding["pool"], finding["severity"]) == ("pods", "error")
    assert words in finding["text"]


def test_an_invalid_amount_is_reported_in_the_server_s_words(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    text = "containers: [{name: main, image: busybox, resources: {requests: {cpu: -1}}}]\n"
    (site.directory / "spec.yaml").write_text(text)
    (finding,) = checked(site, capsys, 1)
    assert (finding["pool"], finding["severity"]) == ("pods", "error")
    for word in (str(site.directory / "spec.yaml"), "must be greater than or equal to 0", "correct spec.yaml"):
        assert word in finding["text"]


@pytest.mark.parametrize("amount", ["cpu: 4 cores", "memory: 8GB"])
def test_an_amount_that_no_server_reads_is_a_mistake_of_the_configuration(
    site: Site, capsys: pytest.CaptureFixture[str], amount: str
) -> None:
    site.write()
    text = f"containers: [{{name: main, image: busybox, resources: {{requests: {{{amount}}}}}}}]\n"
    (site.directory / "spec.yaml").write_text(text)
    assert run(["check", str(site.path)]) == 2
    name, _, value = amount.partition(": ")
    words = f"containers.0.resources.requests.{name}: expected an amount such as 4, 500m or 8Gi, got '{value}'"
    assert words in capsys.readouterr().err


def test_a_misspelt_field_is_refused_by_a_strict_server(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    (site.directory / "spec.yaml").write_text(f"nodeSelektor: {{a: b}}\n{SPEC}")
    (finding,) = checked(site, capsys, 1)
    assert 'strict decoding error: unknown field "spec.nodeSelektor": correct spec.yaml' in finding["text"]


def test_a_namespace_that_is_missing(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.settings["pools"]["pods"]["namespace"] = "nowhere"
    (finding,) = checked(site, capsys, 1)
    assert 'namespaces "nowhere" not found: make the namespace (kubectl create namespace nowhere)' in finding["text"]


@pytest.mark.parametrize(
    ("fault", "severity", "words"),
    [
        pytest.param(Fault("quota"), "error", "exceeded quota", id="a quota"),
        pytest.param(
            Fault("invalid", params={"message": 'admission webhook "x" denied the request: no'}),
            "error",
            "denied the request: no: a policy of the cluster refuses this pod, no right is missing: "
            "correct spec.yaml, or ask the administrator of namespace grid",
            id="a webhook",
        ),
        pytest.param(
            Fault("invalid", params={"message": 'admission webhook "x" does not support dry run'}),
            "warning",
            "cannot be tried: ",
            id="a webhook with effects",
        ),
        pytest.param(Fault("unavailable", "pods.create"), "error", "check again later", id="a server out of order"),
        pytest.param(
            Fault("denied", "pods.create"),
            "error",
            "may not create pods in namespace grid: bind the Role",
            id="no right to create",
        ),
        pytest.param(
            Fault("denied", r"pods\.(watch|delete)"), "error", "may not watch, delete pods", id="no right to watch"
        ),
        pytest.param(Fault("denied", "events.list"), "warning", "may not list events", id="no right to list events"),
        pytest.param(Fault("denied", "events.create"), "warning", "may not create events", id="none to create events"),
        pytest.param(Fault("denied", "namespaces.get"), "warning", "may not get namespaces", id="none to namespaces"),
    ],
)
def test_a_refusal_of_the_server_is_a_finding(
    site: Site, cloud: Simulator, capsys: pytest.CaptureFixture[str], fault: Fault, severity: str, words: str
) -> None:
    cloud.impose([fault])
    (finding,) = checked(site, capsys, severity == "error")
    assert finding["severity"] == severity
    assert words in finding["text"]


def test_the_right_to_create_events_is_not_asked_for_where_none_are_written(
    site: Site, cloud: Simulator, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud.impose([Fault("denied", "events.create")])
    site.settings["pools"]["pods"]["loss_events"] = False
    assert checked(site, capsys, 0) == []


def test_every_pool_is_tried_whatever_becomes_of_the_others(
    site: Site, cloud: Simulator, capsys: pytest.CaptureFixture[str]
) -> None:
    body = site.settings["pools"]["pods"]
    site.settings["pools"] = {
        "nowhere": body | {"namespace": "nowhere"},
        "silent": body | {"endpoint": "http://127.0.0.1:9"},
        "unknown": {"kind": "gke", "namespace": SPACE, "pod_spec": "spec.yaml", "kubeconfig": "none.yaml"},
        "pods": body,
        "typo": body | {"pod_spec": "typo.yaml"},
    }
    (site.directory / "typo.yaml").write_text(f"nodeSelektor: {{a: b}}\n{SPEC}")
    site.templates = [template("T", pools=list(site.settings["pools"]))]
    texts = {finding["pool"]: finding["text"] for finding in checked(site, capsys, 1)}
    assert texts.keys() == {"nowhere", "silent", "unknown", "typo"}
    assert texts["silent"].startswith("cannot be checked: ")
    assert "none.yaml cannot be used" in texts["unknown"]


def test_the_pod_that_is_tried_is_the_pod_that_would_be_made(
    site: Site, cloud: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = site.load()
    backend = KIND.factory(Identity("demo", "hf"))(settings.pools["pods"])
    assert isinstance(backend, GkeBackend)
    sent: list[tuple[Any, ...]] = []
    send = backend._send

    def noted(spec: Any, create: Create, query: Any = None) -> Any:
        sent.append((create, query))
        return send(spec, create, query)

    monkeypatch.setattr(backend, "_send", noted)
    try:
        assert backend.rehearse("T") == []
        ((tried, query),) = sent
        assert (query, tried.template, tried.pool, tried.name.startswith("hf-")) == (TRIED, "T", "pods", True)
        (outcome,) = backend.create([tried], lambda: True)
        assert outcome.failure is None, "the name is free: nothing was made"
        assert sent[1] == (tried, None)
    finally:
        backend.close()
        cloud.reset()


def test_the_rights_that_are_asked_for_are_those_of_the_role() -> None:
    (role,) = (document for document in yaml.safe_load_all(ROLE.read_text()) if document["kind"] == "Role")
    given = {resource: set(rule["verbs"]) for rule in role["rules"] for resource in rule["resources"]}
    assert given == {resource: set(verbs) for resource, verbs in RIGHTS.items()}


def test_a_running_loop_refuses_each_file_with_which_it_would_not_start(
    site: Site, cloud: Simulator, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    key, certificate = authority.signed("127.0.0.1")
    files = {name: tmp_path / name for name in ("kubeconfig", "token", "cert", "key", "bundle")}
    files["token"].write_text("secret")
    for name, content in {"key": key, "cert": certificate, "bundle": authority.file.read_bytes()}.items():
        files[name].write_bytes(content)
    files["kubeconfig"].write_bytes(Path(cloud.kubeconfig).read_bytes())
    del site.settings["pools"]["pods"]["endpoint"]
    site.settings["pools"]["pods"]["kubeconfig"] = "kubeconfig"
    site.settings["server"] = {"token_file": "token", "tls_cert": "cert", "tls_key": "key"}
    site.settings["ca_bundle"] = "bundle"
    site.write()
    configuration = Configuration(site.path, {})
    with patch.dict(os.environ):
        Service(configuration, StateDir(str(tmp_path)))
    begins = {
        "kubeconfig": f"pool pods: kubeconfig {files['kubeconfig']} cannot be used: ",
        "token": f"server.token_file {files['token']}: ",
        "cert": f"server.tls_cert {files['cert']} with server.tls_key ",
        "key": f"server.tls_cert {files['cert']} with server.tls_key {files['key']}: ",
        "bundle": f"ca_bundle {files['bundle']} cannot be used: ",
        "spec.yaml": f"{site.path}: 1 problem\n  pools.pods.pod_spec: 'spec.yaml': ",
    }
    for name, begin in begins.items():
        file = tmp_path / name
        right = file.read_bytes()
        file.write_bytes(b"")
        configuration.refresh(configuration.limits, None)
        assert configuration.refused.startswith(begin)
        file.write_bytes(right)
        configuration.refresh(configuration.limits, None)
        assert configuration.refused == ""


def test_a_start_tries_no_pod(site: Site, cloud: Simulator, tmp_path: Path) -> None:
    """A start must not try a pod, because a start has to be quick. A fault of the pods is reported later, when a
    machine is wanted."""
    site.settings["listen"] = "127.0.0.1:0"
    site.write()
    before = cloud.state()["calls"]
    service = Service(Configuration(site.path, {}), StateDir(str(tmp_path)))
    service._check_places()
    assert cloud.state()["calls"] == before
