"""The settings of a pool of pods. No I/O, no clock, no logger."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import StringConstraints

from provisioner.schema.setting_types import (
    LABEL_VALUE,
    CarriedFile,
    Endpoint,
    OptionalCarriedFile,
    OptionalDuration,
    OptionalSecretFile,
    OptionalText,
    Pool,
    Switch,
)
from provisioner.schema.validation import Expects, format_expected, words_of

Namespace = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"),
    Expects("the name of a Kubernetes namespace"),
]


class GkePool(Pool):
    """Pods in one namespace of one cluster, all from one pod spec."""

    kind: Literal["gke"] = "gke"
    """Kind of the place."""
    namespace: Namespace = "gcp-symphony"
    """Namespace of the pods. Default ``GKE_CRD_NAMESPACE`` of HF's provider config, else gcp-symphony."""
    pod_spec: CarriedFile
    """File in the configuration's directory with a pod's spec, or a full Pod manifest. No default."""
    kubeconfig: OptionalSecretFile = None
    """File that names cluster and credentials. Default ``GKE_KUBECONFIG`` of HF's provider config, else ``KUBECONFIG``
    of the environment, else the service account of the provisioner's own pod."""
    context: OptionalText = None
    """Context within the kubeconfig. Default the kubeconfig's current context."""
    endpoint: Endpoint = None
    """Address of the cluster's API server, instead of a kubeconfig. The loop then logs in with Google credentials. An
    address with http:// (the embedded cloud) gets no credentials. ``PROVISIONER_EMBEDDED_CLOUD`` in the environment
    replaces the cluster and the login of every pool. Default none."""
    ca_file: OptionalCarriedFile = None
    """Certificate authority (PEM) of ``endpoint``. Default ``ca_bundle``, else the system's authorities. The DNS
    endpoint of a GKE cluster needs no file."""
    credentials: OptionalSecretFile = None
    """File for the login at ``endpoint``: key of a service account, or configuration of a workload identity federation.
    Default ``GCP_CREDENTIALS_FILE`` of HF's provider config, else application-default credentials."""
    force_delete_after_seconds: OptionalDuration = None
    """Seconds after the grace period of a deleted pod. If the pod is still terminating then, the loop deletes it by
    force. On a node that is cut off, the pod's containers may still run afterwards: set this only if that is
    acceptable. Default never."""

    loss_events: Switch = True
    """True: the loop writes a Kubernetes Event on each pod that ended by itself or never ran. The Event names cause,
    request and template. If many pods are lost at once, ten get an Event, and one Event per pool counts the others. If
    the loop may not create Events, it logs this once and writes none. Default true."""

    read_at_start: ClassVar[tuple[str, ...]] = (*Pool.read_at_start, "credentials", "loss_events")

    def template_problem(self, template: str) -> str:
        """Return the reason why a template's id cannot be a label of pods; empty if the id can be one."""
        return "" if LABEL_VALUE.fullmatch(template) else format_expected(words_of(Pool, "name"), template)

    @property
    def force_after_seconds(self) -> float | None:
        """Return the setting ``force_delete_after_seconds`` under its name in ``PoolLimits``."""
        return self.force_delete_after_seconds

    @property
    def where(self) -> str:
        """Return the namespace in words. The cluster's address and the context's name are left out, because both may
        change."""
        return f"namespace {self.namespace}"

    @property
    def cluster(self) -> tuple[str, ...]:
        """Return a key of cluster and credentials. Pools with the same cluster and credentials have the same key."""
        if self.endpoint is not None:
            return (self.endpoint, str(self.ca_file or ""), str(self.credentials or ""))
        return (str(self.kubeconfig or ""), self.context or "")

    @property
    def identity(self) -> tuple[str, ...]:
        """Return a key that two pools share only if they are the same pool. A namespace may have several pools, each
        with its own pod spec."""
        return ("gke", *self.cluster, self.namespace, str(self.pod_spec))
