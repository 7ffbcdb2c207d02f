"""Reader of provisioner.yaml and of HostFactory's two JSON files. The reader returns typed settings, or reports all
mistakes.

An operator defines a pool in provisioner.yaml, or by a template with the fields of Google's connector. The reader only
reads files: no network, clock or logger.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from provisioner.backends import registry
from provisioner.backends.kind import EMBEDDED_CLOUD, Surroundings
from provisioner.files.yaml_text import join
from provisioner.hostfactory import templates
from provisioner.hostfactory.provider_config import TemplatesError
from provisioner.hostfactory.shards import read_shard
from provisioner.schema.setting_types import Pool
from provisioner.schema.validation import (
    ConfigError,
    Problem,
    format_expected,
    read_mapping,
    suggestion,
    validate,
    words_of,
)
from provisioner.settings.definitions import SECTIONS, Settings, TemplateSettings

ORDERED = (("loop", "floor_seconds", "interval_seconds"), ("backoff", "first_seconds", "last_seconds"))
"""Sections with a pair of settings. The first setting of a pair must not be larger than the second."""
NO_FILE = (
    "no such file; create it and name the pools in it, as config/demoinst of the repository does, or give its place "
    "with --config or HF_PROVIDER_CONFDIR"
)

NO_TEMPLATES = (
    "; HostFactory's scripts read it, too: `provisioner render-hf` writes it, config/demoinst of the repository has one"
)


def load(path: Path, environment: Mapping[str, str]) -> Settings:
    """Return the configuration in ``path`` and in HF's two files beside it. Raises ConfigError with all mistakes.

    ``path`` may be missing if the templates are for Google's connector. All settings then have their defaults.
    ``environment``: HF_PROVIDER_NAME selects one of several pairs of HF's files. KUBECONFIG and
    PROVISIONER_COMPUTE_ENDPOINT apply to pools that do not set these values.
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
        problems = []  # Google's connector has no such file; its templates name the places of machines
    if problems:
        raise ConfigError([*problems, *provider.problems])
    reader = _Reader(path, environment, provider, document)
    settings = reader.settings()
    if settings is None or reader.problems:
        raise ConfigError(sorted(reader.problems, key=lambda problem: problem.file != str(path)))
    return settings


