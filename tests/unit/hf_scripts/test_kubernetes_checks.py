"""check_install's findings about a Kubernetes API that keeps the state."""

from __future__ import annotations

from typing import Any

import pytest

from hf_scripts.kubernetes_checks import RIGHTS, check_api
from provisioner.state.errors import StateDenied, StateUnreachable
from provisioner.state.kube.connection import Response, Watch
from provisioner.state.kube.objects import KINDS, NOTES


class Reviewing:
    """An API server for the calls of check_install. It lists its kinds, and grants every right that is not in
    ``denied``."""

    namespace, name = "grid", "https://kube"

    def __init__(self, kinds: set[str], denied: set[tuple[str, str]], error: Exception | None = None) -> None:
        self.kinds, self.denied, self.error = kinds, denied, error
        self.reviewed: set[tuple[str, str, str, str]] = set()

    def call(self, method: str, path: str, body: Any = None, **_: object) -> Response:
        if self.error:
            raise self.error
        if method == "GET":
            return Response(200, {"resources": [{"name": name} for name in self.kinds]}, 0.0)
        asked = body["spec"]["resourceAttributes"]
        self.reviewed.add((asked["namespace"], asked["group"], asked["verb"], asked["resource"]))
        allowed = (asked["verb"], asked["resource"]) not in self.denied
        return Response(201, {"status": {"allowed": allowed}}, 0.0)

    def watch(self, path: str, seconds: float) -> Watch:
        raise AssertionError("no check follows objects")


def findings(server: Reviewing) -> list[str]:
    return [str(result) for result in check_api(server)]


def test_scripts_with_all_rights_are_fine() -> None:
    server = Reviewing(set(KINDS), set())
    assert all(result.is_fine for result in check_api(server))
    assert len(server.reviewed) == sum(map(len, RIGHTS.values()))
    assert ("grid", "coordination.k8s.io", "get", "leases") in server.reviewed
    assert ("grid", "provisioner.hostfactory.dev", "patch", NOTES) in server.reviewed


def test_missing_kinds_and_rights_are_named_with_the_command() -> None:
    [_, found] = findings(Reviewing(set(KINDS) - {NOTES}, set()))
    assert "the kinds hostfactorynotes are missing: kubectl apply -k deploy/kustomize" in found
    [_, found] = findings(Reviewing(set(KINDS), {("create", "machineanswers"), ("get", "leases")}))
    assert "in namespace grid the scripts may not create machineanswers, get leases: bind their account" in found


@pytest.mark.parametrize("error", [StateUnreachable("no answer"), StateDenied("no login")])
def test_server_that_cannot_be_asked_is_one_finding(error: Exception) -> None:
    [result] = check_api(Reviewing(set(), set(), error))
    assert not result.is_fine
    assert str(error) in str(result)
