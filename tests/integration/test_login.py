"""Logins to an API server: every form of credentials, their renewal, and the errors if credentials are missing."""

from __future__ import annotations

import json
import threading
import time
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from kubernetes.config import incluster_config
from urllib3 import PoolManager

from provisioner.backends import BackendError, google_auth
from provisioner.backends.gke import credentials, exec_plugin
from provisioner.backends.gke.api import KubeApi, KubeError
from provisioner.backends.gke.backend import GkeBackend
from provisioner.backends.gke.credentials import KEEP_SECONDS, Kubeconfig
from provisioner.backends.gke.exec_plugin import ExecPlugin
from provisioner.backends.gke.login import RENEW_SECONDS, Login, Reading, connect
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.gke.shared_connections import Namespaces
from provisioner.backends.google_auth import FollowedCredentials, GoogleToken
from provisioner.backends.http import Way
from provisioner.model import Create, ErrorClass
from tests.support.network.authority import Authority
from tests.support.waiting import until

VERSION = "client.authentication.k8s.io/v1"
EPOCH = 1_900_000_000.0
"""The time of the tests' wall clock, epoch seconds."""


class Guard:
    """A server that accepts some tokens. It also stands in for Google's token server: ``granted`` makes the response to
    a signed assertion."""

    def __init__(self, directory: Path) -> None:
        self.tokens: set[str] = set()
        self.received: list[str] = []
        self.grants = 0
        self.assertions: list[str] = []
        self.ahead = 0.0
        """Seconds by which the server's clock is ahead of this host's."""
        self.granted: Callable[[int], tuple[int, dict[str, Any]]] = lambda number: (
            200,
            {"access_token": f"google-{number}", "expires_in": 3600, "token_type": "Bearer"},
        )
        guard = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                token = (self.headers["Authorization"] or "").partition(" ")[2]
                guard.received.append(token)
                self.answer(*((200, {"kind": "Pod"}) if token in guard.tokens else (401, {"reason": "Unauthorized"})))

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                guard.assertions += form.get("assertion", [])
                guard.grants += 1
                self.answer(*guard.granted(guard.grants))

            def answer(self, status: int, document: Mapping[str, Any]) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def date_time_string(self, timestamp: float | None = None) -> str:
                return super().date_time_string((timestamp or time.time()) + guard.ahead)

            def log_message(self, *_: object) -> None:
                """Log nothing, because ``received`` has what tests need."""

        self.authority = Authority(directory)
        plain, secure = self.servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
        secure.socket = self.authority.context("127.0.0.1").wrap_socket(secure.socket, server_side=True)
        self.plain = f"http://127.0.0.1:{plain.server_port}"
        self.address = f"https://127.0.0.1:{secure.server_port}"


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Guard]:
    made = Guard(tmp_path)
    threads = [threading.Thread(target=server.serve_forever, args=(0.02,)) for server in made.servers]
    for thread in threads:
        thread.start()
    yield made
    for server, thread in zip(made.servers, threads, strict=True):
        server.shutdown()
        server.server_close()
        thread.join()


