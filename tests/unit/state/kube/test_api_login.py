"""Kubeconfigs, accounts of pods, and the choice of a proxy."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.state.errors import StateDenied, StateError, StateUnreadable
from provisioner.state.kube import api_login
from provisioner.state.kube.api_login import Access, from_kubeconfig, in_cluster, proxy_for


def kubeconfig(user: dict[str, Any], **cluster: Any) -> dict[str, Any]:
    return {
        "clusters": [
            {"name": "other", "cluster": {"server": "https://wrong"}},
            {"name": "c", "cluster": {"server": "https://kube:6443", **cluster}},
        ],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "grid"}}],
        "current-context": "x",
    }


def test_kubeconfig_is_read_as_json_and_as_yaml(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    document = kubeconfig({"token": "secret"}, **{"tls-server-name": "n", "proxy-url": "http://p:1"})
    expected = Access("https://kube:6443", "grid", token="secret", tls_server_name="n", proxy="http://p:1")
    for text in (json.dumps(document), yaml.safe_dump(document)):
        path.write_text(text)
        assert from_kubeconfig(str(path)) == expected


def test_files_are_beside_the_kubeconfig_and_data_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"{b64encode(b'-----').decode()[:4]}\n{b64encode(b'-----BEGIN').decode()[4:]}\n"  # may have several lines
    user = {"tokenFile": "token", "client-certificate": "/a.crt", "client-key": "a.key", "client-key-data": text}
    cluster = {"certificate-authority": "ca.crt", "certificate-authority-data": text, "insecure-skip-tls-verify": True}
    Path("kubeconfig").write_text(json.dumps(kubeconfig(user, **cluster)))
    found = from_kubeconfig("kubeconfig")
    assert found.token_file == f"{tmp_path}/token"
    assert (found.certificate, found.key, found.authority) == ("/a.crt", "-----BEGIN", "-----BEGIN")
    assert found.is_insecure


@pytest.mark.parametrize("plugin", ["exec", "auth-provider"])
def test_plugins_are_refused_with_what_to_do(tmp_path: Path, plugin: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig({plugin: {"command": "gke-gcloud-auth-plugin"}})))
    with pytest.raises(StateDenied, match=rf"kubeconfig: the login by `{plugin}` is refused, .* `tokenFile: FILE`"):
        from_kubeconfig(str(path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no YAML"),
        ("[]", "this kubeconfig lacks"),
        ("{}", "this kubeconfig lacks 'current-context'"),
        ("", "this kubeconfig lacks 'current-context'"),
        ("current-context: ''\ncontexts: null\n", "lacks 'contexts: '"),
        (json.dumps(kubeconfig({}) | {"clusters": []}), "lacks 'clusters: c'"),
        (json.dumps(kubeconfig({}) | {"users": [{"name": "u", "user": None}]}), "lacks 'users: u'"),
        (json.dumps(kubeconfig({"client-key-data": "-"})), "client-key-data is no base64"),
    ],
)
def test_damaged_kubeconfig_is_unreadable(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(StateUnreadable, match=words):
        from_kubeconfig(str(path))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(StateDenied, match=r"none: cannot be read: No such file"):
        from_kubeconfig(str(tmp_path / "none"))
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(StateDenied, match=r"binary: cannot be read: it is no text"):
        from_kubeconfig(str(tmp_path / "binary"))


def test_pod_uses_its_own_account_without_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_login, "ACCOUNT", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(StateDenied, match="STATE_KUBECONFIG"):
        in_cluster()
    (tmp_path / "namespace").write_text("grid\n")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    for host, server in (("10.0.0.1", "https://10.0.0.1:6443"), ("fd00::1", "https://[fd00::1]:6443")):
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        found = in_cluster()
        assert (found.server, found.namespace, found.token_file) == (server, "grid", f"{tmp_path}/token")
        assert proxy_for(found, host, 6443) == ""


@pytest.mark.parametrize(
    ("excluded", "host", "proxied"),
    [
        ("", "kube.bank.test", True),
        ("bank.test", "kube.bank.test", False),
        (".bank.test", "kube.bank.test", False),
        ("*.bank.test", "kube.bank.test", False),
        ("a, kube.bank.test", "kube.bank.test", False),
        ("ank.test", "kube.bank.test", True),
        ("*", "kube.bank.test", False),
        ("10.0.0.0/8", "10.1.2.3", False),
        ("10.0.0.0/8", "11.1.2.3", True),
        ("10.0.0.0/8,wrong/8", "kube.bank.test", True),
        ("10.1.2.3:443, other:1", "10.1.2.3", False),
        ("Kube.bank.test:443", "kube.bank.test", False),
        (".bank.test:443", "kube.bank.test", False),
        ("kube.bank.test:6443", "kube.bank.test", True),
        ("", "localhost", False),
    ],
)
def test_no_proxy_names_hosts_domains_and_networks(
    excluded: str, host: str, proxied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("https_proxy", "no_proxy", "HTTPS_PROXY_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", excluded)
    assert proxy_for(Access(f"https://{host}"), host, 443) == ("http://proxy:3128" if proxied else "")


def test_proxy_may_be_in_a_file_or_in_the_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proxy").write_text("http://file:1\n")
    monkeypatch.setenv("HTTPS_PROXY_FILE", str(tmp_path / "proxy"))
    monkeypatch.setenv("HTTPS_PROXY", "http://variable:1")
    assert proxy_for(Access("https://kube"), "kube", 443) == "http://file:1"
    assert proxy_for(Access("https://kube", proxy="http://own:1"), "kube", 443) == "http://own:1"
    monkeypatch.setenv("HTTPS_PROXY_FILE", str(tmp_path / "none"))
    with pytest.raises(StateError, match="none: cannot be read"):
        proxy_for(Access("https://kube"), "kube", 443)
