"""Refusals of a real server: the backend reports the error class and the server's words."""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from provisioner.backends import Severity
from provisioner.model import ErrorClass, Failure
from provisioner.testing.place import PREFIX, REQUEST
from tests.kube.client import Document
from tests.kube.cluster import Cluster
from tests.kube.place import SPEC, KubePlace
from tests.kube.proxy import Proxy
from tests.kube.space import KUSTOMIZE, RBAC, Space
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.kube

KWOK = pytest.mark.usefixtures("cluster")
"""In a cluster of our own kubelets do what a pod's label says."""

ONE = f"{PREFIX}-{REQUEST}-000001"


@pytest.fixture
def place(space: Space, proxy: Proxy, tmp_path: Path) -> Iterator[KubePlace]:
    made = KubePlace(space, proxy, tmp_path, watched=False)
    yield made
    made.close()


@pytest.fixture
def webhook(cluster: Cluster, space: Space) -> Iterator[ThreadingHTTPServer]:
    """A validating webhook that refuses every pod of the namespace."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review: Document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = {"message": "no machines on Sundays"}
            review["response"] = {"uid": review["request"]["uid"], "allowed": False, "status": status}
            content = json.dumps(review).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cluster.ca, cluster.key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    with space.admitting(f"https://127.0.0.1:{server.server_port}", cluster.ca):
        yield server
    server.shutdown()
    server.server_close()
    thread.join(5 * PATIENCE)


def refusal(place: KubePlace, others: set[str] | None = None) -> Failure:
    """Return the failure of a refused create, which made no machine."""
    (outcome,) = place.create(1)
    assert outcome.failure is not None
    assert sorted(place.present()) == sorted(others or ())
    return outcome.failure


def test_a_webhook_that_denies_is_denied_in_its_own_words(place: KubePlace, webhook: ThreadingHTTPServer) -> None:
    failure = refusal(place)
    assert failure.error is ErrorClass.DENIED
    assert "no machines on Sundays" in failure.text


def test_a_webhook_that_does_not_answer_is_no_verdict(place: KubePlace, webhook: ThreadingHTTPServer) -> None:
    webhook.shutdown()
    webhook.server_close()
    failure = refusal(place)
    assert failure.error in {ErrorClass.UNAVAILABLE, ErrorClass.TIMEOUT}
    assert "webhook" in failure.text


def test_an_invalid_pod_is_invalid_and_the_server_names_the_field(place: KubePlace) -> None:
    place.fail_creates(ErrorClass.INVALID)
    failure = refusal(place)
    assert failure.error is ErrorClass.INVALID
    assert "spec.containers[0].resources.requests" in failure.text


def test_an_unknown_field_is_reported_or_ignored_but_never_fails_the_machine(place: KubePlace) -> None:
    place.rewrite("containers: [{name: main, image: busybox, imagePullPolcy: Always}]\n")
    assert [outcome.failure for outcome in place.create(1)] == [None]


def test_a_pod_whose_service_account_is_missing_is_refused_in_the_servers_words(place: KubePlace) -> None:
    place.rewrite("serviceAccountName: absent\ncontainers: [{name: main, image: busybox}]\n")
    failure = refusal(place)
    assert failure.error is ErrorClass.DENIED
    assert 'serviceaccount "absent" not found' in failure.text


@KWOK
def test_a_namespace_that_is_being_deleted_takes_no_pods(place: KubePlace, space: Space) -> None:
    space.add_pod("web-1", {"test/kubelet": "stuck"})
    space.condemn()
    failure = refusal(place, {"web-1"})
    assert failure.error is ErrorClass.DENIED
    assert "being terminated" in failure.text


# --- what is tried ---------------------------------------------------------------------------------------------------


def tried(place: KubePlace) -> list[str]:
    """Return the findings of a live check, which sends the pod as a dry run and makes no pod."""
    before = place.present()
    findings = [finding.text for finding in place.backend.rehearse("T")]
    assert place.present() == before
    return findings


def test_with_the_role_a_pod_is_tried_and_nothing_is_lacking(place: KubePlace) -> None:
    assert tried(place) == []


def test_a_pod_that_is_tried_is_refused_as_one_that_is_made(place: KubePlace, space: Space) -> None:
    place.rewrite("nodeSelektor: {a: b}\ncontainers: [{name: main, image: busybox}]\n")
    assert 'strict decoding error: unknown field "spec.nodeSelektor": correct ' in tried(place)[0]
    place.rewrite("containers: [{name: main, image: busybox, resources: {requests: {memory: -8Gi}}}]\n")
    assert 'requests[memory]: Invalid value: "-8Gi": must be greater than or equal to 0' in tried(place)[0]
    place.rewrite("containers: [{name: main, image: busybox, resources: {requests: {memory: 8GB}}}]\n")
    (text,) = tried(place)
    assert re.search(r"/pod\.yaml: containers\.0\.resources\.requests\.memory: expected .* got '8GB'$", text)
    place.rewrite(SPEC)
    space.limit(pods=0)
    assert "exceeded quota" in until(lambda: tried(place), 20)[0]


def test_rights_that_are_taken_away_are_named(place: KubePlace, space: Space) -> None:
    space.grant("get", "list", "watch")
    until(lambda: not space.may("create") and not space.may("list", "events"), 30, what="the rights are taken away")
    assert [text.partition(" in namespace ")[0] for text in tried(place)] == [
        "the pool's account may not create, delete pods",
        "the pool's account may not list, create events",
        "the pool's account may not get namespaces",
    ]


# --- what the role allows ---------------------------------------------------------------------------------------------


def role_verbs(resource: str) -> list[str]:
    role = next(document for document in yaml.safe_load_all(RBAC.read_text()) if document["kind"] == "Role")
    return next(rule["verbs"] for rule in role["rules"] if rule["resources"] == [resource])


SAID = "max node group size reached"


@pytest.fixture
def homeless(space: Space, proxy: Proxy, tmp_path: Path) -> Iterator[KubePlace]:
    """Yield a place with a pod that no node accepts, and the autoscaler's Event about this pod."""
    place = KubePlace(space, proxy, tmp_path, watched=True)
    place.rewrite("nodeSelector: {disk: huge}\ncontainers: [{name: main, image: busybox}]\n")
    place.create(1)
    space.say(ONE, "NotTriggerScaleUp", f"pod didn't trigger scale-up: 1 {SAID}")
    yield place
    place.close()


