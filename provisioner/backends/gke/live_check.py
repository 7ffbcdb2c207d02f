"""Checks of the rights that the loop needs in a namespace, and a dry run of a pod's create.

The server decodes and admits a dry-run pod, and checks quotas, as for any other pod. So the dry run also tests the
namespace, fields, amounts and webhooks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from provisioner.backends import Finding, Severity
from provisioner.backends.gke.api import KubeApi, KubeError
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.login_refusals import find_right
from provisioner.model import ErrorClass

TRIED: Mapping[str, str | int] = {"dryRun": "All", "fieldValidation": "Strict"}
"""Query of a create that has no effect. The server refuses the create if the pod has unknown fields."""

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

RIGHTS = {"pods": ("get", "list", "watch", "create", "delete"), "events": ("list", "create"), "namespaces": ("get",)}
"""Verbs that the loop needs, by resource, as in the Role of deploy/kustomize."""

USEFUL = frozenset({"events", "namespaces"})
"""Resources without which the loop still works. Without rights on them, the loop lacks the reasons why pods wait, the
Events on losses, or the endpoint identity."""

ROLE = "bind the Role of deploy/kustomize/base/rbac.yaml to it there"
NO_DRY_RUN = "does not support dry run"
"""Part of a server's message about a webhook that has side effects."""


def rehearse(pool: GkePool, api: KubeApi, attempt: Callable[[], str]) -> list[Finding]:
    """Return findings about missing rights, and about the reason why the server would refuse a pod.

    ``attempt``: a function that sends the create of a dry-run pod. It returns a message about the fields that the
    server changed, or an empty text.
    """
    try:
        lacking = {
            resource: [verb for verb in verbs if not _is_allowed(pool, api, verb, resource)]
            for resource, verbs in (RIGHTS if pool.loss_events else {**RIGHTS, "events": ("list",)}).items()
        }
    except KubeError as error:
        text = f"the rights of the pool's account cannot be checked: {error.failure.text}"
        return [Finding(pool.name, Severity.WARNING, text), *_try_pod(pool, attempt)]
    findings = [_missing_right(pool, resource, verbs) for resource, verbs in lacking.items() if verbs]
    return findings if "create" in lacking["pods"] else [*findings, *_try_pod(pool, attempt)]


def _missing_right(pool: GkePool, resource: str, verbs: Sequence[str]) -> Finding:
    missing = f"the pool's account may not {', '.join(verbs)} {resource} in namespace {pool.namespace}"
    return Finding(pool.name, Severity.WARNING if resource in USEFUL else Severity.ERROR, f"{missing}: {ROLE}")


def _is_allowed(pool: GkePool, api: KubeApi, verb: str, resource: str) -> bool:
    attributes = {"namespace": pool.namespace, "verb": verb, "resource": resource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    response = api.send("POST", REVIEWS, body=json.dumps(review).encode())
    return bool((response.get("status") or {}).get("allowed"))


def _try_pod(pool: GkePool, attempt: Callable[[], str]) -> Iterator[Finding]:
    try:
        if text := attempt():
            advice = f"ask the administrator of namespace {pool.namespace}, or no machine of the pool is kept"
            yield Finding(pool.name, Severity.ERROR, f"a pod of {pool.pod_spec}: {text}: {advice}")
    except KubeError as error:
        words = error.failure.text
        if NO_DRY_RUN in words:
            yield Finding(pool.name, Severity.WARNING, f"a pod of {pool.pod_spec} cannot be tried: {words}")
        elif find_right(error.status, words) is not None:
            yield Finding(pool.name, Severity.ERROR, f"no pod can be tried: {words}")
        else:
            text = f"a pod of {pool.pod_spec} is refused: {words}: {_advice(pool, error)}"
            yield Finding(pool.name, Severity.ERROR, text)


def _advice(pool: GkePool, error: KubeError) -> str:
    """Return what an operator can do about the server's refusal."""
    setting, spec = f"pools.{pool.name}", Path(pool.pod_spec).name
    match error.failure.error:
        case ErrorClass.NOT_FOUND:
            return f"make the namespace (kubectl create namespace {pool.namespace}), or correct {setting}.namespace"
        case ErrorClass.QUOTA:
            return f"raise the namespace's quota, or lower {setting}.max_machines"
        case ErrorClass.DENIED:
            policy = "a policy of the cluster refuses this pod, no right is missing"
            return f"{policy}: correct {spec}, or ask the administrator of namespace {pool.namespace}"
        case ErrorClass.INVALID:
            return f"correct {spec}"
    return "check again later"