def write_kubeconfig(path: Path, server: str, user: Mapping[str, Any]) -> Path:
    authority = path.parent / "Bank-Root.pem"
    trusted = {"certificate-authority": str(authority)} if authority.exists() else {}
    document = {
        "clusters": [{"name": "c", "cluster": {"server": server, **trusted}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document))
    return path


def pool(directory: Path, **settings: Any) -> GkePool:
    spec = directory / "pod.yaml"
    spec.write_text("containers: [{name: main, image: busybox}]")
    return GkePool(name="gke-main", namespace="symphony", pod_spec=spec, **settings)


def ask(api: KubeApi) -> bool:
    """Make a call. Return False if the server denies our credentials."""
    try:
        api.get("/api/v1/namespaces/n/pods")
    except KubeError as error:
        return error.failure.error is not ErrorClass.DENIED
    return True


def refused(do: Callable[[], object]) -> BackendError:
    with pytest.raises(BackendError) as caught:
        do()
    return caught.value


def test_the_scheme_of_a_kubeconfigs_server_may_have_any_case(guard: Guard, tmp_path: Path) -> None:
    server = guard.address.replace("https", "HTTPS")
    guard.tokens.add("t1")
    connect(pool(tmp_path, kubeconfig=write_kubeconfig(tmp_path / "k", server, {"token": "t1"}))).get(
        "/api/v1/namespaces/n/pods"
    )
    assert guard.received == ["t1"]


@pytest.mark.parametrize(
    "user",
    [
        {"token": "secret"},
        {"tokenFile": "k"},
        {"username": "me", "password": "secret"},
        {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "interactiveMode": "Never"}},
        {},
    ],
    ids=lambda user: "-".join(user),
)
def test_a_kubeconfig_sends_no_credentials_over_plain_http(
    guard: Guard, tmp_path: Path, user: Mapping[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    api = connect(pool(tmp_path, kubeconfig=write_kubeconfig(tmp_path / "k", guard.plain, user)))
    text = refused(lambda: api.get("/api/v1/namespaces/n/pods")).failure.text
    assert "over plain HTTP none are sent" in text
    assert text.endswith("or let the kubeconfig's 'server' do so")
    assert guard.received == [""]
    assert ("Credentials are not sent over plain HTTP" in caplog.text) is bool(user)


# --- exec plugins -----------------------------------------------------------------------------------------------------


def plugin(directory: Path, script: str) -> Path:
    path = directory / "bin" / "auth-plugin"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


COUNTING = """
n=$(($(cat "$RUNS" 2>/dev/null || echo 0) + 1)); echo $n > "$RUNS"
printf '{"apiVersion": "%s", "kind": "ExecCredential", "status": {"token": "t%s"%s}}' "$VERSION" "$n" "$EXPIRES"
"""
"""A program that prints token t1 in its first run, t2 in its second run, and so on."""


def user_of(path: Path | str, runs: Path, expires: str = "", **more: Any) -> dict[str, Any]:
    given = {"RUNS": str(runs), "VERSION": VERSION, "EXPIRES": expires and f', "expirationTimestamp": "{expires}"'}
    environment = [{"name": name, "value": value} for name, value in given.items()]
    return {"exec": {"apiVersion": VERSION, "command": str(path), "env": environment, **more}}


@pytest.mark.parametrize(
    ("expires", "later", "token"),
    [
        pytest.param("2030-03-17T18:46:40Z", 3569.0, "t1", id="an hour: good until half a minute before its end"),
        pytest.param("2030-03-17T18:46:40Z", 3570.0, "t2", id="an hour: renewed half a minute before its end"),
        pytest.param("2030-03-17T17:47:20Z", 29.0, "t1", id="forty seconds: good for three quarters of them"),
        pytest.param("2030-03-17T17:47:20.000000Z", 30.0, "t2", id="forty seconds: renewed after three quarters"),
        pytest.param("", 1e9, "t1", id="no end: never renewed by itself"),
        pytest.param("tomorrow", 0.0, "t2", id="an unreadable end: requested each time"),
    ],
)
def test_a_plugins_token_is_renewed_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expires: str, later: float, token: str
) -> None:
    clock = [EPOCH]
    monkeypatch.setattr(exec_plugin, "time", SimpleNamespace(time=lambda: clock[0]))
    settings = user_of(plugin(tmp_path, COUNTING), tmp_path / "runs", expires)["exec"]
    asked = ExecPlugin(settings, tmp_path, {})
    assert asked.header() == "Bearer t1"
    clock[0] += later
    assert asked.header() == f"Bearer {token}"


def test_a_plugin_beside_the_kubeconfig_is_run_once_for_many_calls(guard: Guard, tmp_path: Path) -> None:
    plugin(tmp_path, COUNTING)
    guard.tokens = {"t1"}
    user = user_of("bin/auth-plugin", tmp_path / "runs")
    api = connect(pool(tmp_path, kubeconfig=write_kubeconfig(tmp_path / "k", guard.address, user)))
    assert not (tmp_path / "runs").exists(), "nothing is run before the first call"
    assert [ask(api) for _ in range(5)] == [True] * 5
    assert (tmp_path / "runs").read_text() == "1\n"


def test_a_token_that_the_server_no_longer_takes_is_renewed_and_the_next_call_works(
    guard: Guard, tmp_path: Path
) -> None:
    guard.tokens = {"t1"}
    user = user_of(plugin(tmp_path, COUNTING), tmp_path / "runs")
    api = connect(pool(tmp_path, kubeconfig=write_kubeconfig(tmp_path / "k", guard.address, user)))
    assert ask(api)
    guard.tokens = {"t2"}
    assert [ask(api), ask(api)] == [False, True]
    assert guard.received == ["t1", "t1", "t2"]


def test_a_plugin_gets_the_cluster_and_no_terminal(guard: Guard, tmp_path: Path) -> None:
    guard.tokens = {"t1"}
    script = 'echo "$KUBERNETES_EXEC_INFO" > "$RUNS.info"; echo "$@" > "$RUNS.args"; cat > "$RUNS.stdin"' + COUNTING
    user = user_of(plugin(tmp_path, script), tmp_path / "runs", provideClusterInfo=True, args=["--a", "b"])
    assert ask(connect(pool(tmp_path, kubeconfig=write_kubeconfig(tmp_path / "k", guard.address, user))))
    assert json.loads((tmp_path / "runs.info").read_text()) == {
        "apiVersion": VERSION,
        "kind": "ExecCredential",
        "spec": {
            "interactive": False,
            "cluster": {
                "server": guard.address,
                "certificate-authority-data": b64encode(guard.authority.file.read_bytes()).decode(),
            },
        },
    }
    assert (tmp_path / "runs.args").read_text() == "--a b\n"
    assert (tmp_path / "runs.stdin").read_text() == ""


BROKEN = {
    "that fails": ("echo 'gcloud: not logged in' >&2; exit 3", "ended with 3: gcloud: not logged in"),
    "that fails without a word": ("exit 3", "ended with 3: it printed no error"),
    "that prints something else": ("echo secret-token", "did not print an ExecCredential"),
    "that prints no object": ("echo '[1]'", "did not print an ExecCredential"),
    "of another version": (
        'echo \'{"apiVersion": "v0", "status": {"token": "secret-token"}}\'',
        "printed version 'v0', but the kubeconfig says 'client.authentication.k8s.io/v1'",
    ),
    "that gives a certificate": (
        f'echo \'{{"apiVersion": "{VERSION}", "status": {{"clientCertificateData": "secret-token"}}}}\'',
        "gave no token",
    ),
    "that hangs": ("sleep 30", "did not end within 0.3 s"),
    "that closes its output and hangs": ("exec >&- 2>&-; sleep 30", "did not end within 0.3 s"),
    "that prints without end": ("exec cat /dev/zero", "printed more than 1024 KiB"),
    "that complains without end": ("exec cat /dev/zero >&2", "printed more than 1024 KiB"),
    "that nests": (f"printf '{'[' * 5000}'", "did not print an ExecCredential"),
}


@pytest.mark.parametrize(("script", "words"), BROKEN.values(), ids=BROKEN)
def test_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str) -> None:
    monkeypatch.setattr(exec_plugin, "PLUGIN_SECONDS", 0.3 if "sleep" in script else 10.0)
    error = refused(ExecPlugin(user_of(plugin(tmp_path, script), tmp_path / "runs")["exec"], tmp_path, {}).header)
    assert error.failure.error is ErrorClass.DENIED
    assert f"auth-plugin: {words}" in error.failure.text
    assert "secret-token" not in error.failure.text


