"""Usable proxies and authorities, and the messages on unusable ones."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from provisioner.backends import BackendError, proxies_and_authorities
from provisioner.backends.proxies_and_authorities import LONGEST_WAIT_SECONDS, prepare, seconds_until
from tests.support.network.authority import Authority


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Set an empty environment."""
    made: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", made)
    return made


def refusal(ca_bundle: Path | None = None) -> str:
    """Return the message on an unusable proxy or bundle."""
    with pytest.raises(BackendError) as caught:
        prepare(ca_bundle)
    return caught.value.failure.text


@pytest.mark.parametrize("address", ["http://proxy:3128", "http://proxy:3128/", "https://name:p%40ss@[::1]:3128", ""])
@pytest.mark.parametrize("named_by", ["HTTPS_PROXY", "HTTPS_PROXY_FILE"])
def test_a_proxys_address_is_one_with_a_scheme_or_empty(
    address: str, named_by: str, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "proxy").write_text(f"{address}\n")
    environment[named_by] = address if named_by == "HTTPS_PROXY" else str(tmp_path / "proxy")
    prepare(None)
    assert environment.get("https_proxy", "") == address


@pytest.mark.parametrize(
    ("named_by", "address"),
    [
        ("HTTPS_PROXY", "proxy:3128"),
        ("https_proxy", "127.0.0.1:3128"),
        ("HTTPS_PROXY", "name:hunter-2@proxy:3128"),
        ("HTTPS_PROXY_FILE", "socks5://proxy:3128"),
        ("HTTPS_PROXY", "http://proxy:port"),
        ("HTTPS_PROXY_FILE", "http://name:hunter-2/@proxy:3128"),
        ("HTTPS_PROXY", "http://name:hunter-2#@proxy:3128"),
        ("https_proxy", "http://proxy :3128"),
        ("HTTPS_PROXY_FILE", "http://"),
    ],
)
def test_an_address_that_clients_would_read_differently_is_refused(
    named_by: str, address: str, environment: dict[str, str], tmp_path: Path
) -> None:
    """An address in an unclear form must be refused. The message must omit the address, which may contain a
    password."""
    file = tmp_path / "proxy"
    file.write_text(f"{address}\n")
    of_file = named_by == "HTTPS_PROXY_FILE"
    environment[named_by] = str(file) if of_file else address
    said = refusal()
    assert said.startswith(f"HTTPS_PROXY_FILE {file} cannot be used: " if of_file else "HTTPS_PROXY cannot be used: ")
    assert "expected an address such as http://proxy:3128" in said
    assert "hunter" not in said


def test_a_file_of_the_proxys_that_cannot_be_read_is_named(environment: dict[str, str], tmp_path: Path) -> None:
    environment["HTTPS_PROXY_FILE"] = str(tmp_path / "none")
    assert refusal().startswith(f"HTTPS_PROXY_FILE {tmp_path / 'none'} cannot be used: No such file or directory; corr")


@pytest.mark.parametrize(
    ("bundle", "words"),
    [
        pytest.param("none.pem", "No such file or directory", id="missing"),
        pytest.param("", "Is a directory", id="a directory"),
        pytest.param("text", "it holds no certificate", id="no certificate in it"),
        pytest.param("ended", "all its authorities have ended", id="expired"),
    ],
)
def test_a_bundle_that_cannot_be_used_is_named(tmp_path: Path, bundle: str, words: str) -> None:
    (tmp_path / "text").write_text("no certificate")
    path = Authority(tmp_path, "Old Root", days=-1).file if bundle == "ended" else tmp_path / bundle
    assert refusal(path).startswith(f"ca_bundle {path} cannot be used: {words}")


def test_what_we_run_gets_the_way_out_that_we_have(environment: dict[str, str], tmp_path: Path) -> None:
    """A program that the loop starts, for example a kubeconfig's plug-in, must find our proxy and certificates in its
    environment variables. It must reach the metadata server without the proxy."""
    bundle = str(Authority(tmp_path).file)
    environment |= {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".bank.example", "REQUESTS_CA_BUNDLE": bundle}
    environment["GCE_METADATA_HOST"] = "127.0.0.2:8080"
    prepare(None)
    assert environment["https_proxy"] == "http://proxy:3128"
    assert environment["NO_PROXY"] == environment["no_proxy"]
    hosts = environment["NO_PROXY"].split(",")
    assert hosts[:2] == [".bank.example", "metadata.google.internal"]
    assert {"127.0.0.2", "127.0.0.2:8080"} <= {*hosts}
    assert {environment[name] for name in ("SSL_CERT_FILE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH")} == {bundle}


# --- Retry-After ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("86400", LONGEST_WAIT_SECONDS),
        (None, None),
        ("", None),
        ("-1", None),
        ("soon", None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 40.0),
        ("Wed, 21 Oct 2026 07:27:00 GMT", 0.0),
        ("Wed, 21 Oct 2026 09:28:00 GMT", LONGEST_WAIT_SECONDS),
    ],
)
def test_the_time_that_a_server_asks_for_is_known_in_seconds(
    header: str | None, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime(2026, 10, 21, 7, 27, 20, tzinfo=UTC).timestamp()
    monkeypatch.setattr(proxies_and_authorities, "time", SimpleNamespace(time=lambda: now))
    assert seconds_until(header) == seconds
