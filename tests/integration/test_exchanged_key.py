"""A Google key that is mounted from a secret and replaced while the loop runs. Both kinds of pools then use the new
key. The hosts' names resolve only at the proxy, which has TLS."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from provisioner.hostfactory.script_calls import HostFactory
from provisioner.lab.cloud.server import Simulator
from tests.support.clouds.specs import advised
from tests.support.hostfactory.sites import template
from tests.support.network.authority import Authority
from tests.support.network.proxy import Proxy
from tests.support.waiting import until

KUBE, COMPUTE, TOKENS = "kube.bank.test", "compute.bank.test", "tokens.bank.test"
POOLS = ("pods", "vms")


class TokenServer(ThreadingHTTPServer):
    """A server that grants a token if a valid key has signed the request. Each token expires before the next call."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Grant)
        self.counts: set[str] = set()
        self.granted: set[str] = set()


class _Grant(BaseHTTPRequestHandler):
    server: TokenServer

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        head = form["assertion"][0].partition(".")[0]
        key = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))["kid"]
        good = key in self.server.counts
        answer = {"access_token": key, "expires_in": 1} if good else {"error": "invalid_grant"}
        if good:
            self.server.granted.add(key)
        body = json.dumps(answer).encode()
        self.send_response(200 if good else 400)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Secret:
    """A directory with a key, as the CSI driver and the kubelet mount it. Its files are links, so that all of them can
    be replaced at once."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.key_file = directory, directory / "key.json"
        directory.mkdir()
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        self._private = key.private_bytes(encoding, form, serialization.NoEncryption()).decode()
        self.key_file.symlink_to("..data/key.json")

    def exchange(self, id_: str) -> None:
        """Replace the mounted key by a key with this id."""
        account = {"type": "service_account", "client_email": "hf@p.iam", "token_uri": f"https://{TOKENS}/token"}
        (self.directory / f"..{id_}").mkdir()
        content = json.dumps({**account, "private_key_id": id_, "private_key": self._private})
        (self.directory / f"..{id_}" / "key.json").write_text(content)
        (self.directory / "..data_tmp").symlink_to(f"..{id_}")
        (self.directory / "..data_tmp").rename(self.directory / "..data")


class Bank:
    """HostFactory and a loop with a pool of each kind. Their clouds require tokens of Google."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        spec = advised(project="p", zone="us-central1-a", name="hf-a")
        self.cloud = stack.enter_context(Simulator(namespaces=["grid"], migs=[spec]))
        pods = dict.fromkeys(("schedule", "start", "ready", "stop", "confirm"), 0.05)
        instances = dict.fromkeys(("operation", "schedule", "boot", "delete", "leave"), 0.05)
        self.cloud.impose(timings={"gke": pods, "mig": instances})
        self.tokens = stack.enter_context(TokenServer())
        threading.Thread(target=self.tokens.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        stack.callback(self.tokens.shutdown)
        authority, self.secret = Authority(directory), Secret(directory / "secret")
        urls = {KUBE: self.cloud.kubernetes, COMPUTE: self.cloud.compute}
        addresses = {host: (str(urlsplit(url).hostname), int(urlsplit(url).port or 0)) for host, url in urls.items()}
        addresses[TOKENS] = ("127.0.0.1", self.tokens.server_address[1])
        proxy = stack.enter_context(Proxy({host: (at, authority.context(host)) for host, at in addresses.items()}))
        for name in ("conf", "work", "log"):
            (directory / name).mkdir()
        write_configuration(directory / "conf", self.secret.key_file, authority.file)
        instance = {
            "HF_PROVIDER_NAME": "t",
            "HF_PROVIDER_CONFDIR": str(directory / "conf"),
            "HF_PROVIDER_WORKDIR": str(directory / "work"),
            "HF_PROVIDER_LOGDIR": str(directory / "log"),
        }
        self.hf = HostFactory({**instance, "HF_PYTHON": sys.executable})
        clean = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        self._environment = {**clean, **instance, "HTTPS_PROXY": proxy.url}
        self.log, self._stack = directory / "loop.log", stack

    def start(self) -> subprocess.Popen[bytes]:
        """Start the loop, which runs until the bank closes."""
        log = self._stack.enter_context(self.log.open("ab"))
        command = [sys.executable, "-m", "provisioner", "run", "--listen", "127.0.0.1:0"]
        loop = self._stack.enter_context(subprocess.Popen(command, env=self._environment, stdout=log, stderr=log))
        self._stack.callback(loop.terminate)
        return loop

    def complete(self, id_: str) -> list[str]:
        """Wait until a request or return request is complete. Return the names of its machines."""
        until(lambda: self.hf.status(id_)["status"] == "complete", 90, what=f"{id_} is complete")
        return [machine["name"] for machine in self.hf.status(id_)["machines"]]

    def machines(self) -> set[str]:
        """Return the machines in the clouds."""
        return {str(machine["name"]) for machine in self.cloud.state()["machines"]}


def write_configuration(conf: Path, key: Path, authority: Path) -> None:
    """Write a pool of each kind with this key, and a template for each."""
    (conf / "spec.yaml").write_text("containers: [{name: main, image: worker}]\n")
    pods = {"kind": "gke", "endpoint": f"https://{KUBE}", "namespace": "grid", "pod_spec": "spec.yaml"}
    group = {"kind": "mig", "endpoint": f"https://{COMPUTE}", "project": "p", "zone": "us-central1-a", "group": "hf-a"}
    quick = {"observe_seconds": 1, "lag_seconds": 2}  # the usual ones are for lists that lag
    settings: dict[str, Any] = {
        "id": "demo",
        "ca_bundle": str(authority),
        "loop": {"interval_seconds": 1, "floor_seconds": 0.1},
        "pools": {
            name: {**pool, "credentials": str(key)} for name, pool in zip(POOLS, (pods, group | quick), strict=True)
        },
    }
    (conf / "provisioner.yaml").write_text(json.dumps(settings))
    templates = {"templates": [template(name, pools=[name]) for name in POOLS]}
    (conf / "tprov_templates.json").write_text(json.dumps(templates))
    (conf / "tprov_config.json").write_text("{}")


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    with ExitStack() as stack:
        yield Bank(tmp_path, stack)


@pytest.mark.slow
def test_a_key_that_is_exchanged_under_the_loop_is_taken_and_nothing_is_lost(bank: Bank) -> None:
    bank.secret.exchange("one")
    bank.tokens.counts = {"one"}
    loop = bank.start()
    names = [name for pool in POOLS for name in bank.complete(bank.hf.request(pool, 2))]

    bank.tokens.counts = {"two"}
    until(lambda: bank.log.read_text().count("invalid_grant") >= len(POOLS), 60, what="the old key is refused")
    more = [bank.hf.request(pool, 1) for pool in POOLS]
    return_id = bank.hf.return_machines(names[1:3])  # one of each pool
    bank.secret.exchange("two")

    kept = {names[0], names[3], *(name for id_ in more for name in bank.complete(id_))}
    bank.complete(return_id)
    until(lambda: bank.machines() == kept, 60, what="exactly these are left")
    assert bank.tokens.granted == {"one", "two"}
    assert loop.poll() is None