def test_a_plugin_that_hangs_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_plugin, "PLUGIN_SECONDS", 0.3)
    script = 'sleep 30 & echo $! > "$RUNS"; wait'
    refused(ExecPlugin(user_of(plugin(tmp_path, script), tmp_path / "runs")["exec"], tmp_path, {}).header)
    status = Path("/proc") / (tmp_path / "runs").read_text().strip() / "stat"
    ended = until(lambda: not status.exists() or ") Z " in status.read_text(), 30, what="the plugin's own process ends")
    assert ended


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "not found; install it where the provisioner runs, or let the pool name endpoint and credentials"),
        ({"installHint": "See https://example.com/install"}, "not found; See https://example.com/install"),
    ],
    ids=["without a hint", "with a hint"],
)
def test_a_missing_plugin_is_reported_with_its_fix_and_only_observations_and_creates_fail(
    tmp_path: Path, more: dict[str, str], words: str
) -> None:
    user = user_of("gke-gcloud-auth-plugin-that-is-not-there", tmp_path / "runs", **more)
    settings = pool(tmp_path, kubeconfig=write_kubeconfig(tmp_path / "k", "https://127.0.0.1:1", user))
    backend = GkeBackend(settings, Namespaces(), provisioner="demo")
    backend.start(lambda: None)
    try:
        error = refused(lambda: backend.observe(0.0, {}))
        assert (error.failure.error, words in error.failure.text) == (ErrorClass.DENIED, True)
        create = Create("hf-abcdefghij-000001", "gke-main", "small", "abcdefghij")
        (outcome,) = backend.create([create], lambda: True)
        assert outcome.failure == error.failure
    finally:
        backend.close()