def words(place: KubePlace) -> str:
    failure = place.observe().machines[ONE].failure
    return failure.text if failure else ""


def test_without_the_right_to_list_events_the_autoscalers_words_are_missing_and_nothing_else(
    space: Space, proxy: Proxy, homeless: KubePlace
) -> None:
    space.grant(*role_verbs("pods"))
    until(lambda: not space.may("list", "events"), 30, what="the right is taken away")

    def refused() -> bool:
        return bool(words(homeless)) and any("/events" in call.path and call.status == 403 for call in proxy.calls)

    until(refused, 20, what="events are refused")
    failure = homeless.observe().machines[ONE].failure
    assert failure is not None
    assert failure.error is ErrorClass.STOCKOUT
    assert "didn't match Pod's node affinity/selector" in failure.text


# --- the standard of the machines' namespace --------------------------------------------------------------------------


ROOT = KUSTOMIZE.parents[1]
SPECS = [
    path
    for path in sorted([*(ROOT / "config").rglob("*spec*/*.yaml"), *KUSTOMIZE.rglob("config/*.yaml")])
    if "containers:" in path.read_text()
]
"""The kit's pod specs."""


@pytest.fixture
def labelled(space: Space) -> Space:
    """Return the namespace with the labels that the kit's namespace of the machines has."""
    manifests = yaml.safe_load_all((KUSTOMIZE / "base" / "namespaces.yaml").read_text())
    (labels,) = [one["metadata"]["labels"] for one in manifests if one["metadata"]["name"] == "symphony"]
    space.admin.patch(f"/api/v1/namespaces/{space.name}", {"metadata": {"labels": labels}})
    return space


PRIVILEGED = """containers: [{name: main, image: busybox, securityContext: {privileged: true}}]
hostNetwork: true
"""


def test_a_pod_that_reaches_its_node_is_refused_in_the_machines_namespace(place: KubePlace, labelled: Space) -> None:
    place.rewrite(PRIVILEGED)
    failure = refusal(place)
    assert failure.error is ErrorClass.DENIED
    assert 'violates PodSecurity "baseline:latest"' in failure.text
    assert "privileged" in failure.text


def test_check_names_a_pod_spec_that_the_machines_namespace_refuses(place: KubePlace, labelled: Space) -> None:
    place.rewrite(PRIVILEGED)
    (finding,) = place.backend.rehearse("T")
    assert finding.severity is Severity.ERROR
    assert 'violates PodSecurity "baseline:latest"' in finding.text
    assert place.present() == []


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_kits_pod_specs_are_taken_there(place: KubePlace, labelled: Space, spec: Path) -> None:
    place.rewrite(spec.read_text())
    assert [outcome.failure for outcome in place.create(1)] == [None]
