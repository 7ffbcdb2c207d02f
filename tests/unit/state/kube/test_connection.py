"""The meaning of a response. ``tests/integration/test_kube_connection.py`` has the tests with connections."""

from __future__ import annotations

import json
from http.client import HTTPMessage

import pytest

from provisioner.state.errors import StateDenied, StateError, StateMissing, StateUnreachable
from provisioner.state.kube.api_login import Access
from provisioner.state.kube.connection import ApiServer, Response

API = ApiServer(lambda: Access("https://kube", "grid"))


def headers(date: str = "") -> HTTPMessage:
    made = HTTPMessage()
    if date:
        made["Date"] = date
    return made


@pytest.mark.parametrize(
    ("date", "at"),
    [("Thu, 29 Feb 2024 23:59:59 GMT", 1_709_251_199.0), ("Fri, 27 Nov 2026 15:43:14 GMT", 1_795_794_194.0)],
)
def test_response_has_the_servers_time(date: str, at: float) -> None:
    assert API.judge(201, headers(date), b'{"kind": "x"}') == Response(201, {"kind": "x"}, at)


LACKS = (
    'machinerequests.provisioner.hostfactory.dev is forbidden: User "a" cannot list resource "machinerequests" in API '
    'group "provisioner.hostfactory.dev" in the namespace "hf"'
)


@pytest.mark.parametrize(
    ("status", "document", "error", "words"),
    [
        (
            403,
            {"message": "exceeded quota"},
            StateDenied,
            "quota. Remove the cause that the server names.",
        ),
        (403, {"message": LACKS}, StateDenied, "kubernetes-state, which has the verb list on machinerequests."),
        (403, {"message": LACKS}, StateDenied, '"hf". Bind this account to its Role in deploy/'),
        (401, {"message": "Unauthorized"}, StateDenied, "HTTP 401: Unauthorized. Renew the token"),
        (404, "404 page not found", StateMissing, "kubectl apply -k deploy"),
        (404, {"details": {}}, StateMissing, "kubectl apply -k deploy"),
        (404, {"details": None}, StateMissing, "kubectl apply -k deploy"),
        (404, {"details": "no route"}, StateMissing, "kubectl apply -k deploy"),
        (404, {"details": {"kind": "namespaces", "name": "g"}}, StateMissing, "kubectl create namespace g"),
        (400, {"message": "bad"}, StateError, "HTTP 400: bad."),
        (302, "", StateError, "HTTP 302: no reason."),
        (429, {"message": "too many"}, StateUnreachable, "HTTP 429: too many"),
        (500, "etcd", StateUnreachable, "HTTP 500"),
        (200, "<html", StateUnreachable, "no server of Kubernetes sent b'<html'"),
        (200, "[" * 200_000, StateUnreachable, "no server of Kubernetes sent b'[["),
        (200, [], StateUnreachable, "no server of Kubernetes sent b'[]'"),
        (201, {"status": "ok"}, StateUnreachable, """sent b'{"status": "ok"}'"""),
        (200, {"kind": "Status"}, StateUnreachable, "has no date"),
    ],
)
def test_other_responses_raise_with_the_next_step(
    status: int, document: object, error: type[StateError], words: str
) -> None:
    body = document if isinstance(document, str) else json.dumps(document)
    with pytest.raises(error) as raised:
        API.judge(status, headers(), body.encode())
    assert type(raised.value) is error
    assert words in str(raised.value)
