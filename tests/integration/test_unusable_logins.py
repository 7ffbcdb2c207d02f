"""Kubeconfigs and Google credentials that cannot be used. The message is one sentence, which names the pool, the file
and what to do. No traceback is printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provisioner.backends import BackendError
from provisioner.backends.gke.login import connect
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.google_auth import google_credentials
from provisioner.model import ErrorClass
from tests.support.hostfactory.sites import SPEC, Site, template
from tests.support.waiting import PATIENCE

NESTED = "[" * 1500


def kubeconfig(cluster: Any, user: Any) -> str:
    """Return a context of this cluster and this user."""
    document = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    return json.dumps(document)


HTTP = {"server": "http://127.0.0.1:9"}
KUBECONFIGS = {
    "empty": "",
    "a list": "- a\n- b\n",
    "not YAML, in several lines": "a: [b\n",
    "no text": b"\xff\xfe\x00",
    "nested beyond all reason": NESTED,
    "without contexts": "kind: Config\n",
    "a context of nothing": "current-context: x\ncontexts: [{name: x}]\nusers: []\nclusters: []",
    "a server that is none": kubeconfig({"server": 7}, {}),
    "a server of another kind": kubeconfig({"server": "ftp://x"}, {}),
    "a user that is none": kubeconfig(HTTP, 3),
    "a plugin that is none": kubeconfig(HTTP, {"exec": {"command": 3, "apiVersion": "v1"}}),
    "a plugin with odd words": kubeconfig(HTTP, {"exec": {"command": "x", "apiVersion": "v1", "env": [3]}}),
    "an authority that is not there": kubeconfig({"server": "https://x", "certificate-authority": "/no/ca.pem"}, {}),
}


@pytest.mark.parametrize("content", KUBECONFIGS.values(), ids=KUBECONFIGS)
def test_a_kubeconfig_that_cannot_be_used_is_named_with_its_pool_in_one_line(
    tmp_path: Path, content: str | bytes
) -> None:
    path = tmp_path / "kube.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    text = refusal(tmp_path, kubeconfig=path)
    assert text.startswith(f"kubeconfig {path} cannot be used: ")
    assert text.endswith("correct it, or let pools.gke.kubeconfig or KUBECONFIG name another")


def test_a_kubeconfig_that_is_not_there_and_none_at_all_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refusal(tmp_path, kubeconfig=tmp_path / "k").startswith(f"kubeconfig {tmp_path / 'k'} cannot be")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    text = refusal(tmp_path)
    assert text.startswith("no kubeconfig is named, and this process is not in a pod of a cluster")
    assert text.endswith("let pools.gke.kubeconfig or KUBECONFIG name one, or set pools.gke.endpoint")


@pytest.mark.parametrize(
    ("endpoint", "ca_file", "words"),
    [
        ("http://[::1", None, "endpoint http://[::1 cannot be used: "),
        ("https://127.0.0.1", "no.pem", "ca_file no.pem cannot be used: "),
    ],
)
def test_an_endpoint_that_cannot_be_used_is_named(
    tmp_path: Path, endpoint: str, ca_file: str | None, words: str
) -> None:
    assert refusal(tmp_path, endpoint=endpoint, ca_file=ca_file).startswith(words)


def refusal(directory: Path, **settings: Any) -> str:
    """Return the message about a pool without a cluster."""
    (directory / "spec.yaml").write_text(SPEC)
    with pytest.raises(BackendError) as caught:
        connect(GkePool(name="gke", pod_spec=directory / "spec.yaml", **settings))
    assert caught.value.failure.error is ErrorClass.INVALID
    assert "\n" not in caught.value.failure.text
    return caught.value.failure.text


KEY_FILES = {
    "not JSON": "{",
    "empty": "",
    "a list": "[]",
    "no text": b"\xff\xfe",
    "without key": '{"type": "service_account"}',
    "an impersonation without an account": '{"type": "impersonated_service_account"}',
    "nested beyond all reason": "[" * 100_000,
    "a directory": None,
}


@pytest.mark.parametrize("named_by", ["the setting", "the environment"])
@pytest.mark.parametrize("content", KEY_FILES.values(), ids=KEY_FILES)
def test_google_credentials_that_cannot_be_used_are_named_in_one_line(
    tmp_path: Path, content: str | bytes | None, named_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key.json"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    assert_named(path, named_by, monkeypatch)


@pytest.mark.parametrize("named_by", ["the setting", "the environment"])
def test_google_credentials_that_are_not_there_are_named(
    tmp_path: Path, named_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_named(tmp_path / "key.json", named_by, monkeypatch)


def assert_named(path: Path, named_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the message begins with the file and ends with the fix."""
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    if named_by == "the environment":
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    with pytest.raises(BackendError) as caught:
        google_credentials(path if named_by == "the setting" else None)
    failure = caught.value.failure
    source = "'credentials'" if named_by == "the setting" else "GOOGLE_APPLICATION_CREDENTIALS"
    assert failure.error is ErrorClass.DENIED
    assert failure.text.startswith(f"no Google credentials: {path}, which {source} names, cannot be used: ")
    assert failure.text.endswith("let the pool's 'credentials' name a key file, or run 'gcloud auth "
                                 "application-default login'")  # fmt: skip
    assert "\n" not in failure.text


