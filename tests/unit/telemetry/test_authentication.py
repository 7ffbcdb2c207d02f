"""Access to the HTTP server: by a token that may change, and under which host names."""

from __future__ import annotations

import base64
from http import HTTPStatus
from pathlib import Path

import pytest

from provisioner.settings.definitions import Server as Readers
from provisioner.telemetry import authentication as module
from provisioner.telemetry.authentication import (
    LOGGED,
    LOGIN_SECONDS,
    LOGINS,
    Access,
    AccessError,
    FailedLogins,
    is_own_host,
)
from tests.support.waiting import until

TOKEN = "s3cret-täken"


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    return file


def header(text: str) -> str:
    """Return a header as the server has decoded it."""
    return text.encode().decode("latin-1")


def basic(password: str) -> str:
    """Return a header as browsers send it, which contains no token of ours."""
    return "Basic " + base64.b64encode(f"anyone:{password}".encode()).decode()


WRONG = ["", "Bearer", "Bearer x", f"Bearer {TOKEN}x", f"Token {TOKEN}", basic(""), basic(TOKEN), "Basic"]
RIGHT = [f"Bearer {TOKEN}", f"bearer  {TOKEN} "]


@pytest.mark.parametrize(("given", "allowed"), [*((one, False) for one in WRONG), *((one, True) for one in RIGHT)])
def test_the_token_allows_reading(token: Path, given: str, allowed: bool) -> None:
    verdict = HTTPStatus.OK if allowed else HTTPStatus.UNAUTHORIZED
    assert Access(Readers(token_file=token)).judge(header(given)) is verdict
    assert Access().judge(header(given)) is HTTPStatus.OK, "without a configured token"


def test_a_changed_token_is_used_at_once_and_a_lost_or_empty_token_file_refuses_all(token: Path) -> None:
    access = Access(Readers(token_file=token))

    def let_in() -> list[bool]:
        access.refresh()
        answers = [access.judge(header(f"Bearer {given}"), given) for given in (TOKEN, "another one", "")]
        return [answer is HTTPStatus.OK for answer in answers]

    token.write_text("another one")
    assert let_in() == [False, True, False]
    token.write_text("\n")
    assert let_in() == [False] * 3
    token.unlink()
    assert let_in() == [False] * 3
    token.write_text(TOKEN)
    assert let_in() == [True, False, False]


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_start_without_a_usable_token_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "t"
    if content is not None:
        file.write_text(content)
    with pytest.raises(AccessError, match=f"^server.token_file {file}: "):
        Access(Readers(token_file=file))


def test_a_certificate_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "c"
    file.write_text("no certificate")
    with pytest.raises(AccessError, match=rf"^server\.tls_cert {file} with server\.tls_key "):
        Access(Readers(tls_cert=file, tls_key=file))
    file.unlink()
    with pytest.raises(AccessError, match=rf"^server\.tls_cert {file} with server\.tls_key .*No such file"):
        Access(Readers(tls_cert=file, tls_key=file))


def test_files_are_checked_by_a_thread_alone_and_a_failed_change_is_logged_once(
    token: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    access = Access(Readers(token_file=token))
    token.unlink()
    assert access.judge(header(f"Bearer {TOKEN}")) is HTTPStatus.OK, "no login waits for a disk"
    monkeypatch.setattr(module, "FILE_SECONDS", 0.01)
    access.follow()
    try:
        until(lambda: access.judge(header(f"Bearer {TOKEN}")) is not HTTPStatus.OK, 10, what="the loss is seen")
        new = token.with_suffix(".new")
        new.write_text(TOKEN)
        new.rename(token)  # the thread sees the whole file or no file
        until(lambda: access.judge(header(f"Bearer {TOKEN}")) is HTTPStatus.OK, 10, what="the token is seen")
    finally:
        access.close()
    said = [record.message for record in caplog.records if "cannot be read" in record.message]
    assert said == ["Token cannot be read, every login is refused"]


OURS = ["", "localhost", "LOCALHOST:9464", "127.0.0.1", "127.0.0.1:80", "127.1.2.3:9", "[::1]", "[::1]:9464"]
OTHERS = [
    "evil.example", "evil.example:9464", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.7:9", "[fe80::1]"
]  # fmt: skip


@pytest.mark.parametrize(("host", "is_own"), [*((one, True) for one in OURS), *((one, False) for one in OTHERS)])
def test_on_the_loopback_no_page_of_another_host_can_read_ours_by_a_name_that_leads_here(
    host: str, is_own: bool
) -> None:
    assert is_own_host(host, "127.0.0.1:0") is is_own


# --- wrong tokens -----------------------------------------------------------------------------------------------------


class Attempts(FailedLogins):
    """A counter of failed logins, with a clock that the test sets forward."""

    def __init__(self) -> None:
        self.now = 100.0
        super().__init__(lambda: self.now)

    def of(self, client: str, count: int) -> list[bool]:
        return [self.add(client) for _ in range(count)]


def test_a_client_is_limited_by_its_own_wrong_tokens_and_for_a_minute() -> None:
    attempts = Attempts()
    assert attempts.of("a", LOGINS + 1) == [True] * LOGINS + [False]
    assert attempts.of("b", 1) == [True]
    attempts.now += LOGIN_SECONDS
    assert attempts.of("a", 1) == [True]


def test_each_client_with_wrong_tokens_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    attempts = Attempts()
    attempts.of("a", 5)
    attempts.of("b", 1)
    attempts.of("a", 1)
    attempts.now += LOGIN_SECONDS
    attempts.of("a", 5)
    logged = [(record.levelname, record.message, vars(record)["client"]) for record in caplog.records]
    assert logged == [("WARNING", "Wrong token sent", client) for client in "aba"]


def test_some_clients_with_wrong_tokens_are_named_and_the_others_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    attempts = Attempts()
    for number in range(LOGGED + 150):
        attempts.of(f"client {number}", 2)
    named = [vars(record)["client"] for record in caplog.records if record.message == "Wrong token sent"]
    assert named == [f"client {number}" for number in range(LOGGED)]
    assert [vars(record)["clients"] for record in caplog.records[LOGGED:]] == [1, 10, 100]


@pytest.mark.parametrize(("given", "failed"), [("", 0), ("Bearer x", 1), (basic("x"), 1), (f"Bearer {TOKEN}", 0)])
def test_a_login_fails_only_if_a_token_was_sent(token: Path, given: str, failed: int) -> None:
    rejected: list[str] = []
    Access(Readers(token_file=token), rejected.append).judge(header(given), "a")
    assert rejected == ["token"] * failed


def test_the_right_token_is_accepted_after_any_number_of_wrong_tokens(token: Path) -> None:
    rejected: list[str] = []
    access = Access(Readers(token_file=token), rejected.append)
    wrong = [access.judge("Bearer x", "proxy") for _ in range(LOGINS + 2)]
    assert wrong == [HTTPStatus.UNAUTHORIZED] * LOGINS + [HTTPStatus.TOO_MANY_REQUESTS] * 2
    assert access.judge(header(f"Bearer {TOKEN}"), "proxy") is HTTPStatus.OK
    assert access.judge("", "proxy") is HTTPStatus.UNAUTHORIZED, "a missing token is no wrong token"
    assert rejected == ["token"] * LOGINS + ["rate"] * 2
