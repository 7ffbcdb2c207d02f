"""``provisioner render-hf``: every file that HostFactory needs for a provider instance, from one settings file.

Everything is rendered and checked before the first file is put in place, and registration files keep what others have
in them. Reads and writes files; no network, no clock, no logger.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import BeforeValidator, Field, JsonValue, StringConstraints

from provisioner.files.yaml_text import join
from provisioner.hostfactory import templates
from provisioner.hostfactory.instance import TEMPLATE_ID, TemplatesError, expected, read_json
from provisioner.schema.pool import Pool
from provisioner.schema.problems import ConfigError, Expects, Problem, Section, quoted, read_mapping, validate
from provisioner.settings import loader
from provisioner.tools.placing import Rendered
from provisioner.tools.registration import (
    Asking,
    JsonObject,
    disabled_requestors,
    registration_text,
    with_entries,
    with_requestors,
    without_entries,
    without_requestor,
)

HfName = Annotated[
    str,
    StringConstraints(pattern=rf"^{TEMPLATE_ID}$"),
    Expects("1 to 64 letters, digits, '_' or '-'"),
]
Mode = Annotated[Literal["POLL", "REST", "REST_MANUAL"], Expects("POLL, REST or REST_MANUAL")]


def _with_mode(written: object) -> object:
    """A requestor of which its mode alone is given."""
    return {"mode": written} if isinstance(written, str) else written


REGISTRATIONS = {
    "providerplugins": Path("providerplugins", "hostProviderPlugins.json"),
    "providers": Path("providers", "hostProviders.json"),
    "requestors": Path("requestors", "hostRequestors.json"),
}
"""HF's registration files below its conf directory, by what is registered in them."""


FILE_KEYS = ("GKE_KUBECONFIG", "GCP_CREDENTIALS_FILE")
"""The keys of the provider config that name a file."""


class Requestor(Section):
    """The settings of a requestor that may ask the instance."""

    mode: Mode | None = None
    """POLL, REST or REST_MANUAL; default: that of hostRequestors.json, else POLL."""
    enabled: Annotated[bool | None, Expects("true or false")] = None
    """False disables, true enables a requestor that is there; default: as it is, and enabled if it is new."""
    providers: Annotated[list[HfName] | None, Expects("a list of provider instances")] = None
    """All provider instances that it may ask; default: those that it has, and this one."""


class HostFactorySettings(Section):
    """The settings file of ``render-hf``."""

    instance: HfName
    """Name of the provider instance: HF_PROVIDER_NAME of its scripts. No default."""
    plugin: HfName = "provisioner"
    """Name of the provider plug-in; default provisioner."""
    scripts: Annotated[str | None, Expects("a path")] = None
    """Directory of the scripts, as HostFactory finds it; default the plug-in's own below HF_TOP."""
    requestors: Annotated[
        Mapping[HfName, Annotated[Requestor, BeforeValidator(_with_mode)]],
        Expects("requestors, each with POLL, REST or REST_MANUAL, or with mode, enabled and providers"),
    ] = {"symAinst": Requestor(mode="POLL"), "admin": Requestor(mode="REST_MANUAL")}
    """Requestors that may ask this instance, each with its mode or a ``Requestor``; default symAinst: POLL, admin:
    REST_MANUAL."""
    config: Annotated[Mapping[str, JsonValue], Expects("keys with values of JSON (a date in quotes)")] = Field(
        default_factory=dict
    )
    """Keys of the provider config, as they stand in the file; before those of ``merge``."""
    templates: Annotated[
        list[dict[str, JsonValue]], Expects("a list of templates with values of JSON (a date in quotes)")
    ] = Field(default_factory=list)
    """HF's templates, as they stand in the file; before those of ``merge`` with the same templateId."""
    pools: Annotated[Mapping[str, Any], Expects("pools by name")] = Field(default_factory=dict)
    """Pools of the provisioner.yaml that is made, as they stand in it; before those of ``merge`` with the same name."""
    provisioner: Annotated[Mapping[str, Any], Expects("a mapping of settings")] = Field(default_factory=dict)
    """The other settings of the provisioner.yaml that is made; before those of ``merge``. Without these, ``pools`` and
    ``merge`` none is made, and one that is there stays."""
    files: Annotated[list[str], Expects("a list of files and directories beside the settings file")] = Field(
        default_factory=list
    )
    """What the pools name, such as pod specs: copied into the instance's directory, by the same relative path."""
    merge: Annotated[list[str], Expects("a list of directories")] = Field(default_factory=list)
    """Configuration directories of provider instances that become this one, relative to the settings file. What is
    registered of those instances stays so: disable them before this one runs."""


