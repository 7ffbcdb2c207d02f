"""Reads provisioner.yaml on top of HostFactory's two JSON files into one typed tree, or says all that is wrong with it.

Pools may be written in provisioner.yaml, or follow from a template that carries the fields of Google's connector.
Reads files only; no network, no clock, no logger.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from provisioner.backends import registry
from provisioner.backends.kind import Surroundings
from provisioner.files.yaml_text import join
from provisioner.hostfactory import templates
from provisioner.hostfactory.instance import TemplatesError
from provisioner.schema.pool import Pool
from provisioner.schema.problems import ConfigError, Problem, expected, read_mapping, suggestion, validate, words_of
from provisioner.settings.tree import SECTIONS, Settings, TemplateSettings

ORDERED = (("loop", "floor_seconds", "interval_seconds"), ("backoff", "first_seconds", "last_seconds"))
"""Sections, and two settings of each, of which the first may not be above the second."""
NO_FILE = (
    "no such file; make it and name the pools in it, as config/demoinst of the repository does, or say with --config "
    "or HF_PROVIDER_CONFDIR where it is"
)

NO_TEMPLATES = (
    "; HostFactory's scripts read it, too: `provisioner render-hf` writes it, config/demoinst of the repository has one"
)


def load(path: Path, environment: Mapping[str, str]) -> Settings:
    """The configuration in ``path`` and in HF's two files beside it; raises ConfigError with every mistake.

    Without that file all settings have their defaults, if the templates are those of Google's connector.
    ``environment``: gives HF_PROVIDER_NAME (which pair of files; needed only where there is more than one), and
    KUBECONFIG and PROVISIONER_COMPUTE_ENDPOINT for the pools that name none.
    """
    document, problems = read_mapping(path)
    if problems and not path.exists():
        problems = [Problem(str(path), "", NO_FILE)]
    try:
        provider = templates.load(path.parent, environment)
    except TemplatesError as error:
        if path.parent.is_dir():
            advice = "" if Path(error.path).exists() else NO_TEMPLATES
            problems.append(Problem(error.path, "", error.reason + advice))
        raise ConfigError(problems) from error
    if not path.exists() and not any(template.pools for template in provider.templates):
        problems = []  # Google's connector has no such file: its templates say where machines are made
    if problems:
        raise ConfigError([*problems, *provider.problems])
    reader = _Reader(path, environment, provider, document)
    settings = reader.settings()
    if settings is None or reader.problems:
        raise ConfigError(sorted(reader.problems, key=lambda problem: problem.file != str(path)))
    return settings


class _Reader:
    """A reading of a configuration: goes on after each mistake, and gathers them."""

    def __init__(
        self, path: Path, environment: Mapping[str, str], provider: templates.Provider, document: dict[str, Any]
    ) -> None:
        self.path = path
        self.provider = provider
        self.document = document
        self.around = Surroundings(path.parent, provider.config, environment)
        """The surroundings that a configuration's meaning depends on."""
        self.problems = list(provider.problems)

    def settings(self) -> Settings | None:
        """The tree, or None; to be used only when ``problems`` is empty afterwards."""
        pools = self.written_pools()
        made = {template.id: self.pools_of(template, pools) for template in self.provider.templates}
        if not pools and not self.document.get("pools"):
            fields = " or ".join(kind.template_field for kind in registry.built_in())
            self.complain("pools", f"none; name one here, or give a template {fields}")
        prefix = self.provider.config.gcp_instance_prefix.lower().rstrip("-")
        of_hf = {"id": self.provider.name, "name_prefix": prefix}
        settings, problems = validate(
            Settings,
            {name: value for name, value in of_hf.items() if value} | self.written(made) | {"pools": pools},
            str(self.path),
            "",
            self.around,
            template_limits={},
            instance=self.provider.name,
            digests=self.provider.digests,
        )
        self.problems += problems
        if settings is None:
            return None
        self.check_adopted(settings)
        limits = {}
        for one in self.provider.templates:
            most = None if one.max_number == templates.UNLIMITED else one.max_number
            own = settings.templates.get(one.id, TemplateSettings())
            limits[one.id] = own.limits(one.id, made[one.id], most)
        return settings.model_copy(update={"template_limits": limits})

    def check_adopted(self, settings: Settings) -> None:
        """A prefix to adopt that covers our own names, or the other way round, cannot tell the two apart."""
        own = f"{settings.name_prefix}-"
        for number, prefix in enumerate(settings.adopt_prefixes):
            if own.startswith(prefix) or prefix.startswith(own):
                wrong = f"{prefix!r} and name_prefix {settings.name_prefix!r} cover one another; choose a name_prefix"
                self.complain(f"adopt_prefixes.{number}", f"{wrong} that no adopted name begins with")

    def check_order(self, name: str, low: str, high: str) -> None:
        """Settings of a section that are out of order, defaults included; other mistakes in them are told elsewhere."""
        body = {setting: field.default for setting, field in SECTIONS[name].model_fields.items()}
        body |= written if isinstance(written := self.document.get(name), dict) else {}
        least, most = body[low], body[high]
        if isinstance(least, (int, float)) and isinstance(most, (int, float)) and 0 < most < least:
            self.complain(join(name, low), expected(f"at most {high} ({most:g})", least))

    def complain(self, where: str, text: str) -> None:
        """Note a mistake in provisioner.yaml."""
        self.problems.append(Problem(str(self.path), where, text))

    def complain_of_template(self, template: templates.Template, name: str, text: str) -> None:
        """Note a mistake in a field of HF's templates file."""
        self.problems.append(Problem(self.provider.templates_path, join("templates", template.id, name), text))

    def written(self, ids: Collection[str]) -> dict[str, Any]:
        """The settings in the file; YAML's empty value is a section that is not there. ``ids``: HF's templates."""
        body = {name: value for name, value in self.document.items() if value is not None or name not in SECTIONS}
        of_templates = body.pop("templates", None) or {}
        if isinstance(of_templates, dict):
            body["templates"] = {name: part for name, part in of_templates.items() if name in ids}
            for name in of_templates:
                if name not in ids:
                    self.complain(join("templates", name), "no such template" + suggestion(str(name), ids))
        else:
            self.complain("templates", expected("a mapping of templates", of_templates))
        for name, low, high in ORDERED:
            self.check_order(name, low, high)
        server = body.get("server")
        if isinstance(server, dict) and (server.get("tls_cert") is None) != (server.get("tls_key") is None):
            self.complain("server", "tls_cert and tls_key need one another: name both, or neither")
        return body

    def written_pools(self) -> dict[str, Pool]:
        """The pools of the file that are right."""
        bodies = self.document.get("pools") or {}
        if not isinstance(bodies, dict):
            self.complain("pools", expected("a mapping of pools", bodies))
            return {}
        for name in bodies:
            if not isinstance(name, str):
                self.complain(join("pools", name), expected(words_of(Pool, "name"), name))
        pools = [self.written_pool(name, body) for name, body in bodies.items() if isinstance(name, str)]
        right = {pool.name: pool for pool in pools if pool is not None}
        first: dict[tuple[str, ...], str] = {}
        for name, pool in right.items():  # two that are one place would count each other's machines
            if first.setdefault(pool.identity, name) != name:
                self.complain(join("pools", name), f"the same place as pool {first[pool.identity]!r}")
        return right

    def written_pool(self, name: str, body: object) -> Pool | None:
        """A pool of the file; None if it is wrong."""
        where = join("pools", name)
        if not isinstance(body, dict):
            self.complain(where, expected("a mapping of settings", body))
            return None
        kind = body.get("kind")
        if kind not in registry.names():
            words = " or ".join(registry.names())
            wrong = expected(words, kind) if "kind" in body else f"missing; expected {words}"
            self.complain(join(where, "kind"), wrong)
            return None
        pool, problems = self.pool(name, kind, body)
        self.problems += [Problem(str(self.path), join(where, problem.where), problem.text) for problem in problems]
        return pool

    def pool(self, name: str, name_of_kind: str, body: Mapping[str, Any]) -> tuple[Pool | None, list[Problem]]:
        """A pool with what it inherits, and what is wrong with it (places relative to the pool)."""
        kind = registry.kind(name_of_kind)
        offered = kind.inherited(body, self.around)
        inherited = {key: value for key, value in offered.items() if value and body.get(key) is None}
        pool, problems = validate(kind.pool, {**body, **inherited}, "", "", self.around, name=name)
        return pool, [*problems, *kind.problems(body, inherited, self.around)]

    def pools_of(self, template: templates.Template, pools: dict[str, Pool]) -> tuple[str, ...]:
        """The pools that make a template's machines; adds its implicit pool to ``pools`` if it has one."""
        names = template.pools or self.implicit(template, pools)
        bodies = self.document.get("pools")
        written = [str(name) for name in bodies] if isinstance(bodies, dict) else []
        for name in template.pools:
            if name not in written and isinstance(bodies, dict):
                text = f"unknown pool {name!r}" + suggestion(name, written, many=True)
                self.complain_of_template(template, "pools", text)
        texts = [pools[name].template_problem(template.id) for name in names if name in pools]
        for text in dict.fromkeys(filter(None, texts)):
            self.complain_of_template(template, "templateId", text)
        return tuple(names)

    def implicit(self, template: templates.Template, pools: dict[str, Pool]) -> tuple[str, ...]:
        """The pool that the fields of Google's connector make: one of ``pools`` that is that place, or a new one."""
        kinds = registry.built_in()
        named = [(kind, body) for kind in kinds if (body := kind.implicit(template))]
        if len(named) != 1:
            words = ", or ".join(["names of pools", *(kind.template_words for kind in kinds)])
            self.complain_of_template(template, "pools", f"expected {words}")
            return ()
        [(kind, body)] = named
        pool, problems = self.pool(template.id, kind.name, body)
        called = {"name": "templateId", **kind.template_fields}
        for problem in problems:
            self.complain_of_template(template, called.get(problem.where, problem.where), problem.text)
        if pool is None:
            return ()
        same = next((other.name for other in pools.values() if other.identity == pool.identity), None)
        if same is None:
            pools[pool.name] = pool
        return (same or pool.name,)
