"""Reads provisioner.yaml on top of HostFactory's two JSON files into one typed tree, or says all that is wrong with it.

Pools may be written in provisioner.yaml, or follow from a template that carries the fields of Google's connector.
Reads files only; no network, no clock, no logger.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioner.backends.gke.pod_spec import PodSpecError, read_pod_spec
from provisioner.files.yaml_text import join, reason_of
from provisioner.hostfactory import templates
from provisioner.model import TemplateLimits
from provisioner.settings.problems import (
    ConfigError,
    Problem,
    Section,
    expected,
    read_mapping,
    suggestion,
    validate,
    words_of,
)
from provisioner.settings.tree import (
    KINDS,
    LABEL_VALUE,
    SECTIONS,
    AnyPool,
    Backoff,
    Events,
    GkePool,
    Loop,
    MigPool,
    Pool,
    Settings,
)

__all__ = ["Backoff", "ConfigError", "Events", "GkePool", "Loop", "MigPool", "Pool", "Problem", "Settings", "load"]

COMPUTE_ENDPOINT = "PROVISIONER_COMPUTE_ENDPOINT"
"""Environment variable: the Compute API of every MIG that names no endpoint of its own."""

PATHS = frozenset({"pod_spec", "kubeconfig", "credentials", "ca_file"})
"""Settings that are written relative to the configuration's directory."""
HF_NAMES = {
    "name": "templateId",
    "pod_spec": "podSpecYaml",
    "zone": "gcp_zone",
    "region": "gcp_region",
    "group": "gcp_instance_group",
    "project": "(GCP_PROJECT_ID)",
}
"""What a pool's settings are called where a template makes the pool."""
ORDERED: Mapping[type[Section], tuple[str, str]] = {
    Loop: ("floor_seconds", "interval_seconds"),
    Backoff: ("first_seconds", "last_seconds"),
}
"""Settings of which the first may not be above the second."""
NO_FILE = (
    "no such file; make it and name the pools in it, as config/demoinst of the repository does, or say with --config "
    "or HF_PROVIDER_CONFDIR where it is"
)
NO_PLACE = "expected names of pools, or podSpecYaml, or gcp_instance_group with gcp_zone or gcp_region"


def load(path: Path, environment: Mapping[str, str]) -> Settings:
    """The configuration in ``path`` and in HF's two files beside it; raises ConfigError with every mistake.

    Without that file all settings have their defaults, if the templates are those of Google's connector.
    ``environment`` gives HF_PROVIDER_NAME (which pair of files; needed only where there is more than one), and
    KUBECONFIG and PROVISIONER_COMPUTE_ENDPOINT for the pools that name none.
    """
    document, problems = read_mapping(path)
    try:
        provider = templates.load(path.parent, environment)
    except templates.TemplatesError as error:
        raise ConfigError([*problems, Problem(error.path, "", error.reason)]) from error
    mistakes = [Problem(mistake.file, mistake.where, mistake.text) for mistake in provider.mistakes]
    if not path.exists() and not any(template.pools for template in provider.templates):
        problems = []  # Google's connector has no such file: its templates say where machines are made
    if problems and not path.exists():
        problems = [Problem(str(path), "", NO_FILE)]
    if problems:
        raise ConfigError([*problems, *mistakes])
    reader = _Reader(path, environment, provider, document, mistakes)
    settings = reader.settings()
    if settings is None or reader.problems:
        raise ConfigError(sorted(reader.problems, key=lambda problem: problem.file != str(path)))
    return settings