def test_a_plugin_that_wants_a_terminal_is_a_mistake_of_the_configuration(tmp_path: Path) -> None:
    user = user_of("plugin", tmp_path / "runs", interactiveMode="Always")
    error = refused(lambda: connect(pool(tmp_path, kubeconfig=write_kubeconfig(tmp_path / "k", "http://x", user))))
    assert (error.failure.error, "wants a terminal" in error.failure.text) == (ErrorClass.INVALID, True)


# --- what the kubeconfig itself holds ---------------------------------------------------------------------------------


def test_a_token_of_the_kubeconfig_is_read_again_when_the_server_no_longer_takes_it(
    guard: Guard, tmp_path: Path
) -> None:
    guard.tokens = {"one"}
    path = write_kubeconfig(tmp_path / "k", guard.address, {"token": "one"})
    api = connect(pool(tmp_path, kubeconfig=path))
    assert ask(api)
    guard.tokens = {"two"}
    write_kubeconfig(path, guard.address, {"token": "two"})
    assert ask(api), "a changed file is read at the next call"


def test_credentials_that_the_server_no_longer_takes_are_read_again_though_no_file_changed(
    guard: Guard, tmp_path: Path
) -> None:
    path = write_kubeconfig(tmp_path / "k", guard.address, {"token": "one"})
    api = connect(pool(tmp_path, kubeconfig=path))
    way, _ = api.access.now()
    assert not ask(api)
    assert api.access.now()[0] is not way, "kept connections are used no more"


def test_the_official_client_is_not_asked_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting:
        asked = 0

        def auth_settings(self) -> dict[str, Any]:
            self.asked += 1
            return {"BearerToken": {"value": f"Bearer {self.asked}"}}

    kubeconfig, now = Kubeconfig(Counting()), 100.0
    monkeypatch.setattr(credentials, "time", SimpleNamespace(monotonic=lambda: now))
    assert [kubeconfig.header() for _ in range(3)] == ["Bearer 1"] * 3
    now += KEEP_SECONDS
    assert kubeconfig.header() == "Bearer 2"


def test_a_server_on_plain_http_that_wants_credentials_is_reported_with_the_setting(
    guard: Guard, tmp_path: Path
) -> None:
    api = connect(pool(tmp_path, endpoint=guard.plain))
    for _ in range(2):
        error = refused(lambda: api.get("/api/v1/namespaces/n/pods"))
        assert error.failure.error is ErrorClass.DENIED
        assert error.failure.text == (
            f'HTTP 401 {{"reason": "Unauthorized"}}: {guard.plain} wants credentials (HTTP 401), '
            "and over plain HTTP none are sent: "
            "let the pool's 'endpoint' begin with https://, or name a 'kubeconfig' instead"
        )


CLOCK = "this host's clock is 25 min behind the place's"


@pytest.mark.parametrize("is_plain", [True, False], ids=["plain HTTP", "TLS"])
def test_a_login_that_a_cluster_with_another_time_refuses_leads_to_the_clock_alone(
    guard: Guard, tmp_path: Path, is_plain: bool
) -> None:
    guard.ahead = 1500.0
    server = guard.plain if is_plain else guard.address
    api = connect(pool(tmp_path, kubeconfig=write_kubeconfig(tmp_path / "k", server, {"token": "old"})))
    text = refused(lambda: api.get("/api/v1/namespaces/n/pods")).failure.text
    assert CLOCK in text
    assert [words for words in ("begin with https", "renew", "another login") if words in text] == []


