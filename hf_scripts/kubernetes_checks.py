"""Checks of the Kubernetes API that stores the state: the connection, the installed kinds of objects, the scripts'
rights, and the loop."""

from __future__ import annotations

from collections.abc import Iterator

from hf_scripts.host_checks import CheckResult, fine, fix
from provisioner.state.errors import StateError
from provisioner.state.kube.connection import ApiServer
from provisioner.state.kube.objects import ANSWERS, API_VERSION, GROUP, KINDS, NOTES, REQUESTS, RETURNS, STATES

LEASES = "leases"
RIGHTS = {
    REQUESTS: ("create", "get", "list"),
    RETURNS: ("create", "get", "list"),
    ANSWERS: ("create", "get"),
    STATES: ("get",),
    NOTES: ("create", "get", "patch"),
    LEASES: ("get",),
}
"""The verbs that the scripts use, by resource."""

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
COMPONENT = "deploy/kustomize/components/kubernetes-state"


def check_api(api: ApiServer) -> Iterator[CheckResult]:
    """Check everything in the API server that the scripts need. After a check that fails, the later checks are
    skipped."""
    try:
        served = {one["name"] for one in api.call("GET", f"/apis/{API_VERSION}").document["resources"]}
        yield fine(f"{api.name}: the API server answers")
        if missing := KINDS.keys() - served:
            yield fix(f"{api.name}: the kinds {', '.join(sorted(missing))} are missing: kubectl apply -k {COMPONENT}")
            return
        denied = [f"{verb} {name}" for name, verbs in RIGHTS.items() for verb in verbs if not _may(api, verb, name)]
    except StateError as error:
        yield fix(str(error))
        return
    if denied:
        yield fix(
            f"{api.name}: in namespace {api.namespace} the scripts may not {', '.join(denied)}: bind their account to "
            f"the Role hostfactory-scripts of {COMPONENT}"
        )
    else:
        yield fine(f"{api.name}: the scripts may use the state in namespace {api.namespace}")


def _may(api: ApiServer, verb: str, resource: str) -> bool:
    group = "coordination.k8s.io" if resource == LEASES else GROUP
    asked = {"namespace": api.namespace, "verb": verb, "group": group, "resource": resource}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    reply = api.call("POST", REVIEWS, {**review, "spec": {"resourceAttributes": asked}})
    return bool((reply.document.get("status") or {}).get("allowed"))