@dataclass
class _Reader:
    """One reading of a configuration: goes on after each mistake, and gathers them."""

    path: Path
    environment: Mapping[str, str]
    provider: templates.Provider
    document: dict[str, Any]
    problems: list[Problem]

    def settings(self) -> Settings | None:
        """The tree, or None; to be used only when ``problems`` is empty afterwards."""
        pools = self.written_pools()
        limits = {template.id: self.template(template, pools) for template in self.provider.templates}
        if not pools and not self.document.get("pools"):
            self.complain("pools", "none; name one here, or give a template podSpecYaml or gcp_instance_group")
        sections = {name: self.section(name, model) for name, model in SECTIONS.items()}
        body = {**self.defaults(), **self.document, **sections, "pools": pools}
        body = {name: value for name, value in body.items() if value is not None or name not in SECTIONS}
        settings, problems = validate(
            Settings, body, str(self.path), "", template_limits=limits, instance=self.provider.name
        )
        self.problems += problems
        if settings is not None:
            self.check_adopted(settings)
        return settings

    def check_adopted(self, settings: Settings) -> None:
        """A prefix to adopt that covers our own names, or the other way round, cannot tell the two apart."""
        own = f"{settings.name_prefix}-"
        for number, prefix in enumerate(settings.adopt_prefixes):
            if own.startswith(prefix) or prefix.startswith(own):
                wrong = f"{prefix!r} and name_prefix {settings.name_prefix!r} cover one another; choose a name_prefix"
                self.complain(f"adopt_prefixes.{number}", f"{wrong} that no adopted name begins with")

    def complain(self, where: str, text: str) -> None:
        """Note a mistake in provisioner.yaml."""
        self.problems.append(Problem(str(self.path), where, text))

    def complain_of_template(self, template: templates.Template, name: str, text: str) -> None:
        """Note a mistake in a field of HF's templates file."""
        self.problems.append(Problem(self.provider.templates_path, join("templates", template.id, name), text))

    def defaults(self) -> dict[str, str]:
        """Defaults of top-level settings that come from HF."""
        prefix = self.provider.config.gcp_instance_prefix.lower().rstrip("-")
        found = {"id": self.provider.name, "name_prefix": prefix}
        return {name: value for name, value in found.items() if value}

    def section(self, name: str, model: type[Section]) -> Section | None:
        """A section of the file; None when it is absent or wrong."""
        body = self.document.get(name)
        if body is None:
            return None
        if not isinstance(body, dict):
            self.complain(name, expected("a mapping of settings", body))
            return None
        section, problems = validate(model, body, str(self.path), name)
        self.problems += [*problems, *_out_of_order(model, body, str(self.path), name)]
        return section

    def written_pools(self) -> dict[str, AnyPool]:
        """The pools of the file that are right."""
        bodies = self.document.get("pools") or {}
        if not isinstance(bodies, dict):
            self.complain("pools", expected("a mapping of pools", bodies))
            return {}
        for name in bodies:
            if not isinstance(name, str):
                self.complain(join("pools", name), expected(words_of(Pool, "name"), name))
        pools = [self.written_pool(name, body) for name, body in bodies.items() if isinstance(name, str)]
        return self.distinct({pool.name: pool for pool in pools if pool is not None})

    def distinct(self, pools: dict[str, AnyPool]) -> dict[str, AnyPool]:
        """The same pools; two of them that are one place are a mistake: each would count the other's machines."""
        first: dict[tuple[str, ...], str] = {}
        for name, pool in pools.items():
            if pool.place in first:
                self.complain(join("pools", name), f"the same place as pool {first[pool.place]!r}")
            first.setdefault(pool.place, name)
        return pools

    def written_pool(self, name: str, body: object) -> AnyPool | None:
        """One pool of the file; None when it is wrong."""
        where = join("pools", name)
        if not isinstance(body, dict):
            self.complain(where, expected("a mapping of settings", body))
            return None
        kind = body.get("kind")
        if not isinstance(kind, str) or kind not in KINDS:
            wrong = expected("gke or mig", kind) if "kind" in body else "missing; expected gke or mig"
            self.complain(join(where, "kind"), wrong)
            return None
        pool, problems = self.pool(name, kind, body)
        self.problems += [Problem(str(self.path), join(where, problem.where), problem.text) for problem in problems]
        return pool

    def pool(self, name: str, kind: str, body: Mapping[str, Any]) -> tuple[AnyPool | None, list[Problem]]:
        """A pool with what it inherits, and what is wrong with it (places relative to the pool)."""
        inherited = {key: value for key, value in self.inherited(kind, body).items() if body.get(key) is None}
        given = {key: self.beside(value) if key in PATHS else value for key, value in body.items()}
        pool, problems = validate(KINDS[kind], {**given, **inherited}, "", "", name=name)
        if kind == "mig" and (body.get("zone") is None) == (body.get("region") is None):
            problems.append(Problem("", "zone", "expected either zone or region, got " + _both_or_neither(body)))
        if kind == "gke":
            problems += _cluster_problems(body)
        if isinstance(body.get("pod_spec"), str) and kind == "gke":
            namespace = {**body, **inherited}.get("namespace", GkePool.model_fields["namespace"].default)
            reason = pod_spec_problem(self.path.parent, body["pod_spec"], str(namespace))
            problems += [Problem("", "pod_spec", reason)] if reason else []
        return pool, problems

    def beside(self, value: object) -> object:
        """A path as written, from the configuration's directory; that of nobody's home stays as it is."""
        if not isinstance(value, str) or not value:
            return value
        path = Path(value)
        with suppress(RuntimeError):
            path = path.expanduser()
        return self.path.parent / path

    def inherited(self, kind: str, body: Mapping[str, Any]) -> dict[str, object]:
        """What a pool takes from HF's provider config and the environment when it does not say so itself."""
        config = self.provider.config
        credentials = self.beside(config.gcp_credentials_file)
        if kind == "gke" and body.get("endpoint") is not None:
            found = {"namespace": config.gke_namespace, "credentials": credentials}
        elif kind == "gke":
            kubeconfig = self.beside(config.gke_kubeconfig) or self.environment.get("KUBECONFIG")
            found = {"namespace": config.gke_namespace, "kubeconfig": kubeconfig}
        else:
            endpoint = self.environment.get(COMPUTE_ENDPOINT)
            found = {"project": config.gcp_project_id, "credentials": credentials, "endpoint": endpoint}
        return {key: value for key, value in found.items() if value}

    def template(self, template: templates.Template, pools: dict[str, AnyPool]) -> TemplateLimits:
        """Where a template's machines are made; adds its implicit pool to ``pools`` when it has one."""
        names = template.pools or self.implicit(template, pools)
        bodies = self.document.get("pools")
        known = [str(name) for name in bodies] if isinstance(bodies, dict) else []
        for name in template.pools:
            if name not in known and isinstance(bodies, dict):
                self.complain_of_template(template, "pools", f"unknown pool {name!r}" + suggestion(name, known))
        if any(isinstance(pools.get(name), GkePool) for name in names) and not LABEL_VALUE.fullmatch(template.id):
            self.complain_of_template(template, "templateId", expected(words_of(Pool, "name"), template.id))
        limit = None if template.max_number == templates.UNLIMITED else template.max_number
        return TemplateLimits(template.id, tuple(names), limit)

    def implicit(self, template: templates.Template, pools: dict[str, AnyPool]) -> tuple[str, ...]:
        """The pool that the fields of Google's connector make: one of ``pools`` that is that place, or a new one."""
        bodies = {
            "gke": {"pod_spec": template.pod_spec_yaml},
            "mig": {"zone": template.gcp_zone, "region": template.gcp_region, "group": template.gcp_instance_group},
        }
        found = {kind: {key: value for key, value in body.items() if value} for kind, body in bodies.items()}
        kinds = [kind for kind, body in found.items() if body]
        if len(kinds) != 1:
            self.complain_of_template(template, "pools", NO_PLACE)
            return ()
        pool, problems = self.pool(template.id, kinds[0], found[kinds[0]])
        for problem in problems:
            self.complain_of_template(template, HF_NAMES.get(problem.where, problem.where), problem.text)
        if pool is None:
            return ()
        same = next((other.name for other in pools.values() if other.place == pool.place), None)
        if same is None:
            pools[pool.name] = pool
        return (same or pool.name,)


