"""Who may read what the HTTP server says: token, TLS, methods and headers, over a real socket."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from prometheus_client import CollectorRegistry

from provisioner.telemetry.access import Access, AccessError, AccessFiles
from provisioner.telemetry.server import Health, ListenError, Server
from tests.support.status_page import TIDY, grid, page, served

TOKEN = "s3cret-täken"
PATHS = ("/", "/status.json", "/status", "/metrics", f"/pool/{TIDY}", "/nothing")


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    return file


@pytest.fixture
def url(tmp_path: Path, token: Path) -> Iterator[str]:
    with served(page(tmp_path, *grid()), AccessFiles(token)) as url:
        yield url


def ask(url: str, authorization: str = "") -> requests.Response:
    return requests.get(url, headers={"Authorization": authorization.encode()} if authorization else {}, timeout=5)


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anyone:{password}".encode()).decode()


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_nothing_is_told(url: str, path: str) -> None:
    wrong = (
        "",
        "Bearer",
        "Bearer x",
        f"Bearer {TOKEN}x",
        f"Token {TOKEN}",
        basic(""),
        basic("x"),
        "Basic ???",
        "Basic",
    )
    for given in wrong:
        response = ask(url + path, given)
        assert (response.status_code, TIDY in response.text) == (401, False), given
        assert "Basic realm" in response.headers["WWW-Authenticate"]


@pytest.mark.parametrize("given", [f"Bearer {TOKEN}", f"bearer  {TOKEN} ", basic(TOKEN)])
def test_with_the_token_everything_is_as_without_one(url: str, given: str) -> None:
    assert [ask(url + path, given).status_code for path in PATHS] == [200, 200, 200, 200, 200, 404]
    assert ask(f"{url}/healthz", given).text == f"fine, says {TIDY}\n"


def test_probes_work_without_the_token_and_tell_no_words(url: str) -> None:
    for path in ("/healthz", "/readyz"):
        assert (ask(url + path).status_code, ask(url + path).text) == (200, "OK\n")


OURS = ("localhost", "LOCALHOST:9464", "127.0.0.1", "127.0.0.1:80", "127.1.2.3:9", "[::1]", "[::1]:9464")
OTHERS = (
    "evil.example",
    "evil.example:9464",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "10.0.0.7:9464",
    "[fe80::1]",
)


def asked_as(url: str, host: str, path: str) -> requests.Response:
    return requests.get(url + path, headers={"Host": host}, timeout=5)


def test_on_the_loopback_no_page_of_another_host_can_read_ours_by_a_name_that_leads_here(tmp_path: Path) -> None:
    with served(page(tmp_path, *grid())) as url:
        for path in ("/", "/status.json", "/status", f"/pool/{TIDY}"):
            assert [asked_as(url, host, path).status_code for host in OURS] == [200] * len(OURS)
            for host in OTHERS:
                refused = asked_as(url, host, path)
                assert (refused.status_code, TIDY in refused.text) == (421, False), host
                assert refused.text == f"This answers on 127.0.0.1:0, and not as another host: open {url}/ instead.\n"
        for path in ("/metrics", "/healthz", "/readyz"):
            assert asked_as(url, "10.0.0.7:9464", path).status_code == 200, "a probe, or Prometheus"


def test_a_question_without_a_host_is_no_browsers(tmp_path: Path) -> None:
    with (
        served(page(tmp_path, *grid())) as url,
        socket.create_connection(("127.0.0.1", int(url.split(":")[-1]))) as line,
    ):
        line.sendall(b"GET /status.json HTTP/1.0\r\n\r\n")
        assert line.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n"


def address_of(url: str) -> tuple[str, int]:
    host, _, port = url.rpartition("/")[2].rpartition(":")
    return host, int(port)


def test_on_another_address_whoever_may_read_asks_by_any_name(tmp_path: Path, token: Path) -> None:
    with served(page(tmp_path, *grid()), AccessFiles(token), listen="0.0.0.0:0") as url:
        here = url.replace("0.0.0.0", "127.0.0.1")
        headers = {"Host": "grid.example:9464", "Authorization": f"Bearer {TOKEN}".encode()}
        assert requests.get(f"{here}/status.json", headers=headers, timeout=5).status_code == 200


def test_a_token_that_changed_holds_from_then_on_and_a_lost_one_lets_nobody_in(url: str, token: Path) -> None:
    token.write_text("another one")
    assert [ask(url, f"Bearer {given}").status_code for given in (TOKEN, "another one")] == [401, 200]
    token.unlink()
    assert [ask(url, f"Bearer {given}").status_code for given in ("another one", "")] == [401, 401]
    token.write_text(TOKEN)
    assert ask(url, f"Bearer {TOKEN}").status_code == 200


def test_an_emptied_token_file_lets_nobody_in(url: str, token: Path) -> None:
    token.write_text("\n")
    assert [ask(url, given).status_code for given in ("Bearer ", basic(""), f"Bearer {TOKEN}")] == [401, 401, 401]


def test_who_listens_beyond_this_host_without_a_token_says_so(token: Path, caplog: pytest.LogCaptureFixture) -> None:
    for listen, files, said in (
        ("127.0.0.1:0", AccessFiles(), False),
        ("0.0.0.0:0", AccessFiles(token), False),
        ("0.0.0.0:0", AccessFiles(), True),
    ):
        server = Server(listen, CollectorRegistry(), lambda: Health(True, True, ""), dict, files=files)
        server.start()
        server.stop()
        assert ("Everybody who reaches this address can read the status page" in caplog.text) is said, listen


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_start_without_a_usable_token_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "t"
    if content is not None:
        file.write_text(content)
    shown = page(tmp_path, *grid())
    with pytest.raises(ListenError, match=f"^server.token_file {file}: "), served(shown, AccessFiles(file)):
        pass


def test_every_answer_has_the_headers_that_protect_it(url: str) -> None:
    for path in (*PATHS, "/healthz"):
        for given in ("", f"Bearer {TOKEN}"):
            headers = ask(url + path, given).headers
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cache-Control"] == "no-store"
            policy = headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; ")
            assert "frame-ancestors 'none'" in policy
            assert "script" not in policy
            assert "unsafe" not in policy


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(url: str, method: str) -> None:
    response = requests.request(method, f"{url}/", data="x" * 100, timeout=5)
    assert (response.status_code, response.headers["Allow"]) == (405, "GET, HEAD")


def test_a_head_has_no_body(url: str) -> None:
    response = requests.head(f"{url}/", headers={"Authorization": f"Bearer {TOKEN}".encode()}, timeout=5)
    assert (response.status_code, response.content) == (200, b"")
    assert int(response.headers["Content-Length"]) > 1000


# --- TLS --------------------------------------------------------------------------------------------------------------


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A certificate of this name for 127.0.0.1, signed by itself."""
    cert, key = directory / "tls.crt", directory / "tls.key"
    options = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    about = [
        "-subj",
        f"/CN={name}",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        f"{key}.new",
        "-out",
        f"{cert}.new",
    ]
    subprocess.run(["openssl", "req", *options, *about], check=True, capture_output=True)
    for file in (cert, key):
        os.replace(f"{file}.new", file)
    return cert, key


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl (Debian package openssl)")


