"""A namespace for each test. It has the provisioner's account with the rights from ``deploy/``, and pods that the
provisioner did not make."""

from __future__ import annotations

import contextlib
import json
import secrets
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.kube.client import Client, Document, Refused
from tests.kube.cluster import kubeconfig
from tests.kube.proxy import Proxy
from tests.support.waiting import until

KUSTOMIZE = Path(__file__).parents[2] / "deploy" / "kustomize"
RBAC = KUSTOMIZE / "base" / "rbac.yaml"
NODES_RBAC = KUSTOMIZE / "components" / "spot-nodes" / "cluster-role.yaml"
DEMAND_RBAC = KUSTOMIZE / "components" / "pod-demand" / "cluster-role.yaml"
ACCOUNT = "provisioner"
TOKEN_SECONDS = 7200
"""Seconds that a token lives: longer than any test."""


class Pods:
    """All pods of a namespace, whoever made them. The methods do what users, kubelets, queues and the autoscaler do to
    pods."""

    def __init__(self, admin: Client, name: str) -> None:
        self.admin = admin
        self.name = name
        self._path = f"/api/v1/namespaces/{name}"
        self.pods_path = f"{self._path}/pods"

    # --- what is there ------------------------------------------------------------------------------------------------

    def pods(self) -> list[Document]:
        """Return every pod, also pods that the provisioner did not make."""
        items: list[Document] = self.admin.get(self.pods_path)["items"]
        return items

    def names(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.pods()}

    def uids(self) -> dict[str, str]:
        """Return the uid of each pod by its name."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.pods()}

    def pod(self, name: str) -> Document:
        return self.admin.get(f"{self.pods_path}/{name}")

    # --- what others do -----------------------------------------------------------------------------------------------

    def add_pod(self, name: str, labels: dict[str, str] | None = None, **spec: Any) -> Document:
        """Add a pod of another owner."""
        containers = [{"name": "main", "image": "nginx"}]
        return self.admin.create(
            self.pods_path,
            {"metadata": {"name": name, "labels": labels or {}}, "spec": {"containers": containers, **spec}},
        )

    def delete(self, name: str, *, grace: int | None = None) -> None:
        """Delete a pod, as ``kubectl delete pod`` does."""
        self.admin.delete(f"{self.pods_path}/{name}", grace=grace)

    def remove(self, name: str) -> None:
        """Delete a pod at once, and wait until it is gone."""
        self.delete(name, grace=0)
        until(lambda: not self._exists(f"{self.pods_path}/{name}"), 30, what=f"{name} is gone")

    def evict(self, name: str) -> None:
        """Evict a pod, as a drain does."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        self.admin.create(f"{self.pods_path}/{name}/eviction", eviction)

    def lift(self, name: str) -> None:
        """Remove all scheduling gates, as a queue does when it admits a pod."""
        self.admin.patch(f"{self.pods_path}/{name}", {"spec": {"schedulingGates": None}})

    def say(self, name: str, reason: str, message: str) -> None:
        """Write an Event on a pod, as the autoscaler does."""
        uid = self.pod(name)["metadata"]["uid"]
        now = _now()
        event = {
            "metadata": {"generateName": f"{name}.", "namespace": self.name},
            "involvedObject": {"kind": "Pod", "namespace": self.name, "name": name, "uid": uid, "apiVersion": "v1"},
            "reason": reason,
            "message": message,
            "type": "Warning",
            "source": {"component": "cluster-autoscaler"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        self.admin.create(f"{self._path}/events", event)

    def set_status(self, name: str, **changes: Any) -> None:
        """Change fields of a pod's status, as its kubelet does."""
        self.admin.patch(f"{self.pods_path}/{name}/status", {"status": changes})

    def set_condition(self, name: str, kind: str, status: str, **words: str) -> None:
        """Set one condition with the present time, and keep the other conditions.

        Kubernetes takes a disruption condition without a time for an old one, and resets it.
        """
        others = [one for one in self.pod(name)["status"]["conditions"] if one["type"] != kind]
        condition = {"type": kind, "status": status, "lastTransitionTime": _now(), **words}
        self.set_status(name, conditions=[*others, condition])

    def exit(self, name: str, code: int, reason: str = "") -> None:
        """End the pod's container for good."""
        container = self.pod(name)["status"]["containerStatuses"][0]
        ended = {"exitCode": code, "reason": reason or ("Error" if code else "Completed")}
        statuses = [{**container, "ready": False, "state": {"terminated": ended}}]
        self.set_status(name, phase="Failed" if code else "Succeeded", containerStatuses=statuses)

    def _exists(self, path: str) -> bool:
        with contextlib.suppress(Refused):
            self.admin.get(path)
            return True
        return False


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Space(Pods):
    """A namespace for one test.

    A context manager that deletes the namespace, without waiting for the end of its content.
    """

    def __init__(self, admin: Client) -> None:
        super().__init__(admin, f"test-{secrets.token_hex(4)}")

    def __enter__(self) -> Self:
        self.admin.create(
            "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}}
        )
        self.admin.create(f"{self._path}/serviceaccounts", {"metadata": {"name": ACCOUNT}})
        for document in yaml.safe_load_all(RBAC.read_text()):
            self._grant(document)
        # No pod is admitted before the namespace has its default account.
        until(lambda: self._exists(f"{self._path}/serviceaccounts/default"), 30, what="the namespace is ready")
        until(lambda: self.may("create"), 30, what="the role is in force")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        self.admin.delete(self._path)

    def token(self) -> str:
        """Return a token of the provisioner's own account."""
        path = f"{self._path}/serviceaccounts/{ACCOUNT}/token"
        asked_for = {"kind": "TokenRequest", "spec": {"expirationSeconds": TOKEN_SECONDS}}
        response = self.admin.create(path, {"apiVersion": "authentication.k8s.io/v1", **asked_for})
        return str(response["status"]["token"])

    def write_kubeconfig(self, path: Path, proxy: Proxy | None = None) -> Path:
        """Write a kubeconfig of the provisioner's own account, for the cluster or for a ``proxy`` in front of it."""
        server, ca = (proxy.address, proxy.ca) if proxy else (self.admin.server, self.admin.ca)
        document = kubeconfig(server, self.token(), ca=Path(ca) if ca else None, namespace=self.name)
        path.write_text(json.dumps(document))
        return path

    def limit(self, pods: int) -> None:
        """Admit at most this number of pods from now on."""
        path = f"{self._path}/resourcequotas"
        self.admin.create(path, {"metadata": {"name": "pods"}, "spec": {"hard": {"pods": str(pods)}}})
        until(lambda: self.admin.get(f"{path}/pods").get("status", {}).get("hard"), 30, what="the quota is in force")

    def grant(self, *verbs: str, events: Sequence[str] = ()) -> None:
        """Allow the provisioner exactly these verbs on pods and on Events."""
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.name}/roles/{ACCOUNT}"
        allowed = {"pods": verbs, "events": events}
        rules = [{"apiGroups": [""], "resources": [kind], "verbs": may} for kind, may in allowed.items() if may]
        self.admin.patch(path, {"rules": rules})

    @contextmanager
    def seeing_nodes(self, rights: Path = NODES_RBAC) -> Iterator[None]:
        """Allow the provisioner to list nodes within the ``with`` block, as a component of the deployment does."""
        role, binding = yaml.safe_load_all(rights.read_text())
        for document in (role, binding):
            document["metadata"]["name"] = self.name
        binding["roleRef"]["name"] = self.name
        binding["subjects"][0] |= {"name": ACCOUNT, "namespace": self.name}
        kinds = {"clusterroles": role, "clusterrolebindings": binding}
        for kind, document in kinds.items():
            self.admin.create(f"/apis/rbac.authorization.k8s.io/v1/{kind}", document)
        try:
            yield
        finally:
            for kind in kinds:
                self.admin.delete(f"/apis/rbac.authorization.k8s.io/v1/{kind}/{self.name}")

    def condemn(self) -> None:
        """Delete the namespace. It exists until its pods are gone."""
        self.admin.delete(self._path)
        until(lambda: self.admin.get(self._path)["status"]["phase"] == "Terminating", 30)

    @contextmanager
    def admitting(self, url: str, ca: Path) -> Iterator[None]:
        """Let the server ask a webhook about each pod that is made here."""
        path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        hook = {
            "name": "pods.example.com",
            "clientConfig": {"url": url, "caBundle": b64encode(ca.read_bytes()).decode()},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.name}},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 2,
        }
        self.admin.create(path, {"metadata": {"name": self.name}, "webhooks": [hook]})
        try:
            until(self._is_refused, 30, every=0.1, what="the webhook is in force")
            yield
        finally:
            self.admin.delete(f"{path}/{self.name}")

    def _is_refused(self) -> bool:
        """Return True if the server now refuses pods. A dry run, which makes no pod, finds this out."""
        pod = {"metadata": {"name": "trial"}, "spec": {"containers": [{"name": "main", "image": "nginx"}]}}
        try:
            self.admin.call("POST", self.pods_path, pod, query={"dryRun": "All"})
        except Refused:
            return True
        return False

    def may(self, verb: str, resource: str = "pods") -> bool:
        """Return whether the provisioner has this right."""
        review = {
            "user": f"system:serviceaccount:{self.name}:{ACCOUNT}",
            "resourceAttributes": {"namespace": self.name, "verb": verb, "resource": resource},
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        response = self.admin.create(
            path, {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": review}
        )
        return bool(response["status"]["allowed"])

    def release(self) -> None:
        """Remove the pods that have been deleted but still exist, because their kubelet is dead and cannot end them."""
        for name in [name for name, pod in self._by_name().items() if "deletionTimestamp" in pod["metadata"]]:
            self.delete(name, grace=0)

    def _by_name(self) -> dict[str, Document]:
        return {pod["metadata"]["name"]: pod for pod in self.pods()}

    def _grant(self, document: dict[str, Any]) -> None:
        """Make this role or binding in the namespace. A binding names the account of this namespace."""
        document["metadata"]["namespace"] = self.name
        for subject in document.get("subjects", ()):
            subject["namespace"] = self.name
        kinds = {"Role": "roles", "RoleBinding": "rolebindings"}
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.name}/{kinds[document['kind']]}"
        self.admin.create(path, document)