def test_a_token_server_with_another_time_leads_to_the_clock_of_each_call(
    guard: Guard, tmp_path: Path, key_file: Path
) -> None:
    guard.ahead, guard.granted = 1500.0, lambda _: (400, {"error": "invalid_grant", "error_description": "Invalid JWT"})
    api = at_endpoint(tmp_path, credentials=key_file)
    for _ in range(2):
        text = refused(lambda: api.get("/api/v1/namespaces/n/pods")).failure.text
        assert "Invalid JWT" in text
        assert text.count(CLOCK) == 1
    guard.ahead = 0.0
    assert (
        CLOCK
        not in refused(
            lambda: at_endpoint(tmp_path, credentials=key_file).get("/api/v1/namespaces/n/pods")
        ).failure.text
    )


def test_a_kubeconfig_that_is_being_written_leaves_what_was_known(guard: Guard, tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "k", guard.address, {"token": "one"})
    api = connect(pool(tmp_path, kubeconfig=path))
    path.write_text("")
    guard.tokens = {"one"}
    assert ask(api)
    guard.tokens = {"two"}
    text = refused(lambda: api.get("/api/v1/namespaces/n/pods")).failure.text
    assert text.startswith(f"{path}, {tmp_path / 'Bank-Root.pem'} cannot be used: "), (
        "the newer file is the cause, not the login before"
    )
    write_kubeconfig(path, guard.address, {"token": "two"})
    assert ask(api)


def test_an_authority_that_cannot_be_read_is_named_when_the_one_before_no_longer_works(
    guard: Guard, tmp_path: Path
) -> None:
    guard.tokens = {"one"}
    authority = tmp_path / "Bank-Root.pem"
    content = authority.read_text()
    api = connect(pool(tmp_path, kubeconfig=write_kubeconfig(tmp_path / "k", guard.address, {"token": "one"})))
    authority.write_text("no certificate")
    assert ask(api), "the one before works"
    guard.tokens = set()
    text = refused(lambda: api.get("/api/v1/namespaces/n/pods")).failure.text
    assert text.startswith(f"{tmp_path / 'k'}, {authority} cannot be used: ")
    authority.write_text(content)
    guard.tokens = {"one"}
    assert ask(api)


# --- in a cluster -----------------------------------------------------------------------------------------------------


def test_in_a_cluster_the_token_is_the_one_in_the_file_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("one")
    authority.write_text("certificate")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    api = connect(pool(tmp_path))
    way, headers = api.access.now()
    assert (way.host, headers) == ("https://10.96.0.1:443", {"Authorization": "Bearer one"})
    token.write_text("two-")
    assert api.access.now() == (way, {"Authorization": "Bearer two-"}), "a token alone ends no connection"
    token.unlink()
    assert refused(api.access.now).failure.error is ErrorClass.DENIED


# --- an endpoint with Google's credentials ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption()).decode()


@pytest.fixture
def key_file(tmp_path: Path, guard: Guard, private_key: str) -> Path:
    """Return the key file of a service account. Its tokens come from the ``guard``."""
    path = tmp_path / "key.json"
    account = {"type": "service_account", "client_email": "hf@example.iam", "private_key_id": "1"}
    path.write_text(json.dumps({**account, "private_key": private_key, "token_uri": f"{guard.plain}/token"}))
    return path


def at_endpoint(directory: Path, **settings: Any) -> KubeApi:
    return connect(pool(directory, **{"endpoint": "https://10.0.0.1", **settings}))


def token_of(api: KubeApi) -> str:
    return api.access.now()[1]["Authorization"]


def test_a_key_files_token_is_used_until_it_ends_or_the_server_does_not_take_it(
    guard: Guard, tmp_path: Path, key_file: Path
) -> None:
    api = at_endpoint(tmp_path, credentials=key_file)
    assert guard.grants == 0, "no token is requested before the first call"
    assert [token_of(api), token_of(api)] == ["Bearer google-1", "Bearer google-1"]
    api.access.note_rejection(api.access.now()[0])
    assert token_of(api) == "Bearer google-2"