# --- every command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return two pools of pods and one of a group, with an initialised state directory."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "state").mkdir()
    pods = {"kind": "gke", "pod_spec": "spec.yaml", "kubeconfig": "kube.yaml"}
    group = {"kind": "mig", "project": "p", "zone": "us-central1-a", "group": "g"}
    made = Site(
        tmp_path,
        settings={"id": "demo", "listen": "127.0.0.1:0", "pools": {"pods": pods, "spare": pods, "group": group}},
        templates=[template("T", pools=["pods", "spare", "group"])],
    )
    made.settings["pools"]["spare"] = {**pods, "namespace": "spare"}
    return made


def call(site: Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as an operator does, without other credentials."""
    site.write()
    places = {"provisioner.yaml": str(site.path), "state": str(site.directory / "state")}
    named = {"GOOGLE_APPLICATION_CREDENTIALS": str(site.directory / "key.json")}
    hidden = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST")
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | named
    return subprocess.run(
        [sys.executable, "-m", "provisioner", *(places.get(word, word) for word in arguments)],
        env=environment,
        cwd=site.directory,
        capture_output=True,
        text=True,
        timeout=120 * PATIENCE,
        check=False,
    )


PLACE = ("--config", "provisioner.yaml", "--state-dir", "state")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("plan",), ("run", "--once")], ids=" ".join)
def test_a_command_that_needs_a_cluster_says_in_a_line_a_pool_what_is_wrong(site: Site, words: tuple[str, ...]) -> None:
    (site.directory / "kube.yaml").write_text(NESTED)
    ended = call(site, *words, *PLACE)
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("{")]
    assert (ended.returncode, ended.stdout) == (2, "")
    assert [line.partition(" cannot be used: ")[0] for line in lines] == [
        f"pool {name}: kubeconfig {site.directory / 'kube.yaml'}" for name in ("pods", "spare")
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [("run", "--once", *PLACE), ("check", "--live", "provisioner.yaml")], ids=["run --once", "check --live"]
)
def test_a_pool_without_google_credentials_is_named_with_the_file_and_is_a_problem(
    site: Site, command: tuple[str, ...]
) -> None:
    site.settings["pools"] = {"group": site.settings["pools"]["group"]}
    site.templates = [template("T", pools=["group"])]
    assert call(site, "init", *PLACE).returncode == 0
    ended = call(site, *command)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    words = f"no Google credentials: {site.directory / 'key.json'}, which GOOGLE_APPLICATION_CREDENTIALS names, cannot"
    lines = [line for line in (ended.stdout + ended.stderr).splitlines() if words in line]
    assert lines
    assert all("group" in line for line in lines)
