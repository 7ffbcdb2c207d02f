"""Rendering of all files that HostFactory needs for a provider instance, from one settings file.

All files are rendered and checked before the first file is put in place. Registration files keep the entries of other
providers. The module reads and writes files. It uses neither network, clock nor log.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import yaml

from provisioner.hostfactory import templates
from provisioner.hostfactory.provider_config import TemplatesError, load_config, read_json
from provisioner.schema.setting_types import Pool
from provisioner.schema.validation import ConfigError, Problem, quote, read_mapping
from provisioner.settings import loader
from provisioner.tools.file_placement import Rendered
from provisioner.tools.provider_registration import (
    JsonObject,
    disabled_requestors,
    plugin_entry,
    provider_entry,
    registration_text,
    with_entries,
    with_requestors,
    without_entries,
    without_requestor,
)
from provisioner.tools.settings_file import HostFactorySettings, own_problems, read_settings

REGISTRATIONS = {
    "providerplugins": Path("providerplugins", "hostProviderPlugins.json"),
    "providers": Path("providers", "hostProviders.json"),
    "requestors": Path("requestors", "hostRequestors.json"),
}
"""Paths of HF's registration files below its directory ``conf``, by the key that holds the entries of the file."""

FILE_KEYS = ("GKE_KUBECONFIG", "GCP_CREDENTIALS_FILE", "STATE_KUBECONFIG")
"""Keys of the provider config whose values name a file."""


class Given(NamedTuple):
    """A setting's value, and the file that contains the value."""

    value: Any
    file: str


