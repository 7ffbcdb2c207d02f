"""Attacks on the HTTP server of a loop. During an attack, the loop must have free descriptors and memory, answer
probes, and carry out a request."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from provisioner.lab.playground import Playground
from tests.hostile.attacks import ATTACKS
from tests.hostile.damage import attacked
from tests.hostile.figures import ATTACK, DESCRIPTORS, MEBIBYTES, REQUEST_SECONDS
from tests.support.waiting import until

MOST_DESCRIPTORS = 1024
"""The limit of descriptors of the loop's process, as on most systems. The attackers may use half of them."""
PROBES = 10
"""The number of probes during an attack."""
CONNECTIONS = {
    "slow_head": 1150,
    "big_head": 100,
    "half_handshake": 1150,
    "slow_reader": 200,
    "pipelined": 100,
    "body_after_get": 50,
    "chunks_after_get": 50,
}

pytestmark = pytest.mark.slow


class Victim(Playground):
    """A loop whose process may open only as many files as on most systems. Its server uses TLS if there is a
    certificate."""

    pid = 0

    def __init__(self, cert: Path | None = None) -> None:
        super().__init__()
        self._cert = cert

    def start_loop(self) -> subprocess.Popen[str]:
        """Start a loop, with the certificate in its settings."""
        if self._cert is not None:
            file = self.config / "provisioner.yaml"
            server = {"tls_cert": str(self._cert), "tls_key": str(self._cert.with_suffix(".key"))}
            file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"server": server}))
        return super().start_loop()

    def begin_loop(self) -> subprocess.Popen[str]:
        """Start a loop with few descriptors."""
        process = super().begin_loop()
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (MOST_DESCRIPTORS, MOST_DESCRIPTORS))
        self.pid = process.pid
        return process


@pytest.fixture(scope="module")
def victim(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    if request.param == "plain":
        with Victim() as made:
            yield made
        return
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl (Debian package openssl)")
    cert = tmp_path_factory.mktemp("tls") / "loop.crt"
    options = "-x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=loop"
    about = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", cert.with_suffix(".key"), "-out", cert]
    subprocess.run(["openssl", "req", *options.split(), *about], check=True, capture_output=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REQUESTS_CA_BUNDLE", str(cert))
        with Victim(cert) as made:
            yield made


@pytest.mark.parametrize(
    ("victim", "name"),
    [("tls", name) for name in ATTACKS] + [("plain", name) for name in ATTACKS if name != "half_handshake"],
    indirect=["victim"],
)
def test_an_attack_costs_little_and_a_request_is_carried_out_meanwhile(
    victim: Victim, name: str, record_property: Callable[[str, object], None]
) -> None:
    address, pid = urlsplit(victim.url), victim.pid
    assert address.port is not None
    tls = address.scheme == "https"
    hf = victim.hf

    def open_descriptors() -> int:
        return len(os.listdir(f"/proc/{pid}/fd"))

    before = open_descriptors()
    with attacked(name, CONNECTIONS[name], pid, address.port, tls=tls) as damage:
        template, began_at = hf.templates()[0], time.monotonic()
        request = hf.request(template, 1)
        until(lambda: hf.status(request)["status"] == "complete", REQUEST_SECONDS, what="the request is carried out")
        carried_out = time.monotonic() - began_at
        until(lambda: len(damage.probes) + len(damage.failed) >= PROBES, 120, what="the probes are asked")
    print(f"{name}, {address.scheme}: {damage}")
    costs = {
        "descriptors": str(damage.descriptors),
        "growth": f"{damage.mebibytes:.0f}",
        "probe": f"{max(damage.probes, default=0):.1f}",
        "request": f"{carried_out:.1f}",
    }
    record_property(ATTACK, {ATTACK: f"{name}, {address.scheme}", **costs})
    assert damage.failed == []
    assert damage.descriptors <= DESCRIPTORS
    assert damage.mebibytes < MEBIBYTES
    until(lambda: open_descriptors() <= before + 5, 15, what="the descriptors are free again")
