"""``provisioner configmap``: what HostFactory's directory holds, as a manifest that holds no key."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from provisioner.commands import cli
from provisioner.hostfactory import templates
from tests.support.clients.terraform import RENDERED
from tests.support.manifests import KUSTOMIZE, Manifest, built, only
from tests.support.network.authority import Authority

CONFIG = KUSTOMIZE / "base" / "config"
AUTHORITY = RENDERED / "cluster-ca.crt"


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_PROVIDER_CONFDIR", str(tmp_path / "conf"))
    return shutil.copytree(CONFIG, tmp_path / "conf")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Manifest:
    assert cli.run(["configmap", *arguments]) == 0
    return dict(yaml.safe_load(capsys.readouterr().out))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.run(["configmap", *arguments]) == 2
    return capsys.readouterr().err


def test_it_is_the_one_that_the_manifests_hold(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, ours = printed(capsys), only(built("base"), "ConfigMap")

    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    assert manifest["data"] == ours["data"] == {path.name: path.read_text() for path in conf.iterdir()}
    assert manifest["metadata"] == {key: ours["metadata"][key] for key in ("name", "namespace")}


def test_it_may_have_another_name(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = printed(capsys, "--config", str(conf), "--name", "a", "--namespace", "b")

    assert manifest["metadata"] == {"name": "a", "namespace": "b"}


def test_what_is_mounted_has_the_digest_of_what_is_here(
    conf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = conf / "gkeinstprov_templates.json"
    file.write_text("\ufeff" + json.dumps(json.loads(file.read_text())).replace(" ", "  \r\n"))
    for name, text in printed(capsys)["data"].items():
        (tmp_path / name).write_text(text)

    assert templates.load(tmp_path, {}).digests == templates.load(conf, {}).digests


def test_no_login_and_no_key_is_in_it(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a comment names what the pod has to have from elsewhere."""
    set_of_pool(conf, endpoint="https://1.2.3.4", credentials="key.json")
    with (conf / "provisioner.yaml").open("a") as file:
        file.write("server: {token_file: token}\n")
    for name in ("key.json", "token"):
        (conf / name).write_text("a secret")

    assert cli.run(["configmap"]) == 0
    said = capsys.readouterr().out
    assert "a secret" not in said
    assert f"# Without {conf / 'key.json'}, the credentials of pool gke-main, which may hold a key" in said


