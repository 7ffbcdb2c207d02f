"""A network whose only way out is a proxy with a certificate authority of the bank's own.

Every client must use the proxy, and must trust the authority because of one setting. Clients must report faults of the
proxy and of the authority. They must never ask the metadata server through the proxy. Only the proxy can resolve the
names of the clouds, so each call that arrives there has passed the proxy.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from provisioner.backends.gke.settings import GkePool
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.proxies_and_authorities import ANOTHER_LOGIN
from provisioner.lab.cloud.server import Simulator
from provisioner.settings import loader
from provisioner.state.atomic import replace
from tests.integration.test_google_setup import GCLOUD, gcloud_table, unknown, value
from tests.support.clouds.specs import advised
from tests.support.hostfactory.sites import template
from tests.support.manifests import GKE, ROOT, built, container
from tests.support.network.authority import Authority
from tests.support.network.proxy import Proxy
from tests.support.network.pubsub import subscription_server
from tests.support.waiting import PATIENCE, until

KUBE, COMPUTE = "kube.bank.test", "compute.bank.test"
STS, PUBSUB = "sts.googleapis.com", "pubsub.googleapis.com"
IAM = "iamcredentials.googleapis.com"
"""The server that makes tokens of an account. Google's library also asks it for the locations from which the account
may be used. If it cannot be reached, the library continues."""
ACCOUNT = "hostfactory-provisioner@p.iam.gserviceaccount.com"
GENERATE = f"/v1/projects/-/serviceAccounts/{ACCOUNT}:generateAccessToken"
CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
PAGE = ROOT / "docs" / "deploy-banks.md"
LOGIN = "grid:hunter-2-hunter"
SUBJECT = "urn:ietf:params:oauth:token-type:jwt"
CLEAN = ("proxy", "ca_bundle", "ssl_", "google", "gce_", "kube", "grpc", "pubsub", "cloudsdk")
"""Beginnings or ends of environment variables of this test that would affect the clients."""


Answer = Callable[[str, dict[str, Any]], dict[str, Any]]
"""A function from a path and a form, or from a path and a JSON document, to a server's answer."""


