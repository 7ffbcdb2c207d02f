"""Refusals of an API server, each with its class and the server's words."""

from __future__ import annotations

import json
import time
from email.utils import formatdate

import pytest
import urllib3

from provisioner.backends import BackendError
from provisioner.backends.gke.api import KubeApi, refusal
from provisioner.backends.http import Way, parse, unanswered_error
from provisioner.backends.proxies_and_authorities import ANOTHER_LOGIN
from provisioner.backends.responses import MAX_CHARACTERS
from provisioner.model import ErrorClass, Failure
from tests.support.clients.kube_access import Plain

QUOTA = 'pods "a" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=50, limited: pods=50'
FORBIDDEN = 'pods "a" is forbidden:'
ROLE = 'pods is forbidden: User "system:serviceaccount:a:b" cannot create resource "pods" in API group ""'
WEBHOOK = 'admission webhook "policy.example.com" denied the request: no spot pods'


def status(message: str, reason: str = "") -> bytes:
    return json.dumps({"kind": "Status", "message": message, "reason": reason}).encode()


@pytest.mark.parametrize(
    ("code", "message", "error"),
    [
        (400, "the object provided is unrecognized", ErrorClass.INVALID),
        (400, WEBHOOK, ErrorClass.DENIED),
        (401, "Unauthorized", ErrorClass.DENIED),
        (403, QUOTA, ErrorClass.QUOTA),
        (403, f"{FORBIDDEN} failed quota: grid: must specify limits.cpu for: worker", ErrorClass.INVALID),
        (403, f"{FORBIDDEN} status unknown for quota: grid, resources: pods", ErrorClass.UNAVAILABLE),
        (403, f"{FORBIDDEN} insufficient quota to match these scopes: [{{PriorityClass In [low]}}]", ErrorClass.DENIED),
        (403, f"{FORBIDDEN} ValidatingAdmissionPolicy 'q' denied request: exceeded quota: teams", ErrorClass.DENIED),
        (422, f"{FORBIDDEN} ValidatingAdmissionPolicy 'quota' denied request: no team", ErrorClass.DENIED),
        (403, f"{FORBIDDEN} maximum cpu usage per Container is 2 by the quota team's wish", ErrorClass.DENIED),
        (403, ROLE, ErrorClass.DENIED),
        (403, WEBHOOK, ErrorClass.DENIED),
        (404, 'namespaces "symphony" not found', ErrorClass.NOT_FOUND),
        (409, 'pods "a" already exists', ErrorClass.OTHER),
        (410, "too old resource version", ErrorClass.OTHER),
        (413, "Request entity too large", ErrorClass.INVALID),
        (422, 'Pod "a" is invalid: spec.containers[0].image: Required value', ErrorClass.INVALID),
        (429, "the server has received too many requests", ErrorClass.THROTTLED),
        (500, "failed calling webhook", ErrorClass.UNAVAILABLE),
        (503, "apiserver is shutting down", ErrorClass.UNAVAILABLE),
        (504, "Timeout: request did not complete", ErrorClass.TIMEOUT),
        (302, "Found", ErrorClass.OTHER),
    ],
)
def test_each_refusal_has_a_class_and_the_servers_words(code: int, message: str, error: ErrorClass) -> None:
    refused = refusal(code, status(message, "Why"), None)
    assert (refused.failure.error, refused.failure.text, refused.status, refused.reason) == (
        error,
        message,
        code,
        "Why",
    )


def test_a_quota_update_that_collided_is_tried_again_and_is_no_quota_error() -> None:
    words = 'Operation cannot be fulfilled on resourcequotas "pods": the object has been modified'
    assert refusal(409, status(words, "Conflict"), None).failure.error is ErrorClass.UNAVAILABLE


def test_the_wait_that_the_server_asks_for_is_kept_in_the_words() -> None:
    assert refusal(429, status("too many requests"), "7").failure.text == "too many requests (retry after 7 s)"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), (None, None)],
)
def test_the_wait_that_the_server_asks_for_is_known_in_seconds(header: str | None, seconds: float | None) -> None:
    assert refusal(429, status("too many requests"), header).retry_after == seconds


@pytest.mark.parametrize("body", [b"<html>Bad Gateway</html>", b"", b"[1]", b"\xff\xfe"])
def test_a_response_that_is_no_status_is_quoted(body: bytes) -> None:
    refused = refusal(502, body, None)
    assert refused.failure.error is ErrorClass.UNAVAILABLE
    assert refused.failure.text.startswith("HTTP 502")


def test_long_words_are_cut() -> None:
    assert len(refusal(500, status("x" * 9999), None).failure.text) == MAX_CHARACTERS


@pytest.mark.parametrize("body", [b'{"items": [', b"", b"[]", b"null"])
def test_half_a_response_is_no_response(body: bytes) -> None:
    with pytest.raises(BackendError) as caught:
        parse(body)
    assert caught.value.failure.error is ErrorClass.UNAVAILABLE


def test_a_proxy_that_refuses_our_login_needs_an_operator() -> None:
    """If a proxy responds with 407, the operator must get advice on another login. The text after the number differs
    from proxy to proxy, so only the number counts."""
    tunnel = urllib3.exceptions.ProxyError("no proxy", OSError("Tunnel connection failed: 407 authenticationrequired"))
    other = urllib3.exceptions.ProxyError("no proxy", OSError("Tunnel connection failed: 503 Service Unavailable"))

    assert unanswered_error(tunnel).failure == Failure(ErrorClass.DENIED, ANOTHER_LOGIN)
    assert unanswered_error(other).failure.error is ErrorClass.UNAVAILABLE


def test_only_a_silent_server_is_a_timeout() -> None:
    pool = urllib3.HTTPConnectionPool("127.0.0.1")
    assert unanswered_error(urllib3.exceptions.ReadTimeoutError(pool, "/", "slow")).failure.error is ErrorClass.TIMEOUT
    assert unanswered_error(urllib3.exceptions.ProtocolError("closed")).failure.error is ErrorClass.UNAVAILABLE


def test_a_certificate_of_another_time_leads_to_a_wrong_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise urllib3.exceptions.SSLError("certificate verify failed: certificate is not yet valid")

    monkeypatch.setattr(Way, "urlopen", refuse)
    api = KubeApi(Plain("http://k.example"))
    api.clock.hear(formatdate(time.time() + 1500.0, usegmt=True))
    with pytest.raises(BackendError) as caught:
        api.get("/api/v1/namespaces/n/pods")
    assert "not yet valid: this host's clock is 25 min behind the place's" in caught.value.failure.text