@pytest.mark.parametrize("place", ["cluster-ca.crt", "trust/cluster-ca.crt"])
def test_a_cluster_s_authority_comes_along(
    conf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    """A certificate is no secret, and without it the pod reaches no API server by an endpoint."""
    (conf / "trust").mkdir()
    shutil.copy(AUTHORITY, conf / place)
    set_of_pool(conf, endpoint="https://1.2.3.4", ca_file=place)
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    assert cli.run(["configmap"]) == 0
    said = capsys.readouterr().out
    assert "# With cluster-ca.crt, the ca_file of pool gke-main.\n" in said
    for name, text in yaml.safe_load(said)["data"].items():
        (mounted / name).write_text(text)

    assert (mounted / "cluster-ca.crt").read_text() == AUTHORITY.read_text()
    (pool,) = yaml.safe_load((mounted / "provisioner.yaml").read_text())["pools"].values()
    assert pool["ca_file"] == "cluster-ca.crt"
    assert cli.run(["check", str(mounted / "provisioner.yaml")]) == 0


@pytest.mark.parametrize("place", ["all.pem", "trust/all.pem"])
def test_the_authorities_of_all_clients_come_along(
    conf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    """Without them the pod trusts no proxy that opens TLS; one that lies elsewhere comes to lie beside the rest."""
    trust = tmp_path / "trust"
    trust.mkdir()
    bundle = conf / place if place == "all.pem" else tmp_path / place
    bundle.write_bytes(Authority(trust).file.read_bytes())
    with (conf / "provisioner.yaml").open("a") as file:
        file.write(f"ca_bundle: {place if place == 'all.pem' else bundle} # of the bank\n")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    assert cli.run(["configmap"]) == 0
    said = capsys.readouterr().out
    assert "# With all.pem, the ca_bundle.\n" in said
    for name, text in yaml.safe_load(said)["data"].items():
        (mounted / name).write_text(text)

    assert (mounted / "all.pem").read_bytes() == bundle.read_bytes()
    assert yaml.safe_load((mounted / "provisioner.yaml").read_text())["ca_bundle"] == "all.pem"
    bundle.unlink()
    assert cli.run(["check", str(mounted / "provisioner.yaml")]) == 0


def test_an_authority_of_another_encoding_is_named(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (conf / "cluster-ca.crt").write_bytes("# für alle\n".encode("latin-1") + AUTHORITY.read_bytes())
    set_of_pool(conf, endpoint="https://1.2.3.4", ca_file="cluster-ca.crt")

    assert "cluster-ca.crt: line 1 is no UTF-8 (byte 0xfc); save the file as UTF-8" in refused(capsys)


def test_an_authority_with_its_key_is_refused(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = "-----BEGIN EC PRIVATE KEY-----\n"
    (conf / "cluster-ca.crt").write_text(AUTHORITY.read_text() + key)
    set_of_pool(conf, endpoint="https://1.2.3.4", ca_file="cluster-ca.crt")

    assert "cluster-ca.crt: it holds a private key" in refused(capsys)


def set_of_pool(conf: Path, **more: str) -> None:
    """Give the only pool more settings."""
    settings = yaml.safe_load((conf / "provisioner.yaml").read_text())
    settings["pools"]["gke-main"] |= more
    (conf / "provisioner.yaml").write_text(yaml.safe_dump(settings))


def test_pod_specs_in_directories_come_to_lie_beside_provisioner_yaml(
    conf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (conf / "pods").mkdir()
    (conf / "pod-spec.yaml").rename(conf / "pods" / "pod-spec.yaml")
    file, mounted = conf / "provisioner.yaml", tmp_path / "mounted"
    written = file.read_text()
    file.write_text(written.replace("pod-spec.yaml", "'pods/pod-spec.yaml' # of the grid"))
    mounted.mkdir()
    for name, text in printed(capsys)["data"].items():
        (mounted / name).write_text(text)

    assert {path.name for path in mounted.iterdir()} == {path.name for path in CONFIG.iterdir()}
    assert (mounted / file.name).read_text() == written.replace("pod-spec.yaml", '"pod-spec.yaml" # of the grid')
    assert cli.run(["check", str(mounted / file.name)]) == 0


def test_two_files_of_one_name_are_refused(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (conf / "pods").mkdir()
    shutil.copy(conf / "pod-spec.yaml", conf / "pods")
    with (conf / "provisioner.yaml").open("a") as file:
        file.write("  other: {kind: gke, namespace: other, pod_spec: pods/pod-spec.yaml, max_machines: 1}\n")

    assert "another file has this name" in refused(capsys)


def test_a_value_that_stands_elsewhere_is_refused_with_its_setting(
    conf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (conf / "pods").mkdir()
    (conf / "pod-spec.yaml").rename(conf / "pods" / "pod-spec.yaml")
    text = (conf / "provisioner.yaml").read_text()
    (conf / "provisioner.yaml").write_text(text.replace("pod-spec.yaml", "&spec pods/pod-spec.yaml"))

    assert "pools.gke-main.pod_spec: a ConfigMap has no directories" in refused(capsys)


def test_a_name_that_is_none_is_refused(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (conf / "pod-spec.yaml").rename(conf / "pod spec.yaml")
    text = (conf / "provisioner.yaml").read_text()
    (conf / "provisioner.yaml").write_text(text.replace("pod-spec.yaml", "pod spec.yaml"))

    assert "rename it" in refused(capsys)


def test_more_than_a_configmap_holds_is_refused(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = conf / "gkeinstprov_templates.json"
    document = json.loads(file.read_text())
    document["templates"] += [{**document["templates"][0], "templateId": f"T{number}"} for number in range(6000)]
    file.write_text(json.dumps(document))

    assert "a ConfigMap holds 1048576" in refused(capsys)


def test_a_configuration_with_a_mistake_makes_none(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (conf / "provisioner.yaml").open("a") as file:
        file.write("nonsense: 1\n")

    assert "nonsense: unknown setting" in refused(capsys)
