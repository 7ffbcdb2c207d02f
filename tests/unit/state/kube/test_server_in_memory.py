"""The API server in memory that the tests of the state use. tests/kube compares it with a real server."""

from __future__ import annotations

import pytest

from provisioner.state.errors import StateError
from provisioner.state.kube.objects import REQUESTS, body, collection, item
from tests.support.kube_schema import Schema
from tests.support.kube_state_server import MERGE, MemoryApiServer

ALL, ONE = collection("hf", REQUESTS), item("hf", REQUESTS, "r1")
SPEC = {"provisioner": "p", "template": "t", "count": 3, "created": 1e9}


def test_an_unanswered_call_is_repeated() -> None:
    server = MemoryApiServer()
    server.after = lambda call: 0 if call.number == 1 else None
    assert server.call("POST", ALL, body(REQUESTS, "r1", SPEC)).status == 409
    server.is_unreachable = True
    with pytest.raises(StateError):
        server.call("GET", ONE)


def test_a_watch_gets_what_changes_after_its_version() -> None:
    server = MemoryApiServer()
    version = server.call("GET", ALL).document["metadata"]["resourceVersion"]
    server.call("POST", ALL, body(REQUESTS, "r1", SPEC))
    server.call("PATCH", ONE, {"metadata": {"annotations": {"a": "b"}}}, content=MERGE)
    server.call("DELETE", ONE)
    server.events_a_watch = 3
    path = collection("hf", REQUESTS, watch="true", resourceVersion=version)
    assert [event["type"] for event in server.watch(path, 5.0)] == ["ADDED", "MODIFIED", "DELETED"]
    server.server.forget_events()
    assert [event["object"]["code"] for event in server.watch(path, 5.0)] == [410]


def test_an_unknown_limit_or_rule_is_an_error() -> None:
    with pytest.raises(ValueError):
        Schema({"type": "object", "not": {}})
    with pytest.raises(ValueError):
        Schema({"type": "object", "x-kubernetes-validations": [{"rule": "self.a == 1", "message": ""}]})