def test_a_key_file_that_was_exchanged_counts_at_the_next_call_and_half_of_one_does_no_harm(
    guard: Guard, tmp_path: Path, key_file: Path
) -> None:
    token = GoogleToken(key_file)
    assert token.header() == "Bearer google-1"
    whole = key_file.read_text()
    key_file.write_text(whole[:100])
    assert token.header() == "Bearer google-1", "it is still valid"
    key_file.write_text(whole.replace("hf@", "hg@"))
    assert [token.header(), token.header()] == ["Bearer google-2"] * 2


def test_the_token_of_a_key_says_the_account_s_address_too(guard: Guard, tmp_path: Path, key_file: Path) -> None:
    """The token must contain the account's address. Otherwise the cluster would know the account only by a number, and
    a role bound to the address would have no effect."""
    token_of(at_endpoint(tmp_path, credentials=key_file))
    (assertion,) = guard.assertions
    claims = assertion.split(".")[1]
    scopes = json.loads(urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["scope"].split()
    assert {scope.rpartition("/")[2] for scope in scopes} == {"cloud-platform", "userinfo.email"}


def test_a_google_token_is_renewed_before_it_ends(guard: Guard, tmp_path: Path, key_file: Path) -> None:
    guard.granted = lambda number: (200, {"access_token": f"brief-{number}", "expires_in": 60})
    api = at_endpoint(tmp_path, credentials=key_file)
    assert [token_of(api), token_of(api)] == ["Bearer brief-1", "Bearer brief-2"]


def test_a_key_that_was_exchanged_counts_once_the_token_of_the_one_before_has_ended(
    guard: Guard, tmp_path: Path, key_file: Path
) -> None:
    guard.granted = lambda number: (200, {"access_token": f"brief-{number}", "expires_in": 60})
    token = GoogleToken(key_file)
    assert token.header() == "Bearer brief-1"
    taken, account = key_file.read_text(), json.loads(key_file.read_text())
    key_file.write_text(json.dumps({**account, "token_uri": "http://127.0.0.1:1/withdrawn"}))
    assert refused(token.header).failure.error is ErrorClass.UNAVAILABLE
    key_file.write_text(taken)
    assert token.header() == "Bearer brief-2"


def test_without_a_key_file_the_application_default_credentials_are_used(
    tmp_path: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key_file))
    assert token_of(at_endpoint(tmp_path)) == "Bearer google-1"


def test_without_any_google_credentials_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    error = refused(at_endpoint(tmp_path).access.now)
    assert error.failure.error is ErrorClass.DENIED
    assert "let the pool's 'credentials' name a key file, or run 'gcloud auth" in error.failure.text


def test_a_key_that_google_does_not_take_is_denied_in_its_words(guard: Guard, tmp_path: Path, key_file: Path) -> None:
    guard.granted = lambda _: (400, {"error": "invalid_grant", "error_description": "Account deleted"})
    error = refused(at_endpoint(tmp_path, credentials=key_file).access.now)
    assert error.failure.error is ErrorClass.DENIED
    assert "Account deleted" in error.failure.text


def test_nothing_is_sent_in_the_clear(guard: Guard, tmp_path: Path, key_file: Path) -> None:
    guard.tokens = {""}
    assert ask(at_endpoint(tmp_path, endpoint=f"{guard.plain}/", credentials=key_file))
    assert (guard.received, guard.grants) == ([""], 0)


# --- renewal in general -----------------------------------------------------------------------------------------------


class Source:
    """Credentials that count how often they were read and used."""

    def __init__(self) -> None:
        self.asked, self.renewed = 0, -1
        self.failing = False

    def read(self) -> Reading:
        self.renewed += 1
        return Reading(Way("http://127.0.0.1:1", PoolManager()), self)

    def header(self) -> str:
        self.asked += 1
        if self.failing:
            raise BackendError(ErrorClass.DENIED, f"failure {self.asked}")
        return f"Bearer {self.renewed}"


def test_only_the_credentials_in_use_are_renewed_and_not_again_and_again() -> None:
    source, clock = Source(), [100.0]
    login = Login(source.read, clock=lambda: clock[0])
    first, _ = login.now()
    login.note_rejection(first)
    second, _ = login.now()
    login.note_rejection(second)
    assert source.renewed == 1, "the server takes no newer ones either"
    clock[0] += RENEW_SECONDS
    login.note_rejection(first)
    assert source.renewed == 1, "many calls under way were sent with the old ones"
    login.note_rejection(second)
    assert source.renewed == 2