class _Reader:
    """A reader of one configuration, which continues after each mistake and collects all mistakes."""

    def __init__(
        self, path: Path, environment: Mapping[str, str], provider: templates.Provider, document: dict[str, Any]
    ) -> None:
        self.path = path
        self.provider = provider
        self.document = document
        self.around = Surroundings(path.parent, provider.config, environment)
        """Directory, provider config and environment, on which the meaning of the configuration depends."""
        self.problems = list(provider.problems)

    def settings(self) -> Settings | None:
        """Return the settings; None if they are unusable. The settings are valid only if ``problems`` is empty after
        the call."""
        pools = self.written_pools()
        pools_by_template = {template.id: self.pools_of(template, pools) for template in self.provider.templates}
        if not pools and not self.document.get("pools"):
            fields = " or ".join(kind.template_field for kind in registry.built_in_kinds() if kind.template_field)
            self.add_problem("pools", f"none; name one here, or give a template {fields}")
        prefix = self.provider.config.gcp_instance_prefix.lower().rstrip("-")
        of_hf = {"id": self.provider.name, "name_prefix": prefix}
        settings, problems = validate(
            Settings,
            {name: value for name, value in of_hf.items() if value}
            | self.written(pools_by_template)
            | {"pools": pools},
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
            max_machines = None if one.max_number == templates.UNLIMITED else one.max_number
            own = settings.templates.get(one.id, TemplateSettings())
            limits[one.id] = own.limits(one.id, pools_by_template[one.id], max_machines)
        return self.shard(settings.model_copy(update={"template_limits": limits}))

    def shard(self, settings: Settings) -> Settings:
        """Return the settings of the shard that PROVISIONER_SHARD names; all settings if the variable is not set."""
        shards, path = self.provider.config.state_shards, self.provider.config_path
        for name in {name for names in shards for name in names} - settings.pools.keys():
            text = f"unknown pool {name!r}" + suggestion(name, settings.pools, many=True)
            self.problems.append(Problem(path, "STATE_SHARDS", text))
        for template in self.provider.templates if shards else ():
            pools = settings.template_limits[template.id].pools
            if pools != (template.pools or (template.id,)):  # the scripts know no other pools
                text = f"{template.id} uses pool {pools[0]}" if pools else f"{template.id} has no pool"
                self.add_template_problem(template, "pools", f"{text}; with STATE_SHARDS, name it here")
        try:
            number = read_shard(shards, self.around.environment)
        except ValueError as error:
            self.problems.append(Problem(path, "STATE_SHARDS", str(error)))
            return settings
        return settings if number is None else settings.of_shard(shards, number)

    def check_adopted(self, settings: Settings) -> None:
        """Report each prefix in ``adopt_prefixes`` (another provider's machines) that overlaps with our own prefix. Two
        prefixes overlap if one of them begins with the other."""
        own = f"{settings.name_prefix}-"
        for number, prefix in enumerate(settings.adopt_prefixes):
            if own.startswith(prefix) or prefix.startswith(own):
                wrong = f"{prefix!r} and name_prefix {settings.name_prefix!r} overlap; choose a name_prefix"
                self.add_problem(f"adopt_prefixes.{number}", f"{wrong} that no adopted name begins with")

    def check_order(self, name: str, low: str, high: str) -> None:
        """Report a mistake if the setting ``low`` of a section is larger than its setting ``high``. A missing setting
        has its default value. Values of a wrong type are reported elsewhere, by validation."""
        body = {setting: field.default for setting, field in SECTIONS[name].model_fields.items()}
        body |= written if isinstance(written := self.document.get(name), dict) else {}
        lower, upper = body[low], body[high]
        if isinstance(lower, (int, float)) and isinstance(upper, (int, float)) and 0 < upper < lower:
            self.add_problem(join(name, low), format_expected(f"at most {high} ({upper:g})", lower))

    def add_problem(self, where: str, text: str) -> None:
        """Record a mistake in provisioner.yaml."""
        self.problems.append(Problem(str(self.path), where, text))

    def add_template_problem(self, template: templates.Template, name: str, text: str) -> None:
        """Record a mistake in a field of HF's templates file."""
        self.problems.append(Problem(self.provider.templates_path, join("templates", template.id, name), text))

    def written(self, ids: Collection[str]) -> dict[str, Any]:
        """Return the settings in the file. A section with YAML's empty value counts as absent. ``ids``: the ids of
        HF's templates."""
        body = {name: value for name, value in self.document.items() if value is not None or name not in SECTIONS}
        of_templates = body.pop("templates", None) or {}
        if isinstance(of_templates, dict):
            body["templates"] = {name: part for name, part in of_templates.items() if name in ids}
            for name in of_templates:
                if name not in ids:
                    self.add_problem(join("templates", name), "no such template" + suggestion(str(name), ids))
        else:
            self.add_problem("templates", format_expected("a mapping of templates", of_templates))
        for name, low, high in ORDERED:
            self.check_order(name, low, high)
        server = body.get("server")
        if isinstance(server, dict) and (server.get("tls_cert") is None) != (server.get("tls_key") is None):
            self.add_problem("server", "tls_cert and tls_key need one another: name both, or neither")
        return body

    def written_pools(self) -> dict[str, Pool]:
        """Return the valid pools of the file."""
        bodies = self.document.get("pools") or {}
        if not isinstance(bodies, dict):
            self.add_problem("pools", format_expected("a mapping of pools", bodies))
            return {}
        for name in bodies:
            if not isinstance(name, str):
                self.add_problem(join("pools", name), format_expected(words_of(Pool, "name"), name))
        pools = [self.written_pool(name, body) for name, body in bodies.items() if isinstance(name, str)]
        valid_pools = {pool.name: pool for pool in pools if pool is not None}
        first: dict[tuple[str, ...], str] = {}
        for name, pool in valid_pools.items():  # two pools in the same place would count each other's machines
            if first.setdefault(pool.identity, name) != name:
                self.add_problem(join("pools", name), f"the same place as pool {first[pool.identity]!r}")
        return valid_pools

    def written_pool(self, name: str, body: object) -> Pool | None:
        """Return a pool of the file; None if its settings are invalid."""
        where = join("pools", name)
        if not isinstance(body, dict):
            self.add_problem(where, format_expected("a mapping of settings", body))
            return None
        kind = body.get("kind")
        if kind not in registry.kind_names():
            words = " or ".join(registry.kind_names())
            wrong = format_expected(words, kind) if "kind" in body else f"missing; expected {words}"
            self.add_problem(join(where, "kind"), wrong)
            return None
        pool, problems = self.pool(name, kind, body)
        self.problems += [Problem(str(self.path), join(where, problem.where), problem.text) for problem in problems]
        return pool

    def pool(self, name: str, name_of_kind: str, body: Mapping[str, Any]) -> tuple[Pool | None, list[Problem]]:
        """Return a pool with the settings that it inherits, and its problems. The paths in the problems are relative to
        the pool."""
        kind = registry.get_kind(name_of_kind)
        if address := self.around.environment.get(EMBEDDED_CLOUD):
            body = {**body, **kind.embedded(address)}
        inheritable = kind.inherited(body, self.around)
        inherited = {key: value for key, value in inheritable.items() if value and body.get(key) is None}
        pool, problems = validate(kind.pool, {**body, **inherited}, "", "", self.around, name=name)
        return pool, [*problems, *kind.problems(body, inherited, self.around)]

    def pools_of(self, template: templates.Template, pools: dict[str, Pool]) -> tuple[str, ...]:
        """Return the pools that make the machines of a template. If the template describes an implicit pool, add this
        pool to ``pools``."""
        names = template.pools or self.implicit_pool(template, pools)
        bodies = self.document.get("pools")
        written = [str(name) for name in bodies] if isinstance(bodies, dict) else []
        for name in template.pools:
            if name not in written and isinstance(bodies, dict):
                text = f"unknown pool {name!r}" + suggestion(name, written, many=True)
                self.add_template_problem(template, "pools", text)
        texts = [pools[name].template_problem(template.id) for name in names if name in pools]
        for text in dict.fromkeys(filter(None, texts)):
            self.add_template_problem(template, "templateId", text)
        return tuple(names)

    def implicit_pool(self, template: templates.Template, pools: dict[str, Pool]) -> tuple[str, ...]:
        """Return the name of the pool that the fields of Google's connector describe, as a tuple. The tuple is empty if
        the fields describe no valid pool.

        If a pool in ``pools`` has the same place, return that pool's name. If not, add the new pool to ``pools``.
        """
        kinds = registry.built_in_kinds()
        named = [(kind, body) for kind in kinds if (body := kind.implicit(template))]
        if len(named) != 1:
            words = ", or ".join(["names of pools", *(kind.template_words for kind in kinds if kind.template_words)])
            self.add_template_problem(template, "pools", f"expected {words}")
            return ()
        [(kind, body)] = named
        pool, problems = self.pool(template.id, kind.name, body)
        called = {"name": "templateId", **kind.template_fields}
        for problem in problems:
            self.add_template_problem(template, called.get(problem.where, problem.where), problem.text)
        if pool is None:
            return ()
        same = next((other.name for other in pools.values() if other.identity == pool.identity), None)
        if same is None:
            pools[pool.name] = pool
        return (same or pool.name,)