class Given(NamedTuple):
    """A value, and the file that has it."""

    value: Any
    file: str


class Rendering:
    """The files to write, gathered with everything that is wrong."""

    def __init__(self, settings: HostFactorySettings, file: Path) -> None:
        self._settings = settings
        self._file = file
        self._problems = list(_own_problems(settings, str(file)))
        self._config = self._given(settings.config)
        self._sections = self._given(settings.provisioner)
        self._templates = self._given({str(entry.get("templateId")): entry for entry in settings.templates})
        self._pools = self._given(settings.pools)
        self._copies: dict[str, Path] = {}
        for name in settings.files:
            self._take_files(file.parent, name)
        for source in settings.merge:
            self._take(file.parent / source)

    def _given(self, values: Mapping[str, Any]) -> dict[str, Given]:
        return {name: Given(value, str(self._file)) for name, value in values.items()}

    def files(self, conf: Path) -> dict[Path, Rendered]:
        """Every file below ``conf``, HostFactory's configuration, the registrations last; raises ConfigError."""
        registrations = self._registrations(conf)
        if self._problems:
            raise ConfigError(self._problems)
        own, directory = self._instance_files(), conf / "providers" / self._settings.instance
        self._check(own, directory)
        return {**{directory / name: rendered for name, rendered in own.items()}, **registrations}

    def _instance_files(self) -> dict[str, Rendered]:
        """The files of the provider instance, by their path in its directory."""
        name = self._settings.instance
        files = {path: Rendered(file.read_bytes(), file.stat().st_mode & 0o777) for path, file in self._copies.items()}
        files[f"{name}prov_config.json"] = _json(_values(self._config))
        files[f"{name}prov_templates.json"] = _json({"templates": list(_values(self._templates).values())})
        if self._has_own_settings():
            pools = {"pools": _values(self._pools)} if self._pools else {}
            text = yaml.safe_dump({**_values(self._sections), **pools}, sort_keys=False)
            files["provisioner.yaml"] = Rendered(
                f"# Made by provisioner render-hf: change its settings file.\n{text}".encode()
            )
        return files

    def _has_own_settings(self) -> bool:
        """True when a provisioner.yaml is made."""
        return bool(self._pools or self._sections)

    def _registrations(self, conf: Path) -> dict[Path, Rendered]:
        """The registration files, with what others have there."""
        instance = self._settings.instance
        documents: dict[str, Callable[[Path], JsonObject]] = {
            "providerplugins": lambda path: with_entries(path, "providerplugins", [self.plugin()]),
            "providers": lambda path: with_entries(path, "providers", [self.provider()]),
            "requestors": lambda path: with_requestors(
                path, starmap(self._requestor, self._settings.requestors.items()), instance
            ),
        }
        files = {}
        for name, document in documents.items():
            path = conf / REGISTRATIONS[name]
            try:
                files[path] = _registration(path, document(path))
            except ConfigError as error:
                self._problems += error.problems
        return files

    def _check(self, files: Mapping[str, Rendered], conf: Path) -> None:
        """Read the instance's files as the loop will; raises ConfigError, which names them as files in ``conf``."""
        with TemporaryDirectory() as staged:
            for name, rendered in files.items():
                path = Path(staged, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(rendered.content)
            problems = self._problems_in(Path(staged))
        if problems:
            raise ConfigError(Problem(*(part.replace(staged, str(conf)) for part in one)) for one in problems)

    def _problems_in(self, directory: Path) -> Sequence[Problem]:
        environment = {"HF_PROVIDER_NAME": self._settings.instance}
        try:
            if self._has_own_settings():
                loader.load(directory / "provisioner.yaml", environment)
            return templates.load(directory, environment).problems
        except TemplatesError as error:
            return [Problem(error.path, "", error.reason)]
        except ConfigError as error:
            return error.problems

    def plugin(self) -> JsonObject:
        """Our entry in hostProviderPlugins.json."""
        name = self._settings.plugin
        scripts = self._settings.scripts or f"${{HF_TOP}}/${{HF_VERSION}}/providerplugins/{name}/scripts/"
        return {"name": name, "enabled": 1, "scriptPath": scripts}

    def provider(self) -> JsonObject:
        """Our entry in hostProviders.json."""
        name = self._settings.instance
        places = {
            "confPath": f"${{HF_CONFDIR}}/providers/{name}/",
            "workPath": f"${{HF_WORKDIR}}/providers/{name}/",
            "logPath": "${HF_LOGDIR}/",
        }
        return {"name": name, "enabled": 1, "plugin": self._settings.plugin, **places}

    def _requestor(self, name: str, requestor: Requestor) -> Asking:
        """A requestor in hostRequestors.json that may ask our provider."""
        enabled = None if requestor.enabled is None else int(requestor.enabled)
        named = {"enabled": enabled, "providers": requestor.providers, "requestMode": requestor.mode}
        given = {key: value for key, value in named.items() if value is not None}
        own = {"providers": [self._settings.instance], "requestMode": "POLL"}
        symphony = {
            "plugin": "symA",
            "confPath": f"${{HF_CONFDIR}}/requestors/{name}/",
            "workPath": f"${{HF_WORKDIR}}/requestors/{name}/",
            "logPath": "${HF_LOGDIR}/",
        }
        parameters = {
            "hostSelectionPolicy": "rank",
            "typicalHostRetentionTimeMinutes": 60,
            "fulfillmentType": "partial",
        }
        new = {"name": name, "enabled": 1, **symphony, **own, "resourceRequestParameters": parameters, **given}
        if requestor.mode not in (None, "POLL"):
            new = {"name": name, "enabled": 1, **own, **given}
        return Asking(new, given)

    # --- merging ------------------------------------------------------------------------------------------------------

    def _take(self, source: Path) -> None:
        """Add what another instance's directory holds."""
        file = source / "provisioner.yaml"
        settings = loader.load(file, {})
        provider = templates.load(source, {})
        self._take_config(provider.config_path, source)
        self._take_sections(file, provider, settings.name_prefix)
        for entry in _entries(provider.templates_path):
            self._take_new(self._templates, "templates", entry["templateId"], Given(entry, provider.templates_path))
        for name, pool in settings.pools.items():
            self._take_new(self._pools, "pools", name, Given(_body(pool, source), str(source)))
        own = {Path(provider.config_path), Path(provider.templates_path), file}
        for copied in sorted(source.rglob("*")):
            if copied.is_file() and copied not in own:
                self._take_file(str(copied.relative_to(source)), copied)

    def _take_config(self, path: str, source: Path) -> None:
        values = read_json(path) if os.path.exists(path) else {}
        for key, value in (values if isinstance(values, dict) else {}).items():
            if key != "HF_TEMPLATES_FILENAME":
                copied = _of_copy(value, source) if key in FILE_KEYS else value
                self._take_same(self._config, "config", key, Given(copied, path))

    def _take_sections(self, file: Path, provider: templates.Provider, name_prefix: str) -> None:
        """The other sections of a provisioner.yaml. The name prefix counts as one, also where HF's file gives it."""
        sections = {name: Given(value, str(file)) for name, value in read_mapping(file)[0].items() if name != "pools"}
        if provider.config.gcp_instance_prefix:
            sections.setdefault("name_prefix", Given(name_prefix, provider.config_path))
        if self._settings.config.get("GCP_INSTANCE_PREFIX"):
            sections.pop("name_prefix", None)
        for name, section in sections.items():
            self._take_same(self._sections, "provisioner", name, section)

    def _take_same(self, taken: dict[str, Given], where: str, name: str, given: Given) -> None:
        """Take what the settings file does not give; others that give it have to agree."""
        first = taken.setdefault(name, given)
        if first.file != str(self._file) and first.value != given.value:
            values = f"{quoted(first.value)} in {first.file} and {quoted(given.value)} in {given.file}"
            self._problems.append(Problem(str(self._file), where, f"{name} is {values}: give it here"))

    def _take_new(self, taken: dict[str, Given], where: str, name: str, given: Given) -> None:
        """Take what the settings file does not give; no other may give it too."""
        first = taken.setdefault(name, given)
        if first.file not in (str(self._file), given.file):
            text = f"{name!r} is in {first.file} and in {given.file}: rename one"
            self._problems.append(Problem(str(self._file), where, text))

    def _take_files(self, base: Path, name: str) -> None:
        """Add a file, or all files of a directory, that the settings file names."""
        source = base / name
        if os.path.isabs(name) or ".." in Path(name).parts:
            self._problems.append(
                Problem(str(self._file), "files", f"{name!r} is not beside the settings file; move it")
            )
        elif source.is_dir():
            for file in sorted(path for path in source.rglob("*") if path.is_file()):
                self._take_file(str(file.relative_to(base)), file)
        elif source.exists():
            self._take_file(str(Path(name)), source)
        else:
            self._problems.append(
                Problem(str(self._file), "files", f"{source}: no such file; write it or leave it out")
            )

    def _take_file(self, path: str, file: Path) -> None:
        if self._copies.setdefault(path, file).read_bytes() != file.read_bytes():
            text = f"{file} and {self._copies[path]} differ: rename one"
            self._problems.append(Problem(str(self._file), "merge", text))


def render(file: Path, conf: Path) -> dict[Path, Rendered]:
    """Every file that ``file`` asks for below ``conf``, by its path. Raises ConfigError, TemplatesError and OSError."""
    return Rendering(_settings(file), file).files(conf)


def disabled_messages(file: Path, files: Mapping[Path, Rendered]) -> Iterator[str]:
    """Yield a sentence for each requestor of the instance of ``file`` that is disabled in ``files``."""
    settings = _settings(file)
    on_purpose = {name for name, requestor in settings.requestors.items() if requestor.enabled is False}
    for path in (path for path in files if path.name == REGISTRATIONS["requestors"].name):
        for name in disabled_requestors(json.loads(files[path].content), settings.instance):
            said = f"Requestor {name} is disabled in {path}: HostFactory asks {settings.instance} for no machine by it."
            advice = f" To enable it, give it `enabled: true` below `requestors` in {file}, and keep the others there."
            yield said if name in on_purpose else said + advice


def unregistered(file: Path, conf: Path) -> dict[Path, Rendered]:
    """The registration files below ``conf`` that are there, without the instance of ``file``.

    The plug-in stays while another provider uses it. Raises ConfigError and OSError.
    """
    settings = _settings(file)
    plugins, providers, requestors = (conf / path for path in REGISTRATIONS.values())
    left = without_entries(providers, "providers", settings.instance)
    documents = {providers: left, requestors: without_requestor(requestors, settings.instance)}
    if all(entry.get("plugin") != settings.plugin for entry in left["providers"]):
        documents[plugins] = without_entries(plugins, "providerplugins", settings.plugin)
    return {path: _registration(path, document) for path, document in documents.items() if path.exists()}


def _settings(file: Path) -> HostFactorySettings:
    """What the settings file says. Raises ConfigError."""
    document, problems = read_mapping(file)
    if not document and problems:
        raise ConfigError(problems)
    settings, wrong = validate(HostFactorySettings, document, str(file), "")
    if settings is None or problems or wrong:
        raise ConfigError([*problems, *wrong])
    return settings


def _own_problems(settings: HostFactorySettings, file: str) -> Iterator[Problem]:
    """The problems that the settings file has by itself."""
    for requestor, given in settings.requestors.items():
        if given.providers is not None and settings.instance not in given.providers:
            words = expected(f"a list that names {settings.instance}", given.providers)
            yield Problem(file, join("requestors", requestor, "providers"), words)
    if "pools" in settings.provisioner:
        yield Problem(file, "provisioner.pools", "pools stand beside provisioner in this file, not in it; move them")
    first: dict[object, int] = {}
    for index, entry in enumerate(settings.templates):
        name = entry.get("templateId")
        if isinstance(name, str) and first.setdefault(name, index) != index:
            text = f"{name!r} is that of templates.{first[name]} too; rename one"
            yield Problem(file, join("templates", index, "templateId"), text)


def _values(given: Mapping[str, Given]) -> dict[str, Any]:
    return {name: one.value for name, one in given.items()}


def _registration(path: Path, document: JsonObject) -> Rendered:
    return Rendered(registration_text(path, document).encode())


def _json(document: object) -> Rendered:
    return Rendered((json.dumps(document, indent=2) + "\n").encode())


def _entries(path: str) -> Iterator[dict[str, Any]]:
    document = read_json(path)
    entries = document.get("templates") if isinstance(document, dict) else document
    if isinstance(entries, list):
        yield from (entry for entry in entries if isinstance(entry, dict))


def _body(pool: Pool, source: Path) -> dict[str, Any]:
    """A pool as provisioner.yaml has it, its files relative to the directory."""
    body = {"kind": pool.kind, **pool.model_dump(mode="json", exclude_defaults=True, exclude={"name"})}
    return {key: _of_copy(value, source) for key, value in body.items()}


def _of_copy(value: object, source: Path) -> object:
    """The path of a file below ``source``, as that of its copy in the new instance; any other value as it is."""
    if isinstance(value, str) and (os.path.isabs(value) or value.startswith(f"{source}{os.sep}")):
        for path, directory in ((Path(value).absolute(), source.absolute()), (Path(value).resolve(), source.resolve())):
            if path.is_relative_to(directory):
                return str(path.relative_to(directory))
    return value