@needs_openssl
def test_with_a_certificate_it_speaks_tls_and_takes_a_renewed_one(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "first")
    shown = page(tmp_path, *grid())
    with served(shown, AccessFiles(cert=cert, key=key)) as url:
        assert url.startswith("https://")
        assert requests.get(f"{url}/healthz", verify=str(cert), timeout=5).status_code == 200
        certificate(tmp_path, "second")
        assert requests.get(f"{url}/healthz", verify=str(cert), timeout=5).status_code == 200
        cert.write_text("no certificate")
        host, port = url.removeprefix("https://").split(":")
        assert "BEGIN CERTIFICATE" in ssl.get_server_certificate((host, int(port)))


@needs_openssl
def test_who_speaks_no_tls_holds_nobody_up(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "one")
    shown = page(tmp_path, *grid())
    with served(shown, AccessFiles(cert=cert, key=key)) as url:
        host, port = url.removeprefix("https://").split(":")
        with (
            socket.create_connection((host, int(port)), timeout=5) as silent,
            socket.create_connection((host, int(port)), timeout=5) as plain,
        ):
            plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert requests.get(f"{url}/healthz", verify=str(cert), timeout=5).status_code == 200
            assert b"HTTP" not in plain.recv(4096)
            silent.close()


def test_a_certificate_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("no certificate")
    with pytest.raises(AccessError, match=r"^server\.tls_cert .* with server\.tls_key "):
        Access(AccessFiles(cert=tmp_path / "c", key=tmp_path / "c"))
