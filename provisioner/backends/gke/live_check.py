"""Tries, without any effect, what the loop will ask of a namespace: the rights that it needs, and one of its pods.

Of a pod that is only tried the server decodes, admits and counts all that it would of one that it makes: namespace,
fields, amounts, webhooks and quotas.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from provisioner.backends import Finding, Severity
from provisioner.backends.gke.api import KubeApi, KubeError
from provisioner.backends.gke.settings import GkePool
from provisioner.model import ErrorClass

TRIED: Mapping[str, str | int] = {"dryRun": "All", "fieldValidation": "Strict"}
"""The query by which a server goes through all of a create but its effect, and refuses fields that it does not know."""

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

RIGHTS = {"pods": ("get", "list", "watch", "create", "delete"), "events": ("list", "create"), "namespaces": ("get",)}
"""The verbs that the loop needs, by resource: those of the Role in deploy/kustomize."""

USEFUL = frozenset({"events", "namespaces"})
"""Without these nobody is told why pods wait, which were lost and whether another cluster answers; all else goes on."""

ROLE = "bind the Role of deploy/kustomize/base/rbac.yaml to it there"
NO_DRY_RUN = "does not support dry run"
"""A server's words about a webhook with effects of its own."""


def rehearse(pool: GkePool, api: KubeApi, attempt: Callable[[], str]) -> list[Finding]:
    """Return what the server would refuse of our rights and of a pod.

    ``attempt``: sends the create of a pod that is only tried; what of it came back otherwise than we rely on.
    """
    try:
        lacking = {
            resource: [verb for verb in verbs if not _may(pool, api, verb, resource)]
            for resource, verbs in (RIGHTS if pool.loss_events else {**RIGHTS, "events": ("list",)}).items()
        }
    except KubeError as error:
        text = f"which rights the pool's account has cannot be asked: {error.failure.text}"
        return [Finding(pool.name, Severity.WARNING, text), *_refused(pool, attempt)]
    findings = [_lacks(pool, resource, verbs) for resource, verbs in lacking.items() if verbs]
    return findings if "create" in lacking["pods"] else [*findings, *_refused(pool, attempt)]


def _lacks(pool: GkePool, resource: str, verbs: Sequence[str]) -> Finding:
    what = f"the pool's account may not {', '.join(verbs)} {resource} in namespace {pool.namespace}"
    return Finding(pool.name, Severity.WARNING if resource in USEFUL else Severity.ERROR, f"{what}: {ROLE}")


def _may(pool: GkePool, api: KubeApi, verb: str, resource: str) -> bool:
    attributes = {"namespace": pool.namespace, "verb": verb, "resource": resource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    response = api.send("POST", REVIEWS, body=json.dumps(review).encode())
    return bool((response.get("status") or {}).get("allowed"))


def _refused(pool: GkePool, attempt: Callable[[], str]) -> Iterator[Finding]:
    try:
        if text := attempt():
            advice = f"ask who decides what namespace {pool.namespace} admits, or no machine of the pool is kept"
            yield Finding(pool.name, Severity.ERROR, f"a pod of {pool.pod_spec}: {text}: {advice}")
    except KubeError as error:
        words = error.failure.text
        if NO_DRY_RUN in words:
            yield Finding(pool.name, Severity.WARNING, f"a pod of {pool.pod_spec} cannot be tried: {words}")
        else:
            text = f"a pod of {pool.pod_spec} is refused: {words}: {_advice(pool, error)}"
            yield Finding(pool.name, Severity.ERROR, text)


def _advice(pool: GkePool, error: KubeError) -> str:
    """What to do, by what the server says."""
    setting, spec = f"pools.{pool.name}", Path(pool.pod_spec).name
    match error.failure.error:
        case ErrorClass.NOT_FOUND:
            return f"make the namespace (kubectl create namespace {pool.namespace}), or correct {setting}.namespace"
        case ErrorClass.QUOTA:
            return f"raise the namespace's quota, or lower {setting}.max_machines"
        case ErrorClass.DENIED:
            return f"correct {spec}, or ask who decides what namespace {pool.namespace} admits"
        case ErrorClass.INVALID:
            return f"correct {spec}"
    return "check again later"