class Rendering:
    """The files to write, and all problems that were found."""

    def __init__(self, settings: HostFactorySettings, file: Path) -> None:
        self._settings = settings
        self._file = str(file)
        self._problems = list(own_problems(settings, self._file))
        written = {
            "config": settings.config,
            "provisioner": settings.provisioner,
            "templates": {str(entry.get("templateId")): entry for entry in settings.templates},
            "pools": settings.pools,
        }
        self._parts = {
            part: {name: Given(value, self._file) for name, value in values.items()} for part, values in written.items()
        }
        self._copies: dict[str, Path] = {}
        for name in settings.files:
            self._copy_named(file.parent, name)
        for source in settings.merge:
            self._merge(file.parent / source)

    def files(self, conf: Path) -> dict[Path, Rendered]:
        """Return all files below ``conf``, which is HostFactory's configuration directory. Registration files come
        last, so that all other files exist when HostFactory reads a registration file. Raises ConfigError with all
        problems."""
        registrations = self._registrations(conf)
        if self._problems:
            raise ConfigError(self._problems)
        own, directory = self._instance_files(), conf / "providers" / self._settings.instance
        self._check(own, directory)
        return {**{directory / name: rendered for name, rendered in own.items()}, **registrations}

    def _instance_files(self) -> dict[str, Rendered]:
        """Return the files of the provider instance, by their path in the instance's directory."""
        name = self._settings.instance
        parts = [{name: given.value for name, given in part.items()} for part in self._parts.values()]
        config, sections, entries, pools = parts
        files = {path: Rendered(file.read_bytes(), file.stat().st_mode & 0o777) for path, file in self._copies.items()}
        files[f"{name}prov_config.json"] = _json(config)
        files[f"{name}prov_templates.json"] = _json({"templates": list(entries.values())})
        if sections or pools:
            text = yaml.safe_dump(sections | ({"pools": pools} if pools else {}), sort_keys=False)
            text = f"# Made by provisioner render-hf: change its settings file.\n{text}"
            files["provisioner.yaml"] = Rendered(text.encode())
        return files

    def _registrations(self, conf: Path) -> dict[Path, Rendered]:
        """Return HostFactory's registration files with our entries added. The entries of other providers stay."""
        settings = self._settings
        documents: dict[str, Callable[[Path], JsonObject]] = {
            "providerplugins": lambda path: with_entries(path, "providerplugins", [plugin_entry(settings)]),
            "providers": lambda path: with_entries(path, "providers", [provider_entry(settings)]),
            "requestors": lambda path: with_requestors(path, settings),
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
        """Write the instance's files into a temporary directory, and read them by the code that the loop uses. Raises
        ConfigError with the problems that were found. Its text shows each file's final path below ``conf``."""
        with TemporaryDirectory() as staged:
            for name, rendered in files.items():
                path = Path(staged, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(rendered.content)
            problems = self._problems_in(Path(staged), has_settings="provisioner.yaml" in files)
        if problems:
            raise ConfigError(Problem(*(part.replace(staged, str(conf)) for part in one)) for one in problems)

    def _problems_in(self, directory: Path, *, has_settings: bool) -> Sequence[Problem]:
        environment = {"HF_PROVIDER_NAME": self._settings.instance}
        try:
            if has_settings:
                loader.load(directory / "provisioner.yaml", environment)
            return templates.load(directory, environment).problems
        except TemplatesError as error:
            return [Problem(error.path, "", error.reason)]
        except ConfigError as error:
            return error.problems

    # --- merging ------------------------------------------------------------------------------------------------------

    def _merge(self, source: Path) -> None:
        """Add the files and settings of another instance. Its directory is ``source``."""
        file = source / "provisioner.yaml"
        settings = loader.load(file, {})
        provider = templates.load(source, {})
        for key, value in load_config(provider.config_path).document.items():
            if key != "HF_TEMPLATES_FILENAME":
                copied = _copied_path(value, source) if key in FILE_KEYS else value
                self._add("config", key, copied, provider.config_path)
        sections = {name: Given(value, str(file)) for name, value in read_mapping(file)[0].items() if name != "pools"}
        # the name prefix counts as a setting of provisioner.yaml, even if HF's provider config gives it
        if provider.config.gcp_instance_prefix:
            sections.setdefault("name_prefix", Given(settings.name_prefix, provider.config_path))
        if self._settings.config.get("GCP_INSTANCE_PREFIX"):
            sections.pop("name_prefix", None)
        for name, given in sections.items():
            self._add("provisioner", name, *given)
        document: Any = read_json(provider.templates_path)
        for entry in document["templates"] if isinstance(document, dict) else document:
            self._add("templates", entry["templateId"], entry, provider.templates_path)
        for name, pool in settings.pools.items():
            self._add("pools", name, _body(pool, source), str(source))
        own = {Path(provider.config_path), Path(provider.templates_path), file}
        for copied in _files_below(source):
            if copied not in own:
                self._copy(str(copied.relative_to(source)), copied)

    def _add(self, part: str, name: str, value: object, file: str) -> None:
        """Add a value from ``file``, unless the settings file already has a value of this name.

        A template or pool may be in only one merged file. Any other value may be in several files if these values are
        equal.
        """
        first = self._parts[part].setdefault(name, Given(value, file))
        if first.file in (self._file, file):
            return
        if part in ("templates", "pools"):
            self._complain(part, f"{name!r} is in {first.file} and in {file}; rename one")
        elif first.value != value:
            values = f"{quote(first.value)} in {first.file} and {quote(value)} in {file}"
            self._complain(part, f"{name} is {values}; set it here")

    def _copy_named(self, base: Path, name: str) -> None:
        """Copy a file that the settings file names. If it is a directory, copy all files below it."""
        source = base / name
        if os.path.isabs(name) or ".." in Path(name).parts:
            self._complain("files", f"{name!r} is not beside the settings file; move it")
        elif not source.exists():
            self._complain("files", f"{source}: no such file; write it or leave it out")
        else:
            for file in _files_below(source) if source.is_dir() else [source]:
                self._copy(str(file.relative_to(base)), file)

    def _copy(self, path: str, file: Path) -> None:
        if self._copies.setdefault(path, file).read_bytes() != file.read_bytes():
            self._complain("merge", f"{file} and {self._copies[path]} differ; rename one")

    def _complain(self, where: str, text: str) -> None:
        self._problems.append(Problem(self._file, where, text))


def render(file: Path, conf: Path) -> dict[Path, Rendered]:
    """Return all files below ``conf`` that the settings file ``file`` describes. Raises ConfigError, TemplatesError and
    OSError."""
    return Rendering(read_settings(file), file).files(conf)


def disabled_messages(file: Path, files: Mapping[Path, Rendered]) -> Iterator[str]:
    """Yield a sentence for each requestor that may use our instance but is disabled. ``file``: the settings file of the
    instance. ``files``: the rendered files."""
    settings = read_settings(file)
    disabled_by_settings = {name for name, requestor in settings.requestors.items() if requestor.enabled is False}
    for path in (path for path in files if path.name == REGISTRATIONS["requestors"].name):
        for name in disabled_requestors(json.loads(files[path].content), settings.instance):
            message = (
                f"Requestor {name} is disabled in {path}: HostFactory requests no machine of {settings.instance} by it."
            )
            advice = f" To enable it, give it `enabled: true` below `requestors` in {file}, and keep the others there."
            yield message if name in disabled_by_settings else message + advice


def unregistered(file: Path, conf: Path) -> dict[Path, Rendered]:
    """Return the registration files below ``conf`` without the instance that the settings file ``file`` names.

    The plug-in's entry stays if another provider uses the plug-in. Raises ConfigError and OSError.
    """
    settings = read_settings(file)
    plugins, providers, requestors = (conf / path for path in REGISTRATIONS.values())
    left = without_entries(providers, "providers", settings.instance)
    documents = {providers: left, requestors: without_requestor(requestors, settings.instance)}
    if all(entry.get("plugin") != settings.plugin for entry in left["providers"]):
        documents[plugins] = without_entries(plugins, "providerplugins", settings.plugin)
    return {path: _registration(path, document) for path, document in documents.items() if path.exists()}


def _registration(path: Path, document: JsonObject) -> Rendered:
    return Rendered(registration_text(path, document).encode())


def _json(document: object) -> Rendered:
    return Rendered((json.dumps(document, indent=2) + "\n").encode())


def _files_below(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _body(pool: Pool, source: Path) -> dict[str, Any]:
    """Return the settings of a pool as provisioner.yaml shall contain them. Files below ``source`` are copied, so their
    paths become relative."""
    body = {"kind": pool.kind, **pool.model_dump(mode="json", exclude_defaults=True, exclude={"name"})}
    return {key: _copied_path(value, source) for key, value in body.items()}


def _copied_path(value: object, source: Path) -> object:
    """Return the value relative to ``source`` if it is the path of a file below ``source``, because such files are
    copied. Return any other value unchanged."""
    if isinstance(value, str) and (os.path.isabs(value) or value.startswith(f"{source}{os.sep}")):
        for path, directory in ((Path(value).absolute(), source.absolute()), (Path(value).resolve(), source.resolve())):
            if path.is_relative_to(directory):
                return str(path.relative_to(directory))
    return value
