"""The kind ``gke``: settings of pools of pods, their checks, and the size of pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from provisioner.backends import Backend, MachineSize
from provisioner.backends.gke.pod_spec import MEBIBYTE, PodSpecError, read_pod_spec, requested_amount
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.kind import Kind, Surroundings
from provisioner.files.yaml_text import format_read_error
from provisioner.hostfactory.templates import Template
from provisioner.model import NEVER
from provisioner.optional_packages import extra, require_packages
from provisioner.schema.setting_types import Site
from provisioner.schema.validation import Problem

TOO_SHORT = "activeDeadlineSeconds is {:g}, so no pod lives for least_life_seconds ({:g}): lower that setting"
RESTARTED = (
    "spec.restartPolicy: {!r}: a container that ends is started again under the same name, so that its end is never "
    "seen: leave it out, or say Never"
)


class Gke(Kind[GkePool]):
    """Pods in namespaces of clusters."""

    name = "gke"
    pool = GkePool
    distribution = extra("gke")
    longest_call = 35.0
    """Seconds for a connection (5 s) plus a response (30 s)."""
    template_field = template_words = "podSpecYaml"
    template_fields: ClassVar = {"pod_spec": "podSpecYaml"}

    def factory(self, site: Site) -> Callable[[GkePool], Backend]:
        """Return a function that makes backends. Pools of a cluster share connections, and pools of a namespace
        share a watch."""
        from provisioner.backends.gke.backend import GkeBackend
        from provisioner.backends.gke.shared_connections import Namespaces

        return partial(GkeBackend, provisioner=site.id, prefix=site.prefix, namespaces=Namespaces())

    def inherited(self, body: Mapping[str, Any], around: Surroundings) -> Mapping[str, object]:
        """Return the settings that the pool inherits from HF's provider config and the environment: the namespace, and
        the credentials for an endpoint. If the pool names no endpoint, return a kubeconfig instead of the
        credentials."""
        config = around.config
        if body.get("endpoint") is not None:
            return {"namespace": config.gke_namespace, "credentials": around.beside(config.gcp_credentials_file)}
        kubeconfig, named = around.beside(config.gke_kubeconfig), around.environment.get("KUBECONFIG")
        return {"namespace": config.gke_namespace, "kubeconfig": kubeconfig or (Path(named) if named else None)}

    def embedded(self, address: str) -> Mapping[str, object]:
        """Return settings that replace the cluster and its login: the endpoint is ``address``, and there is no
        login."""
        return {"kubeconfig": None, "context": None, "ca_file": None, "credentials": None, "endpoint": address}

    def problems(self, body: Mapping[str, Any], inherited: Mapping[str, object], around: Surroundings) -> list[Problem]:
        """Return the problems of cluster settings that contradict each other, and of the pod spec."""
        problems = _cluster_problems(body)
        if isinstance(body.get("pod_spec"), str):
            namespace = {**body, **inherited}.get("namespace", GkePool.model_fields["namespace"].default)
            reason = _pod_spec_problem(around.directory, body["pod_spec"], str(namespace))
            problems += [Problem("", "pod_spec", reason)] if reason else []
        return problems

    def implicit(self, template: Template) -> Mapping[str, object]:
        """Return the file of the pod spec that the template names; empty if it names none."""
        return {"pod_spec": template.pod_spec_yaml} if template.pod_spec_yaml else {}

    def warnings(self, pool: GkePool) -> list[str]:
        """Return warnings about four kinds of fields of the pod spec: fields that are overwritten; fields that no pod
        has; restart policies that hide the end of a pod; a time limit that ends pods too soon."""
        # The client's models take a third of a second to load.
        with require_packages(self.distribution):
            from provisioner.backends.gke.own_pods import OWN_LABELS
            from provisioner.backends.gke.pod_fields import unknown_fields

        spec = read_pod_spec(pool.pod_spec, pool.namespace)
        pod = spec.pod()
        unknown = [f"{field.path}: no pod has such a field{field.hint}" for field in unknown_fields(pod)]
        replaced = [f"{field}: is set by the provisioner" for field in spec.replaced(OWN_LABELS)]
        policies = [one.get("restartPolicy") for one in (pod["spec"], *pod["spec"]["containers"])]
        restarted = [RESTARTED.format(policy) for policy in dict.fromkeys(policies) if policy not in (None, "Never")]
        life = pod["spec"].get("activeDeadlineSeconds") or NEVER
        short = [TOO_SHORT.format(life, pool.least_life_seconds)] if life <= pool.least_life_seconds else []
        setting = f"pools.{pool.name}.pod_spec: '{pool.pod_spec.name}'"
        return [f"{setting}: {text}" for text in (*replaced, *unknown, *restarted, *short)]

    def size(self, pool: GkePool, template: str) -> MachineSize | None:
        """Return the size of a pod, which is its effective request."""
        spec = read_pod_spec(pool.pod_spec, pool.namespace).pod()["spec"]
        megabytes = requested_amount(spec, "memory") / MEBIBYTE
        return MachineSize(f"the request of {pool.pod_spec}", requested_amount(spec, "cpu"), megabytes)


def _pod_spec_problem(directory: Path, written: str, namespace: str) -> str | None:
    """Return the problem of a pod spec file; None if there is no problem. A file outside ``directory`` is refused,
    because HF's users may edit the templates that name the file."""
    path = directory / written
    try:
        if not path.resolve().is_relative_to(directory.resolve()):
            return f"{written!r} is outside the configuration's directory"
        read_pod_spec(path, namespace)
    except FileNotFoundError:
        return f"no such file: {written!r}"
    except PodSpecError as error:
        return f"{written!r}: {error}"
    except (OSError, ValueError) as error:
        return f"{written!r} cannot be read: {format_read_error(error)}"
    return None


def _cluster_problems(body: Mapping[str, object]) -> list[Problem]:
    """Return the problems of the settings that name the cluster: exactly one of a kubeconfig and an endpoint must be
    set."""
    endpoint, of_kubeconfig, of_endpoint = body.get("endpoint"), ["kubeconfig", "context"], ["ca_file", "credentials"]
    if endpoint is None:
        names, reason = of_endpoint, "used only with an endpoint; name one, or leave this out"
    elif str(endpoint).startswith("http://"):
        names, reason = [*of_kubeconfig, *of_endpoint], "not used with an endpoint of http://; leave this out"
    else:
        names, reason = of_kubeconfig, "not used with an endpoint; leave out one of them"
    return [Problem("", name, reason) for name in names if body.get(name) is not None]


KIND = Gke()