def test_credentials_that_cannot_be_had_are_not_asked_for_with_every_call() -> None:
    source, clock = Source(), [100.0]
    source.failing = True
    login = Login(source.read, clock=lambda: clock[0])
    assert [refused(login.now).failure.text for _ in range(3)] == ["failure 1"] * 3
    clock[0] += RENEW_SECONDS
    assert refused(login.now).failure.text == "failure 2"
    source.failing = False
    clock[0] += RENEW_SECONDS
    assert login.now()[1] == {"Authorization": "Bearer 0"}


# --- what must not pass for a change ----------------------------------------------------------------------------------


def test_another_current_context_is_another_cluster_and_is_not_followed(guard: Guard, tmp_path: Path) -> None:
    guard.tokens = {"one"}
    path = write_kubeconfig(tmp_path / "k", guard.address, {"token": "one"})
    api = connect(pool(tmp_path, kubeconfig=path))
    document = json.loads(path.read_text())
    document["clusters"].append({"name": "d", "cluster": {"server": "http://127.0.0.1:1"}})
    document["contexts"].append({"name": "y", "context": {"cluster": "d", "user": "u"}})
    path.write_text(json.dumps({**document, "current-context": "y"}))
    assert ask(api)
    assert api.access.host() == guard.address


def test_a_token_file_that_is_empty_for_a_moment_costs_nothing(guard: Guard, tmp_path: Path) -> None:
    guard.tokens = {"one", "two"}
    token = tmp_path / "token"
    token.write_text("one")
    api = connect(pool(tmp_path, kubeconfig=write_kubeconfig(tmp_path / "k", guard.address, {"tokenFile": "token"})))
    assert ask(api)
    token.write_text("")
    assert ask(api)
    token.write_text("two")
    assert ask(api)
    assert guard.received == ["one", "one", "two"]


@pytest.mark.parametrize("token", ["s3cret\nsecond line", "s3cret\u20ac", "s3cret\x00"])
def test_a_token_that_is_none_is_denied_and_not_repeated(guard: Guard, tmp_path: Path, token: str) -> None:
    (tmp_path / "token").write_text(token)
    api = connect(pool(tmp_path, kubeconfig=write_kubeconfig(tmp_path / "k", guard.address, {"tokenFile": "token"})))
    error = refused(lambda: api.get("/api/v1/namespaces/n/pods"))
    assert error.failure.error is ErrorClass.DENIED
    assert "s3cret" not in error.failure.text


def test_a_key_for_which_the_token_server_was_away_counts_later(
    guard: Guard, tmp_path: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(google_auth, "RETRY_SECONDS", 0.0)
    token = GoogleToken(key_file)
    assert token.header() == "Bearer google-1"
    account = json.loads(key_file.read_text())
    key_file.write_text(
        json.dumps({**account, "token_uri": "http://127.0.0.1:1/away", "client_email": "x@example.iam"})
    )
    assert token.header() == "Bearer google-1"
    monkeypatch.setattr(FollowedCredentials, "refresh", _recorded := Recorded(FollowedCredentials.refresh))
    assert token.header() == "Bearer google-1"
    assert _recorded.calls == 1, "it is tried again"


class Recorded:
    """A method that counts its calls."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method, self.calls = method, 0

    def __get__(self, instance: Any, _owner: type) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls += 1
            return self._method(instance, *arguments)

        return call


def test_application_default_credentials_are_followed_in_their_usual_place(
    tmp_path: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    usual = tmp_path / "application_default_credentials.json"
    usual.write_text(key_file.read_text())
    api = at_endpoint(tmp_path)
    assert token_of(api) == "Bearer google-1"
    usual.write_text(key_file.read_text().replace("hf@", "hg@"))
    assert [token_of(api), token_of(api)] == ["Bearer google-2"] * 2


def test_a_refusal_names_the_kubeconfig_of_the_login(guard: Guard, tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "k", guard.address, {"token": "old"})
    api = connect(pool(tmp_path, kubeconfig=path))
    text = refused(lambda: api.get("/api/v1/namespaces/n/pods")).failure.text
    assert f": the login (kubeconfig {path}, context x) is refused; " in text