def pod_spec_problem(directory: Path, written: str, namespace: str) -> str | None:
    """What is wrong with a pod spec file, if anything. It stays within the directory: HF lets people edit templates."""
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
        return f"{written!r} cannot be read: {reason_of(error)}"
    return None


def _cluster_problems(body: Mapping[str, object]) -> list[Problem]:
    """A cluster is named by a kubeconfig or by an endpoint: what belongs to the other form is a mistake."""
    endpoint, of_kubeconfig, of_endpoint = body.get("endpoint"), ["kubeconfig", "context"], ["ca_file", "credentials"]
    if endpoint is None:
        names, reason = of_endpoint, "used only with an endpoint; name one, or leave this out"
    elif str(endpoint).startswith("http://"):
        names, reason = [*of_kubeconfig, *of_endpoint], "not used with an endpoint of http://; leave this out"
    else:
        names, reason = of_kubeconfig, "not used with an endpoint; leave out one of them"
    return [Problem("", name, reason) for name in names if body.get(name) is not None]


def _both_or_neither(body: Mapping[str, object]) -> str:
    return "neither" if body.get("zone") is None else "both"


def _out_of_order(model: type[Section], body: Mapping[str, object], file: str, where: str) -> list[Problem]:
    """The lower limit of a section that is above its upper one, defaults included."""
    if model not in ORDERED:
        return []
    low, high = ORDERED[model]
    least, most = (body.get(name, model.model_fields[name].default) for name in (low, high))
    if not isinstance(least, (int, float)) or not isinstance(most, (int, float)) or not 0 < most < least:
        return []
    return [Problem(file, join(where, low), expected(f"at most {high} ({most:g})", least))]