class Served(BaseHTTPRequestHandler):
    """A handler that responds with JSON. If the document has an ``error``, the status of the response is the error's
    code."""

    answer: Answer

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        is_json = self.headers.get("Content-Type", "").startswith("application/json")
        document = type(self).answer(self.path, json.loads(text or "{}") if is_json else parse_qs(text))
        body = json.dumps(document).encode()
        self.send_response(document.get("error", {"code": 200})["code"])
        for header in (("Content-Type", "application/json"), ("Metadata-Flavor", "Google")):
            self.send_header(*header)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def served(answer: Answer) -> Iterator[ThreadingHTTPServer]:
    """Yield a plain HTTP server."""
    handler = type("Handler", (Served,), {"answer": staticmethod(answer)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def token(_path: str, form: dict[str, Any]) -> dict[str, Any]:
    """Check that the request has the token of the bank's own issuer. Return what Google's STS would respond."""
    assert form["subject_token"] == ["of-the-bank"], form
    kind = "urn:ietf:params:oauth:token-type:access_token"
    return {"access_token": "federated", "issued_token_type": kind, "token_type": "Bearer", "expires_in": 3600}


def generated(path: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return what Google's IAM responds to a caller that may act as the account."""
    if path.endswith("/allowedLocations"):
        return {"locations": [], "encodedLocations": "0x0"}
    assert path == GENERATE, path
    assert CLOUD_PLATFORM in document["scope"], document
    ends = datetime.now(UTC) + timedelta(hours=1)
    return {"accessToken": "of-the-account", "expireTime": ends.strftime("%Y-%m-%dT%H:%M:%SZ")}


def denied(_path: str, _document: dict[str, Any]) -> dict[str, Any]:
    """Return what Google's IAM responds if the role roles/iam.workloadIdentityUser is not bound."""
    words = "Permission 'iam.serviceAccounts.getAccessToken' denied on resource (or it may not exist)."
    return {"error": {"code": 403, "message": words, "status": "PERMISSION_DENIED"}}


@dataclass
class Bank:
    """A provider instance whose only way out is the proxy."""

    directory: Path
    proxy: Proxy
    authority: Authority
    settings: dict[str, Any]
    streamed: set[str]
    """The credentials with which Pub/Sub was asked for a stream of messages."""
    environment: dict[str, str] = field(default_factory=dict)

    def start_process(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start a command of the provisioner in this network."""
        self.proxy.asked.clear()
        self.proxy.bearers.clear()
        self.streamed.clear()
        replace(str(self.directory / "conf" / "provisioner.yaml"), json.dumps(self.settings).encode())
        clean = {
            name: value
            for name, value in os.environ.items()
            if not any(word in name.lower() for word in CLEAN) and not name.startswith("HF_")
        }
        return subprocess.Popen(
            [sys.executable, "-m", "provisioner", *arguments],
            env={**clean, **self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the provisioner in this network."""
        with self.start_process(*arguments, **environment) as process:
            output = process.communicate(timeout=120 * PATIENCE)
        return subprocess.CompletedProcess(arguments, process.returncode, *output)

    def looped(self, over: Callable[[], object], *arguments: str, **environment: str) -> str:
        """Run the loop until ``over()`` returns a true value. Return the loop's output."""
        with self.start_process(*arguments, "run", "--listen", "127.0.0.1:0", **environment) as process:
            try:
                until(over, 60, what="what the loop has to do")
            finally:
                process.terminate()
            return "".join(process.communicate(timeout=120 * PATIENCE))

    def federation(self, **more: Any) -> None:
        """Add fields to the federation's configuration."""
        file = self.directory / "conf" / "federation.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | more))

    def is_the_account(self) -> None:
        """Let the loop act as the service account: add this account to the federation's configuration."""
        self.federation(service_account_impersonation_url=f"https://{IAM}{GENERATE}")

    @contextmanager
    def as_the_account(self, answer: Answer) -> Iterator[None]:
        """Add the service account to the federation's configuration. Serve ``answer`` as Google's IAM during the
        context."""
        self.is_the_account()
        with served(answer) as server:
            self.proxy.targets[IAM] = (("127.0.0.1", server.server_address[1]), self.authority.context(IAM))
            try:
                yield
            finally:
                del self.proxy.targets[IAM]

    def findings(self, **environment: str) -> list[str]:
        """Return the findings of ``check --live``."""
        done = self.run("check", "--live", "-o", "json", **environment)
        assert done.stdout, done.stderr
        return [f"{one['pool']}: {one['text']}" for one in json.loads(done.stdout)["findings"]]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxy, Authority, set[str]]]:
    directory = tmp_path_factory.mktemp("network")
    authority = Authority(directory)
    with ExitStack() as stack:
        spec = advised(project="p", zone="us-central1-a", name="hf-a")
        cloud = stack.enter_context(Simulator(namespaces=["grid"], migs=[spec]))
        sts = stack.enter_context(served(token))
        addresses = {
            KUBE: urlsplit(cloud.kubernetes),
            COMPUTE: urlsplit(cloud.compute),
        }
        targets: dict[str, Any] = {
            host: ((str(url.hostname), int(url.port or 0)), authority.context(host)) for host, url in addresses.items()
        }
        targets[STS] = (("127.0.0.1", sts.server_address[1]), authority.context(STS))
        known = ("Bearer federated", "Bearer of-the-account")
        subscription = stack.enter_context(subscription_server(authority, known=known))
        targets[PUBSUB] = (subscription.address, None)
        yield stack.enter_context(Proxy(targets, LOGIN)), authority, subscription.streamed


@pytest.fixture
def bank(network: tuple[Proxy, Authority, set[str]], tmp_path: Path) -> Bank:
    proxy, authority, streamed = network
    proxy.login = LOGIN
    conf = tmp_path / "conf"
    for name in ("conf", "work", "log"):
        (tmp_path / name).mkdir()
    (tmp_path / "subject").write_text("of-the-bank")
    federation = {
        "universe_domain": "googleapis.com",
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/bank/providers/issuer",
        "subject_token_type": SUBJECT,
        "token_url": f"https://{STS}/v1/token",
        "credential_source": {"file": str(tmp_path / "subject")},
    }
    (conf / "federation.json").write_text(json.dumps(federation))
    (conf / "spec.yaml").write_text("containers: [{name: main, image: registry.bank.test/worker}]\n")
    pools = {
        "pods": {"kind": "gke", "endpoint": f"https://{KUBE}", "namespace": "grid", "pod_spec": f"{conf}/spec.yaml"},
        "vms": {
            "kind": "mig",
            "endpoint": f"https://{COMPUTE}",
            "project": "p",
            "zone": "us-central1-a",
            "group": "hf-a",
            "credentials": f"{conf}/federation.json",
        },
    }
    pools["pods"]["credentials"] = f"{conf}/federation.json"
    settings = {
        "id": "demo",
        "pools": pools,
        "ca_bundle": str(authority.file),
        "events": {"project": "p", "subscription": "events"},
    }
    templates = {"templates": [template("Pods", pools=["pods"]), template("Vms", pools=["vms"])]}
    (conf / "tprov_templates.json").write_text(json.dumps(templates))
    (conf / "tprov_config.json").write_text("{}")
    environment = {
        "HF_PROVIDER_NAME": "t",
        "HF_PROVIDER_CONFDIR": str(conf),
        "HF_PROVIDER_WORKDIR": str(tmp_path / "work"),
        "HF_PROVIDER_LOGDIR": str(tmp_path / "log"),
        "HTTPS_PROXY": proxy.url,
        "GOOGLE_CLOUD_PROJECT": "p",
        "GOOGLE_APPLICATION_CREDENTIALS": str(conf / "federation.json"),
    }
    return Bank(tmp_path, proxy, authority, settings, streamed, environment)


def wrong(bank: Bank, **environment: str) -> list[str]:
    """Return the findings of ``check --live``, except the advice about labels of the group's template."""
    return [text for text in bank.findings(**environment) if "no labels" not in text]


@pytest.mark.slow
def test_in_a_pod_the_loop_and_the_pages_line_read_the_proxy_from_the_secret(bank: Bank, tmp_path: Path) -> None:
    """Run the loop and the command that docs/deploy-gke.md shows as processes of their own. Give them only the pod's
    environment, as `kubectl exec` does."""
    one = container(built(GKE, "secret-csi"))
    (mount,) = [mount["mountPath"] for mount in one["volumeMounts"] if mount["name"] == "secrets"]
    del bank.environment["HTTPS_PROXY"]
    bank.environment |= {
        entry["name"]: entry["value"].replace(mount, str(tmp_path))
        for entry in one["env"]
        if not entry["name"].startswith("HF_PROVIDER_")
    }
    (tmp_path / "proxy").write_text(f"{bank.proxy.url}\n")
    page = (ROOT / "docs" / "deploy-gke.md").read_text()
    (line,) = re.findall(r"`kubectl -n\s+hostfactory exec deploy/provisioner -- provisioner (check [^`]*)`", page)

    done = bank.run(*line.split(), "-o", "json")
    found = [one["text"] for one in json.loads(done.stdout)["findings"]]
    assert [text for text in found if "no labels" not in text] == []
    assert bank.proxy.hosts - {IAM} == {KUBE, COMPUTE, STS, PUBSUB}
    assert all(line.startswith("CONNECT ") for line in bank.proxy.asked)
    bank.looped(lambda: bank.streamed and {KUBE, COMPUTE, PUBSUB} <= bank.proxy.hosts)


# --- the federation, as the page makes it -----------------------------------------------------------------------------


def section(title: str) -> str:
    """Return the section of docs/deploy-banks.md with this title."""
    return PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def federation_lines() -> list[tuple[str, ...]]:
    """Return the gcloud lines about the federation in docs/deploy-banks.md, with the names of a test's project."""
    text = section("The loop's identity without a key file").replace("\\\n", "").replace("NUMBER", "1")
    lines = re.findall(r"(?m)^    gcloud (.+)$", text.replace("PROJECT", "p").replace("SUBJECT", "hf"))
    return [tuple(shlex.split(line)) for line in lines]


@GCLOUD
def test_gcloud_knows_the_pages_lines_and_they_lead_from_the_pool_to_the_account() -> None:
    """Check each line of docs/deploy-banks.md against gcloud's table of commands. If a line uses an object, an earlier
    line must make it."""
    tree, lines = gcloud_table(), federation_lines()
    assert [problem for line in lines for problem in unknown(line, tree)] == []
    enable, pool, provider, binding, written = lines
    apis = {word for word in enable if word.endswith(".googleapis.com")}
    assert apis == {STS, IAM, "iam.googleapis.com"}
    place = f"projects/1/locations/{value(pool, 'location')}/workloadIdentityPools/{pool[3]}"
    assert value(provider, "workload-identity-pool") == pool[3]
    assert value(provider, "attribute-mapping") == "google.subject=assertion.sub"
    assert value(binding, "member") == f"principal://iam.googleapis.com/{place}/subject/hf"
    assert value(binding, "role") == "roles/iam.workloadIdentityUser"
    assert written[3] == f"{place}/providers/{provider[4]}"
    assert binding[3] == value(written, "service-account") == ACCOUNT


@GCLOUD
def test_the_pages_line_writes_the_configuration_that_these_tests_log_in_by(bank: Bank, tmp_path: Path) -> None:
    """Run the gcloud line of docs/deploy-banks.md that writes the configuration. gcloud writes it without calling a
    server."""
    bank.is_the_account()
    places = {"/run/bank/token": tmp_path / "subject", "/etc/hostfactory": tmp_path}
    text = shlex.join(federation_lines()[-1])
    for theirs, ours in places.items():
        assert theirs in text
        text = text.replace(theirs, str(ours))
    environment = os.environ | {"CLOUDSDK_CONFIG": str(tmp_path / "gcloud")}
    subprocess.run(
        ["gcloud", *shlex.split(text)], env=environment, check=True, capture_output=True, timeout=60 * PATIENCE
    )
    written = json.loads((tmp_path / "federation.json").read_text())
    assert written == json.loads((bank.directory / "conf" / "federation.json").read_text())


def test_the_pages_pools_are_pools_and_name_what_the_line_writes(tmp_path: Path) -> None:
    text = section("The loop's identity without a key file").replace("PROJECT\n", "p\n").replace("PROJECT,", "p,")
    (pools,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (variables,) = re.findall(r"```\n(.*?)```", text.replace(f"```yaml\n{pools}```", ""), re.DOTALL)
    given = dict(line.split("=") for line in shlex.split(variables))
    conf = tmp_path / "conf"
    (conf / "pod-specs").mkdir(parents=True)
    (conf / "pod-specs" / "pods.yaml").write_text("containers: [{name: main, image: i}]\n")
    templates = {"templates": [template("Pods", pools=["pods"]), template("Vms", pools=["a"])]}
    (conf / "tprov_templates.json").write_text(json.dumps(templates))
    (conf / "provisioner.yaml").write_text(f"id: demo\n{pools}")
    found = loader.load(conf / "provisioner.yaml", {}).pools.values()
    named = {str(pool.credentials) for pool in found if isinstance(pool, GkePool | MigPool)}
    assert {pool.kind for pool in found} == {"gke", "mig"}
    assert named == {given["GOOGLE_APPLICATION_CREDENTIALS"]} == {value(federation_lines()[-1], "output-file")}
    assert given.keys() == {"GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"}


@pytest.mark.slow
def test_the_loop_is_the_account_that_the_federation_names(bank: Bank) -> None:
    """Use a configuration like that of `create-cred-config --service-account`. The clouds must get only the account's
    token, and not the federation's own token."""
    with bank.as_the_account(generated):
        assert wrong(bank) == []
        assert bank.proxy.hosts == {KUBE, COMPUTE, STS, IAM, PUBSUB}
        bank.looped(lambda: bank.streamed and {KUBE, COMPUTE} <= bank.proxy.bearers.keys())
    assert bank.proxy.bearers[KUBE] == bank.proxy.bearers[COMPUTE] == {"of-the-account"}
    assert bank.streamed == {"Bearer of-the-account"}
    assert "federated" in bank.proxy.bearers[IAM]


@pytest.mark.slow
def test_an_account_that_the_federation_may_not_use_is_reported_in_googles_words(bank: Bank) -> None:
    with bank.as_the_account(denied):
        findings = wrong(bank)
    assert {text.split(":")[0] for text in findings} == {"pods", "vms", "events"}
    for text in findings:
        assert "iam.serviceAccounts.getAccessToken" in text, text


@pytest.mark.slow
def test_the_issuers_token_comes_from_where_the_federation_says(bank: Bank) -> None:
    """NO_PROXY contains the issuer's server, so the token must be requested without the proxy."""
    del bank.settings["events"], bank.settings["pools"]["vms"]
    (bank.directory / "conf" / "tprov_templates.json").write_text(json.dumps([template("Pods", pools=["pods"])]))
    with served(lambda _path, _form: {"token": "of-the-bank"}) as server:
        form = {"type": "json", "subject_token_field_name": "token"}
        url = f"http://127.0.0.1:{server.server_address[1]}/token"
        bank.federation(credential_source={"url": url, "format": form})
        assert wrong(bank, HTTP_PROXY=bank.proxy.url, NO_PROXY=".bank.example,127.0.0.1") == []
    assert bank.proxy.hosts - {IAM} == {KUBE, STS}


@pytest.mark.slow
def test_without_the_authority_no_server_is_trusted(bank: Bank) -> None:
    del bank.settings["ca_bundle"]
    for text in (findings := wrong(bank)):
        assert "certificate" in text.lower() or "ssl" in text.lower(), text
    assert {text.split(":")[0] for text in findings} == {"pods", "vms", "events"}


@pytest.mark.slow
def test_a_clusters_own_authority_counts_instead(bank: Bank) -> None:
    bank.settings["pools"]["pods"]["ca_file"] = str(Authority(bank.directory, "Another").file)
    assert any(text.startswith("pods: ") and "certificate" in text.lower() for text in wrong(bank))


@pytest.mark.slow
def test_a_proxy_that_wants_another_login_is_reported_at_once_and_without_its_password(bank: Bank) -> None:
    """Expect no retry within the time of an observation, because a proxy locks accounts after many tries."""
    bank.proxy.login = "other:login"
    bundle = bank.directory / "bundle.tar.gz"
    checked = bank.run("check", "--live", "-o", "json")
    assert {f"{one['pool']}: {one['text']}" for one in json.loads(checked.stdout)["findings"]} >= {
        f"{pool}: cannot be checked: {ANOTHER_LOGIN}" for pool in ("pods", "vms")
    }
    planned = bank.run("plan")
    assert planned.stdout.count(f"UNSEEN, {ANOTHER_LOGIN}") == 2
    assert len(bank.proxy.asked) < 20
    answers = (checked, planned, bank.run("doctor", "--bundle", str(bundle)))
    journal = bank.looped(lambda: len(bank.proxy.asked) >= 6, "--log-level", "DEBUG")
    assert '"Provisioner started"' in journal
    for text in (journal, *(done.stdout + done.stderr for done in answers)):
        assert LOGIN.partition(":")[2] not in text
    with tarfile.open(bundle) as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member)
            assert file is not None
            assert LOGIN.partition(":")[2].encode() not in file.read(), member.name
    del bank.settings["events"]
    assert f'"error": "denied", "text": "{ANOTHER_LOGIN}"' in bank.run("run", "--once").stderr
    assert len(bank.proxy.asked) < 30


@pytest.mark.slow
def test_each_command_names_a_bundle_that_cannot_be_used(bank: Bank) -> None:
    path = bank.directory / "none.pem"
    bank.settings["ca_bundle"] = str(path)
    for command in (("check",), ("check", "--live"), ("run", "--once")):
        done = bank.run(*command)
        assert done.returncode == 2, done
        assert f"ca_bundle {path} cannot be used: No such file or directory" in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_check_tells_of_an_authority_that_ends_soon(bank: Bank) -> None:
    ending = Authority(bank.directory, "Ending Root", days=20).file
    both = bank.directory / "both.pem"
    both.write_bytes(ending.read_bytes() + bank.authority.file.read_bytes())
    bank.settings["ca_bundle"] = str(both)
    done = bank.run("check")
    assert done.returncode == 0
    assert "the authority Ending Root ends on" in done.stdout
    assert "Bank Root" not in done.stdout


ASK_METADATA = """
import google.auth, google.auth.transport.requests
from provisioner.backends.proxies_and_authorities import prepare
prepare(None)
credentials, project = google.auth.default(scopes=["s"])
credentials.refresh(google.auth.transport.requests.Request())
print(credentials.token)
"""


def test_the_metadata_server_is_never_asked_through_the_proxy(bank: Bank) -> None:
    """The metadata server returns the identity of the VM that asks. Through a proxy, it would return the proxy's
    identity."""

    def metadata(path: str, _form: dict[str, list[str]]) -> dict[str, Any]:
        return {"access_token": "of-the-vm", "expires_in": 3600, "token_type": "Bearer", "email": "vm@p", "scopes": []}

    with served(metadata) as server:
        host = f"127.0.0.1:{server.server_address[1]}"
        environment = {"HTTP_PROXY": bank.proxy.url, "GCE_METADATA_HOST": host, "GCE_METADATA_IP": host}
        bank.proxy.asked.clear()
        done = subprocess.run(
            [sys.executable, "-c", ASK_METADATA],
            env={"PATH": os.environ["PATH"], "HOME": str(bank.directory), **environment},
            capture_output=True,
            text=True,
            timeout=60 * PATIENCE,
            check=False,
        )
        assert done.stdout.strip() == "of-the-vm", done.stderr
    assert not [line for line in bank.proxy.asked if host in line]
