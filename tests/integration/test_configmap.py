"""``provisioner configmap`` prints a manifest with the content of HostFactory's directory, but without keys."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from provisioner.backends import registry
from provisioner.commands import cli
from provisioner.hostfactory import templates
from tests.support.clients.terraform import RENDERED
from tests.support.manifests import KUSTOMIZE, Manifest, built, only
from tests.support.network.authority import Authority
from tests.support.third_kind import install

CONFIG = KUSTOMIZE / "base" / "config"
AUTHORITY = RENDERED / "cluster-ca.crt"


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_PROVIDER_CONFDIR", str(tmp_path / "conf"))
    return shutil.copytree(CONFIG, tmp_path / "conf")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Manifest:
    assert cli.run(["configmap", *arguments]) == 0
    return dict(yaml.safe_load(capsys.readouterr().out))


def mounted_in(directory: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Write the files of the printed ConfigMap into a directory, as a pod would mount them. Return the directory."""
    directory.mkdir()
    for name, text in printed(capsys)["data"].items():
        (directory / name).write_text(text)
    return directory


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.run(["configmap", *arguments]) == 2
    return capsys.readouterr().err


def test_it_is_the_one_that_the_manifests_hold(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, ours = printed(capsys), only(built("base"), "ConfigMap")
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    assert manifest["data"] == ours["data"] == {path.name: path.read_text() for path in conf.iterdir()}
    assert manifest["metadata"] == {key: ours["metadata"][key] for key in ("name", "namespace")}
    named = printed(capsys, "--config", str(conf), "--name", "a", "--namespace", "b")
    assert named["metadata"] == {"name": "a", "namespace": "b"}


def test_the_sources_of_demand_come_along(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (conf / "demand.yaml").write_text("sources: {base: {kind: fixed, template: GkePod, machines: 5}}\n")
    assert printed(capsys)["data"]["demand.yaml"] == (conf / "demand.yaml").read_text()


def test_mounted_files_have_the_digest_of_the_files_here(
    conf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = conf / "gkeinstprov_templates.json"
    file.write_text("\ufeff" + json.dumps(json.loads(file.read_text())).replace(" ", "  \r\n"))
    mounted = mounted_in(tmp_path / "mounted", capsys)
    assert templates.load(mounted, {}).digests == templates.load(conf, {}).digests


def test_no_login_and_no_key_is_in_it(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ConfigMap must contain no login and no key. A comment must name each file that was left out."""
    set_of_pool(conf, endpoint="https://1.2.3.4", credentials="key.json")
    with (conf / "provisioner.yaml").open("a") as file:
        file.write("server: {token_file: token}\n")
    for name in ("key.json", "token"):
        (conf / name).write_text("a secret")
    assert cli.run(["configmap"]) == 0
    output = capsys.readouterr().out
    assert "a secret" not in output
    assert f"# Left out: {conf / 'key.json'}, the credentials of pool gke-main, which may hold a key" in output


def test_of_a_kind_that_is_installed_only_files_marked_as_carried_are_in_it(
    conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Expect only those files of a pool that its kind marks as fit for a ConfigMap. Any other file may be a secret,
    even a file that the kind requires."""
    monkeypatch.syspath_prepend(install(tmp_path / "installed"))
    registry.get_kind.cache_clear()
    settings = yaml.safe_load((conf / "provisioner.yaml").read_text())
    settings["pools"]["yard-a"] = {"kind": "yard", "yard": "north", "key": "key", "plan": "plan", "map": "map"}
    (conf / "provisioner.yaml").write_text(yaml.safe_dump(settings))
    for name in ("key", "plan", "map"):
        (conf / name).write_text(f"content of {name}")
    assert cli.run(["configmap"]) == 0
    output = capsys.readouterr().out
    assert "content of map" in output
    for name in ("key", "plan"):
        assert f"content of {name}" not in output
        assert f"# Left out: {conf / name}, the {name} of pool yard-a, which may hold a key; the pod" in output


@pytest.mark.parametrize("place", ["all.pem", "trust/all.pem"])
@pytest.mark.parametrize("of", ["a cluster", "all clients"])
def test_authorities_come_along(
    conf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, of: str
) -> None:
    """Expect the certificates of authorities in the ConfigMap, because they are not secret. The pod needs them for an
    API server, or for a proxy that opens TLS. The ConfigMap has no directories, so a certificate from a subdirectory
    moves beside the other files."""
    (tmp_path / "trust").mkdir()
    (conf / "trust").mkdir()
    bundle = conf / place
    bundle.write_bytes(Authority(tmp_path / "trust").file.read_bytes())
    if of == "a cluster":
        set_of_pool(conf, endpoint="https://1.2.3.4", ca_file=place)
    else:
        with (conf / "provisioner.yaml").open("a") as file:
            file.write(f"ca_bundle: {place} # of the bank\n")
    assert cli.run(["configmap"]) == 0
    setting = "ca_file of pool gke-main" if of == "a cluster" else "ca_bundle"
    assert f"# With all.pem, the {setting}.\n" in capsys.readouterr().out
    mounted = mounted_in(tmp_path / "mounted", capsys)
    assert (mounted / "all.pem").read_bytes() == bundle.read_bytes()
    settings = yaml.safe_load((mounted / "provisioner.yaml").read_text())
    assert (settings["pools"]["gke-main"].get("ca_file") or settings["ca_bundle"]) == "all.pem"
    bundle.unlink()
    assert cli.run(["check", str(mounted / "provisioner.yaml")]) == 0


def set_of_pool(conf: Path, **more: str) -> None:
    """Add settings to the only pool."""
    settings = yaml.safe_load((conf / "provisioner.yaml").read_text())
    settings["pools"]["gke-main"] |= more
    (conf / "provisioner.yaml").write_text(yaml.safe_dump(settings))


def test_pod_specs_in_directories_come_to_lie_beside_provisioner_yaml(
    conf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (conf / "pods").mkdir()
    (conf / "pod-spec.yaml").rename(conf / "pods" / "pod-spec.yaml")
    file = conf / "provisioner.yaml"
    written = file.read_text()
    file.write_text(written.replace("pod-spec.yaml", "'pods/pod-spec.yaml' # of the grid"))
    mounted = mounted_in(tmp_path / "mounted", capsys)
    assert {path.name for path in mounted.iterdir()} == {path.name for path in CONFIG.iterdir()}
    assert (mounted / file.name).read_text() == written.replace("pod-spec.yaml", '"pod-spec.yaml" # of the grid')
    assert cli.run(["check", str(mounted / file.name)]) == 0


def change(conf: Path, old: str, new: str) -> None:
    text = (conf / "provisioner.yaml").read_text()
    (conf / "provisioner.yaml").write_text(text.replace(old, new))


def an_authority(conf: Path, content: bytes) -> None:
    (conf / "cluster-ca.crt").write_bytes(content)
    set_of_pool(conf, endpoint="https://1.2.3.4", ca_file="cluster-ca.crt")


def two_of_one_name(conf: Path) -> None:
    (conf / "pods").mkdir()
    shutil.copy(conf / "pod-spec.yaml", conf / "pods")
    with (conf / "provisioner.yaml").open("a") as file:
        file.write("  other: {kind: gke, namespace: other, pod_spec: pods/pod-spec.yaml, max_machines: 1}\n")


def a_value_elsewhere(conf: Path) -> None:
    (conf / "pods").mkdir()
    (conf / "pod-spec.yaml").rename(conf / "pods" / "pod-spec.yaml")
    change(conf, "pod-spec.yaml", "&spec pods/pod-spec.yaml")


def a_name_that_is_none(conf: Path) -> None:
    (conf / "pod-spec.yaml").rename(conf / "pod spec.yaml")
    change(conf, "pod-spec.yaml", "pod spec.yaml")


def too_much(conf: Path) -> None:
    file = conf / "gkeinstprov_templates.json"
    document = json.loads(file.read_text())
    document["templates"][0]["comment"] = "x" * 1048576
    file.write_text(json.dumps(document))


KEY = b"-----BEGIN EC PRIVATE KEY-----\n"
REFUSED = {
    "an authority of another encoding": (
        lambda conf: an_authority(conf, "# für alle\n".encode("latin-1")),
        "cluster-ca.crt: line 1 is no UTF-8 (byte 0xfc); save the file as UTF-8",
    ),
    "an authority with its key": (
        lambda conf: an_authority(conf, AUTHORITY.read_bytes() + KEY),
        "cluster-ca.crt: contains a private key",
    ),
    "two files of one name": (two_of_one_name, "another file has this name"),
    "a value that stands elsewhere": (
        a_value_elsewhere,
        "pools.gke-main.pod_spec: a ConfigMap has no directories",
    ),
    "a name that is none": (a_name_that_is_none, "rename the file"),
    "more than a ConfigMap holds": (too_much, "a ConfigMap holds 1048576"),
    "a configuration with a mistake": (
        lambda conf: change(conf, "pools:", "nonsense: 1\npools:"),
        "nonsense: unknown setting",
    ),
}


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(conf: Path, make: Callable[[Path], None], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    make(conf)
    assert words in refused(capsys)
