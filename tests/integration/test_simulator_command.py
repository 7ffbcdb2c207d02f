"""``provisioner simulator`` as a process: which callers it accepts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from provisioner.commands.cli import run
from provisioner.lab.cloud.server import check_reach
from tests.support.hostfactory.sites import small_site

EVERYWHERE = "0.0.0.0"


@pytest.fixture
def config(tmp_path: Path) -> str:
    site = small_site(tmp_path)
    site.write()
    return str(site.path)


@contextmanager
def simulator(config: str, directory: Path, *options: str) -> Iterator[dict[str, str]]:
    """Run the simulator, and yield the variables that it prints when it is ready."""
    words = [sys.executable, "-m", "provisioner", "simulator", "--config", config]
    kubeconfig = str(directory / "kubeconfig")
    with subprocess.Popen([*words, "--kubeconfig", kubeconfig, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
    assert process.returncode == 0


@pytest.mark.parametrize("host", [EVERYWHERE, "::", "", "192.0.2.1", "::ffff:0.0.0.0", "0"])
def test_an_address_that_others_reach_is_refused(config: str, host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulator", "--config", config, "--listen", host]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"--listen {host!r} (")
    assert "control API" in printed.err
    assert "add --unsafe-listen" in printed.err
    assert printed.err.count("\n") == 1


def test_an_unknown_name_is_reported_plainly(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulator", "--config", config, "--listen", "no-such-host.invalid"]) == 2
    assert capsys.readouterr().err.startswith("--listen no-such-host.invalid: ")


def test_an_address_of_this_machine_alone_needs_no_more(config: str, tmp_path: Path) -> None:
    with simulator(config, tmp_path, "--listen", "127.0.0.2") as addresses:
        assert requests.get(f"{addresses['control']}state", timeout=30).ok


def test_the_loopback_address_of_ipv6_is_one_of_this_machine_alone() -> None:
    check_reach("::1")


def test_an_open_address_is_listened_on_where_that_is_asked_for(config: str, tmp_path: Path) -> None:
    with simulator(config, tmp_path, "--listen", EVERYWHERE, "--unsafe-listen") as addresses:
        port = addresses["control"].split(":")[2].partition("/")[0]
        assert requests.get(f"http://127.0.0.2:{port}/control/state", timeout=30).ok


def test_a_site_whose_pools_name_endpoints_is_played_without_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = small_site(tmp_path)
    site.settings["pools"]["gke-main"] |= {"endpoint": "https://192.0.2.1", "ca_file": "cluster-ca.crt"}
    site.settings["pools"]["mig-a"] |= {"endpoint": "https://192.0.2.1"}
    site.write()
    with simulator(str(site.path), tmp_path) as addresses:
        monkeypatch.setenv("PROVISIONER_EMBEDDED_CLOUD", addresses["kubernetes"])
        assert run(["plan", "--config", str(site.path), "--state-dir", str(tmp_path), "-o", "json"]) == 0
    pools = json.loads(capsys.readouterr().out)["pools"]
    assert {name: seen["machines"] for name, seen in pools.items()} == {"gke-main": 0, "mig-a": 0}
