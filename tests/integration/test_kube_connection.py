"""Our client's calls to an API server, over real connections with TLS."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from provisioner.state.errors import StateDenied, StateUnreachable
from provisioner.state.kube import connection
from provisioner.state.kube.api_login import Access
from provisioner.state.kube.connection import MERGE, ApiServer, Watch
from provisioner.state.kube.objects import REQUESTS, collection, item
from tests.support.network.authority import Authority
from tests.support.network.proxy import Proxy
from tests.support.network.scripted import Scripted, response

AT = 1_795_794_194.0
LIST, ONE = collection("grid", REQUESTS), item("grid", REQUESTS, "a")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(authority: Authority) -> Iterator[Scripted]:
    with Scripted(authority.context("127.0.0.1")) as scripted:
        yield scripted


@pytest.fixture
def access(server: Scripted, authority: Authority, tmp_path: Path) -> Access:
    token = tmp_path / "token"
    token.write_text("first\n")
    return Access(server.address, token_file=str(token), authority=str(authority.file))


@pytest.fixture
def api(access: Access) -> Iterator[ApiServer]:
    api = ApiServer(lambda: access, "grid")
    yield api
    api.close()


def test_call_returns_status_document_and_the_servers_time(api: ApiServer, server: Scripted) -> None:
    server.responses += [response(201, {"kind": "x"}), response(200, {"kind": "y"})]
    assert api.call("POST", LIST, {"a": "ü"}) == (201, {"kind": "x"}, AT)
    assert api.call("PATCH", ONE, {"b": None}, content=MERGE) == (200, {"kind": "y"}, AT)
    assert server.bodies == [{"a": "ü"}, {"b": None}]
    assert [connection for connection, _ in server.asked] == [1, 1]  # kept alive
    assert server.asked[0][1].startswith(f"POST {LIST} HTTP/1.1\r\nHost: {server.address[8:]}\r\n")
    assert server.header(0, "authorization") == "Bearer first"
    assert server.header(1, "content-type") == "application/merge-patch+json"
    assert (api.namespace, api.name) == ("grid", server.address)


def test_idle_connection_is_made_again_with_the_present_token(
    api: ApiServer, access: Access, server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.responses += [response(200), response(200)]
    api.call("GET", ONE)
    Path(access.token_file).write_text("second")
    monkeypatch.setattr(connection, "IDLE_SECONDS", -1.0)
    api.call("GET", ONE)
    assert [(number, server.header(place, "authorization")) for place, (number, _) in enumerate(server.asked)] == [
        (1, "Bearer first"),
        (2, "Bearer second"),
    ]


def test_refused_login_is_tried_once_with_the_renewed_token(api: ApiServer, access: Access, server: Scripted) -> None:
    server.responses += [response(200), response(401, {"message": "Unauthorized"}), response(200, {"kind": "x"})]
    api.call("GET", ONE)
    Path(access.token_file).write_text("second")
    assert api.call("GET", ONE).document == {"kind": "x"}
    assert server.header(2, "authorization") == "Bearer second"
    server.responses += [response(401, {"message": "Unauthorized"})] * 2
    with pytest.raises(StateDenied, match=r"HTTP 401: Unauthorized\. Renew the token"):
        api.call("GET", ONE)
    assert len(server.asked) == 5


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 10\r\n\r\n{", b"SSH-2.0\r\n"]
)
def test_broken_call_is_repeated_once(api: ApiServer, server: Scripted, answer: bytes) -> None:
    server.responses += [answer, response(200, {"kind": "x"})]
    assert api.call("POST", LIST, {}, seconds=5.0).document == {"kind": "x"}
    server.responses += [b"", b"", response(200)]
    with pytest.raises(StateUnreachable, match="without response"):
        api.call("POST", LIST, {})
    assert len(server.asked) == 4


def test_server_that_is_down_is_unreachable(access: Access, server: Scripted) -> None:
    api = ApiServer(lambda: access._replace(server="https://127.0.0.1:1"))
    with pytest.raises(StateUnreachable, match=r"^https://127.0.0.1:1: no usable response: .*Connection refused"):
        api.call("GET", ONE)


def test_silent_server_is_unreachable(api: ApiServer, server: Scripted) -> None:
    server.responses += [b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n"]
    with pytest.raises(StateUnreachable, match=r"in time|timed out"):
        api.call("GET", ONE, seconds=0.2)


def test_busy_server_is_asked_again_when_it_says(
    api: ApiServer, server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(connection.time, "sleep", pauses.append)
    server.responses += [response(429, {}, "Retry-After: 1")] * 3 + [response(503), response(200, {"kind": "x"})]
    assert api.call("GET", ONE).document == {"kind": "x"}
    assert pauses == [1.0, 1.0, 1.0, 0.0]
    server.responses += [response(429, {"message": "too many"}, "Retry-After: 10")]
    with pytest.raises(StateUnreachable, match="HTTP 429: too many"):
        api.call("GET", ONE)
    server.responses += [response(500, {"message": "etcd"})] * 2
    with pytest.raises(StateUnreachable, match="HTTP 500: etcd"):
        api.call("GET", ONE)
    assert not server.responses
    assert {number for number, _ in server.asked} == {1}


@pytest.mark.parametrize("pause", ["-1", "NaN", "Fri, 27 Nov 2026 15:43:14 GMT"])
def test_busy_server_that_names_no_pause_is_asked_again_once(api: ApiServer, server: Scripted, pause: str) -> None:
    server.responses += [response(429, {}, f"Retry-After: {pause}"), response(200, {"kind": "x"})]
    assert api.call("GET", ONE).document == {"kind": "x"}


@pytest.mark.parametrize("status", [404, 409, 410, 422])
def test_refusals_that_answer_the_call_are_returned(api: ApiServer, server: Scripted, status: int) -> None:
    document = {"message": "no", "details": {"name": "a", "kind": "machinerequests"}}
    server.responses += [response(status, document)]
    assert api.call("GET", ONE) == (status, document, AT)


def test_bodies_of_each_form_are_read(api: ApiServer, server: Scripted) -> None:
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nDate: Fri, 27 Nov 2026 15:43:14 GMT\r\n"
    server.responses += [
        head + b'Transfer-Encoding: chunked\r\n\r\n7;x=y\r\n{"kind"\r\n6\r\n: "x"}\r\n0\r\nTrailer: x\r\n\r\n',
        head + b'\r\n{"kind": "x"}',
        response(200, {"kind": "x"}, "Connection: close"),
        response(200, {"kind": "x"}),
    ]
    assert [api.call("GET", ONE).document for _ in range(4)] == [{"kind": "x"}] * 4
    assert [number for number, _ in server.asked] == [1, 1, 2, 3]


def test_too_large_responses_are_refused(api: ApiServer, server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BODY_BYTES", 10)
    server.responses += [response(200, {"a": "0123456789"})] * 2
    with pytest.raises(StateUnreachable, match="more than"):
        api.call("GET", ONE)
    server.responses += [b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 300 + b"\r\n"] * 2
    with pytest.raises(StateUnreachable, match="more than 100 headers"):
        api.call("GET", ONE)
    server.responses += [b"x" * 70_000] * 2
    with pytest.raises(StateUnreachable, match=r"more than 65536 bytes|reset"):
        api.call("GET", ONE)


def test_lists_may_be_partial(api: ApiServer, server: Scripted) -> None:
    server.responses += [response(200)]
    api.call("GET", LIST + "?limit=1", partial=True)
    assert "as=PartialObjectMetadataList;" in server.header(0, "accept")


def test_unknown_authority_is_refused_before_the_token_is_sent(
    access: Access, server: Scripted, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "Other")
    server.responses += [response(200)]
    with pytest.raises(StateUnreachable, match="certificate verify failed"):
        ApiServer(lambda: access._replace(authority=str(other.file))).call("GET", ONE)
    assert server.asked == []
    insecure = ApiServer(lambda: access._replace(authority=str(other.file), is_insecure=True))
    assert insecure.call("GET", ONE).status == 200
    insecure.close()


def test_certificates_may_be_texts(authority: Authority, tmp_path: Path) -> None:
    context = authority.context("127.0.0.1")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.file)
    key, certificate = (content.decode() for content in authority.signed("scripts"))
    (tmp_path / "key").write_text(key)
    (tmp_path / "certificate").write_text(certificate)
    with Scripted(context) as server:
        texts = Access(server.address, authority=authority.file.read_text(), certificate=certificate, key=key)
        files = texts._replace(certificate=str(tmp_path / "certificate"), key=str(tmp_path / "key"))
        server.responses += [response(200)] * 2
        for access in (texts, files):
            api = ApiServer(lambda access=access: access)
            assert api.call("GET", ONE).status == 200
            api.close()
        with pytest.raises(StateUnreachable):
            ApiServer(lambda: texts._replace(certificate="")).call("GET", ONE)


def test_certificates_as_text_may_have_comments_of_any_language(access: Access, server: Scripted) -> None:
    server.responses += [response(200)]
    text = f"# Főtanúsítvány\n{Path(access.authority).read_text()}"
    api = ApiServer(lambda: access._replace(authority=text))
    assert api.call("GET", ONE).status == 200
    api.close()


def test_certificates_that_cannot_be_used_are_named(
    authority: Authority, access: Access, server: Scripted, tmp_path: Path
) -> None:
    """A call with an unusable certificate or key must not be repeated, because it would fail again. If a key has a
    password, OpenSSL must not ask for it on the terminal."""
    key, certificate = authority.signed("scripts")
    (tmp_path / "crt").write_bytes(certificate)
    locked = load_pem_private_key(key, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    (tmp_path / "locked").write_bytes(locked)
    for wrong in (
        {"authority": f"{tmp_path}/none"},
        {"authority": f"{tmp_path}/token"},
        {"certificate": f"{tmp_path}/none"},
        {"certificate": f"{tmp_path}/crt", "key": f"{tmp_path}/none"},
        {"certificate": f"{tmp_path}/crt", "key": f"{tmp_path}/locked"},
        {"certificate": f"{tmp_path}/crt", "key": locked.decode()},
    ):
        with pytest.raises(StateDenied, match=r"no login with .*the key must have no password") as raised:
            ApiServer(lambda wrong=wrong: access._replace(**wrong)).call("GET", ONE)
        named = [value for value in wrong.values() if "BEGIN" not in value]
        assert all(value in str(raised.value) for value in named)
        assert "BEGIN" not in str(raised.value)
    assert server.asked == []


@pytest.mark.parametrize("token", ["secret\nsecond", "secret second", "sec—ret"])
def test_wrong_token_is_not_shown(access: Access, server: Scripted, tmp_path: Path, token: str) -> None:
    (tmp_path / "token").write_text(token)
    for wrong, place in ((access, f"{tmp_path}/token"), (access._replace(token_file="", token=token), "kubeconfig")):
        with pytest.raises(StateDenied, match=rf"{place}: expected one line with a token") as raised:
            ApiServer(lambda wrong=wrong: wrong).call("GET", ONE)
        assert "sec" not in str(raised.value)
        assert server.asked == []


def test_token_file_that_is_being_written_is_no_anonymous_login(access: Access, server: Scripted) -> None:
    Path(access.token_file).write_text("")
    with pytest.raises(StateDenied, match="write a new file and rename it"):
        ApiServer(lambda: access).call("GET", ONE)
    assert server.asked == []


def test_token_in_the_kubeconfig_may_end_with_a_line_break(access: Access, server: Scripted) -> None:
    server.responses += [response(200)]
    api = ApiServer(lambda: access._replace(token_file="", token="secret\n"))
    assert api.call("GET", ONE).status == 200
    api.close()
    assert server.header(0, "authorization") == "Bearer secret"


@pytest.mark.parametrize(
    "proxy", ["http://me:s3c#ret@proxy:1", "http://me:s3c/ret@proxy:1", "http://me:s3cret@proxy:99999", "http://[::1"]
)
def test_password_of_a_wrong_proxy_is_not_shown(access: Access, proxy: str) -> None:
    with pytest.raises(StateDenied, match=r"HTTPS_PROXY or proxy-url: expected .*%23") as raised:
        ApiServer(lambda: access._replace(proxy=proxy)).call("GET", ONE)
    assert "s3c" not in str(raised.value)


@pytest.mark.parametrize(
    "address", ["10.0.0.1:6443", "", "https://", "https://kube:port", "https://[::1", "tcp://kube"]
)
def test_wrong_address_of_the_server_is_no_outage(address: str) -> None:
    with pytest.raises(StateDenied, match=r"expected `server: https://HOST:PORT` in the kubeconfig"):
        ApiServer(lambda: Access(address)).call("GET", ONE)


def test_plain_http_gets_no_token_and_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    with Scripted(None) as server:
        server.responses += [response(200)]
        api = ApiServer(lambda: Access(f"{server.address}/base/", token="secret"))
        assert api.call("GET", ONE).status == 200
        api.close()
        assert "secret" not in server.asked[0][1]
        assert server.asked[0][1].startswith(f"GET /base{ONE} ")


def test_proxy_leads_to_the_server(authority: Authority, access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    with Scripted(authority.context("kube.bank.test")) as server:
        targets = {"kube.bank.test": (server.server_address, None)}
        with Proxy(targets, "me:p%40ss") as proxy:
            proxy.login = "me:p@ss"
            monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("p@ss", "p%40ss"))
            monkeypatch.setenv("NO_PROXY", "other.test")
            server.responses += [response(200)]
            api = ApiServer(lambda: access._replace(server="https://kube.bank.test"))
            assert api.call("GET", ONE).status == 200
            api.close()
            assert [line.partition(" HTTP/")[0] for line in proxy.asked] == ["CONNECT kube.bank.test:443"]
            proxy.login = "someone:else"
            with pytest.raises(StateDenied, match="proxy wants another login"):
                api.call("GET", ONE)
            proxy.login = "me:p@ss"
            with pytest.raises(StateUnreachable, match=r"proxy 127\.0\.0\.1:\d+: Tunnel connection failed: 403"):
                ApiServer(lambda: access._replace(server="https://elsewhere.test")).call("GET", ONE)
            monkeypatch.setenv("HTTPS_PROXY", "proxy:3128")
            with pytest.raises(StateDenied, match="expected http://proxy:3128 or"):
                api.call("GET", ONE)
            monkeypatch.setenv("HTTPS_PROXY", "http://me:s3cret@127.0.0.1:9")
            with pytest.raises(StateUnreachable, match=r"proxy 127\.0\.0\.1:9: .*refused") as raised:
                api.call("GET", ONE)
            assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("answer", [b"", b"\x00no HTTP\r\n", b"HTTP/1.1 2", None], ids=repr)
def test_a_proxy_that_does_not_answer_as_a_proxy_is_named(access: Access, answer: bytes | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        taken = []

        def serve() -> None:
            with suppress(OSError):
                while True:
                    taken.append(proxy.accept()[0])
                    if answer is not None:
                        with taken.pop() as client:
                            client.recv(1 << 16)
                            client.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        port = proxy.getsockname()[1]
        api = ApiServer(lambda: access._replace(proxy=f"http://127.0.0.1:{port}"))
        with pytest.raises(StateUnreachable, match=rf"proxy 127\.0\.0\.1:{port}: "):
            api.call("GET", ONE, seconds=1.0)
        proxy.shutdown(socket.SHUT_RDWR)
        for client in taken:
            client.close()


def test_certificate_of_another_name_is_no_outage(server: Scripted, access: Access) -> None:
    api = ApiServer(lambda: access._replace(tls_server_name="kube.bank.test"))
    words = r"not valid for 'kube\.bank\.test'.* Correct server, tls-server-name"
    with pytest.raises(StateUnreachable, match=words) as raised:
        api.call("GET", ONE)
    assert "repeated" not in str(raised.value)


def test_threads_have_connections_of_their_own(api: ApiServer, server: Scripted) -> None:
    server.responses += [response(200)] * 2
    api.call("GET", ONE)
    thread = threading.Thread(target=lambda: (api.call("GET", ONE), api.close()))
    thread.start()
    thread.join()
    assert [number for number, _ in server.asked] == [1, 2]


# --- watches ----------------------------------------------------------------------------------------------------------

STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = b'14\r\n{"type": "A"}\n{"type\r\n7\r\n":"B"}\n\r\n'


def test_watch_yields_events_until_the_server_ends_it(api: ApiServer, server: Scripted) -> None:
    server.responses += [STREAM + EVENTS + b"0\r\n\r\n"]
    assert [*api.watch(LIST, 5.0)] == [{"type": "A"}, {"type": "B"}]


def test_broken_watch_raises_after_its_events(
    api: ApiServer, server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.responses += [b"HTTP/1.1 200 OK\r\n\r\n", STREAM + EVENTS + b"zz\r\n", STREAM + EVENTS]
    assert [*api.watch(LIST, 5.0)] == []
    seen = []
    with pytest.raises(StateUnreachable, match="its response is not complete"):
        seen += api.watch(LIST, 5.0)
    events = iter(api.watch(LIST, 0.2))
    assert [next(events), next(events)] == [{"type": "A"}, {"type": "B"}]
    with pytest.raises(StateUnreachable, match=r"in time|timed out"):
        next(events)
    monkeypatch.setattr(connection, "EVENT_BYTES", 3)
    server.responses += [STREAM + b'6\r\n{"typ"\r\n']
    with pytest.raises(StateUnreachable, match="an event has more than"):
        seen += api.watch(LIST, 5.0)


def test_watch_is_closed_from_another_thread(api: ApiServer, server: Scripted) -> None:
    server.responses += [STREAM + EVENTS]
    watch = api.watch(LIST, 60.0)
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.extend(_closing(watch)))
    thread.start()
    thread.join(30.0)
    assert not thread.is_alive()
    assert len(seen) == 2


def _closing(watch: Watch) -> Iterator[object]:
    for event in watch:
        yield event
        threading.Timer(0.05, watch.close).start()


def test_refused_watch_raises_or_yields_an_error_event(api: ApiServer, server: Scripted) -> None:
    gone = {"code": 410, "message": "too old"}
    server.responses += [response(410, gone), response(403, {"message": "cannot watch"}), b""]
    assert [*api.watch(LIST, 5.0)] == [{"type": "ERROR", "object": gone}]
    with pytest.raises(StateDenied, match="cannot watch"):
        api.watch(LIST, 5.0)
    with pytest.raises(StateUnreachable):
        api.watch(LIST, 5.0)
