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
    """Namespace of the pods; default ``GKE_CRD_NAMESPACE`` of HF's provider config, else gcp-symphony."""
    pod_spec: CarriedFile
    """File in the configuration's directory: a pod's spec, or a full Pod manifest. No default."""
    kubeconfig: OptionalSecretFile = None
    """File that names cluster and credentials; default ``GKE_KUBECONFIG`` of HF's provider config, then the
    environment's ``KUBECONFIG``, then the service account of the pod that the provisioner runs in."""
    context: OptionalText = None
    """Context within the kubeconfig; default its current one."""
    endpoint: Endpoint = None
    """Address of the cluster's API server, instead of a kubeconfig; default none. Google credentials are used, except
    that an address with http:// (the embedded cloud) gets none. ``PROVISIONER_EMBEDDED_CLOUD`` of the environment
    replaces it, and cluster and login with it."""
    ca_file: OptionalCarriedFile = None
    """Certificate authority of the endpoint (PEM); default ``ca_bundle``, else the system's, which includes the
    authority of a GKE cluster's DNS endpoint."""
    credentials: OptionalSecretFile = None
    """Key file of a service account, or configuration of a workload identity federation, for the endpoint; default
    ``GCP_CREDENTIALS_FILE`` of HF's provider config, else application-default credentials."""
    force_delete_after_seconds: OptionalDuration = None
    """A pod that we delete and that still terminates so many seconds after its grace period is deleted by force;
    default: never. The pod's containers may still run on a node that is cut off. Set this only if that is
    acceptable."""

    loss_events: Switch = True
    """True: write an Event on each pod that ended by itself or never ran, with cause, request and template; default
    true. Many losses at once make ten Events and one Event that counts the others. This needs the right to create
    events. If the right is missing, that is logged once, and no further Event is written."""

    read_at_start: ClassVar[tuple[str, ...]] = (*Pool.read_at_start, "credentials", "loss_events")

    def template_problem(self, template: str) -> str:
        """Return the reason why a template's id cannot be a label of pods; empty if the id can be one."""
        return "" if LABEL_VALUE.fullmatch(template) else format_expected(words_of(Pool, "name"), template)

    @property
    def force_after_seconds(self) -> float | None:
        """Return ``force_delete_after_seconds``, under the name that the settings of all kinds have."""
        return self.force_delete_after_seconds

    @property
    def where(self) -> str:
        """Return the namespace in words. The address of its cluster is left out, because it may change, and so is
        the name of a context."""
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
