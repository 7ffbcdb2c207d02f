"""``provisioner render-hf``: every file that HostFactory needs for a provider instance, from one settings file.

The registration files are whole, with our one entry each: an installation that has such files takes the entry over by
hand. Reads and writes files; no network, no clock, no logger.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, StringConstraints

from provisioner import config, templates
from provisioner.problems import ConfigError, Expects, Problem, Section, quoted, read_mapping, validate
from provisioner.settings import AnyPool

HfName = Annotated[
    str,
    StringConstraints(pattern=rf"^{templates.TEMPLATE_ID}$"),
    Expects("1 to 64 letters, digits, '_' or '-'"),
]
Mode = Annotated[Literal["POLL", "REST", "REST_MANUAL"], Expects("POLL, REST or REST_MANUAL")]
VERSION = 2
"""Of the registration files, since Symphony 7.3 (interface §3.3)."""


class HostFactorySettings(Section):
    """The settings file of ``render-hf``."""

    instance: HfName
    """Name of the provider instance: HF_PROVIDER_NAME of its scripts. No default."""
    plugin: HfName = "provisioner"
    """Name of the provider plug-in; default provisioner."""
    scripts: Annotated[str | None, Expects("a path")] = None
    """Directory of the scripts, as HostFactory finds it; default the plug-in's own below HF_TOP."""
    requestors: Annotated[Mapping[HfName, Mode], Field(strict=False), Expects("requestors with their modes")] = {
        "symAinst": "POLL",
        "admin": "REST_MANUAL",
    }
    """Requestors that may ask this instance, each with its mode; default symAinst: POLL, admin: REST_MANUAL."""
    config: Annotated[Mapping[str, Any], Expects("a mapping of keys")] = Field(default_factory=dict)
    """Keys of the provider config, as they stand in the file; before those of ``merge``."""
    templates: Annotated[list[dict[str, Any]], Expects("a list of templates")] = Field(default_factory=list)
    """HF's templates, as they stand in the file; before those of ``merge`` with the same templateId."""
    merge: Annotated[list[str], Expects("a list of directories")] = Field(default_factory=list)
    """Configuration directories of provider instances that become this one, relative to the settings file."""


class Rendering:
    """The files to write, gathered with everything that is wrong."""

    def __init__(self, settings: HostFactorySettings, file: Path) -> None:
        self._settings = settings
        self._file = file
        self._problems: list[Problem] = []
        self._config = dict(settings.config)
        self._templates = {str(entry.get("templateId")): entry for entry in settings.templates}
        self._pools: dict[str, dict[str, Any]] = {}
        self._copies: dict[str, Path] = {}
        for source in settings.merge:
            self._take(file.parent / source)
        if self._problems:
            raise ConfigError(self._problems)

    def write(self, out: Path) -> list[Path]:
        """Write everything below ``out``, which is laid out as HF_TOP; raises ConfigError when it cannot be used."""
        name = self._settings.instance
        conf = Path("conf") / "providers" / name
        documents: dict[Path, object] = {
            Path("conf", "providerplugins", "hostProviderPlugins.json"): self.plugins(),
            Path("conf", "providers", "hostProviders.json"): self.providers(),
            Path("conf", "requestors", "hostRequestors.json"): self.requestors(),
            conf / f"{name}prov_config.json": self._config,
            conf / f"{name}prov_templates.json": {"templates": list(self._templates.values())},
        }
        for path, document in documents.items():
            _put(out / path, json.dumps(document, indent=2) + "\n")
        for copied, source in self._copies.items():
            (out / conf / copied).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, out / conf / copied)
        written = [*documents, *(conf / copied for copied in self._copies)]
        if self._pools:
            text = yaml.safe_dump({"pools": self._pools}, sort_keys=False)
            _put(out / conf / "provisioner.yaml", text)
            written.append(conf / "provisioner.yaml")
            config.load(out / conf / "provisioner.yaml", {"HF_PROVIDER_NAME": name})
        self._check_templates(out / conf)
        return [out / path for path in written]

    def plugins(self) -> dict[str, object]:
        """hostProviderPlugins.json."""
        name = self._settings.plugin
        scripts = self._settings.scripts or f"${{HF_TOP}}/${{HF_VERSION}}/providerplugins/{name}/scripts/"
        return {"version": VERSION, "providerplugins": [{"name": name, "enabled": 1, "scriptPath": scripts}]}

    def providers(self) -> dict[str, object]:
        """hostProviders.json."""
        name = self._settings.instance
        places = {
            "confPath": f"${{HF_CONFDIR}}/providers/{name}/",
            "workPath": f"${{HF_WORKDIR}}/providers/{name}/",
            "logPath": "${HF_LOGDIR}/",
        }
        entry = {"name": name, "enabled": 1, "plugin": self._settings.plugin, **places}
        return {"version": VERSION, "providers": [entry]}

    def requestors(self) -> dict[str, object]:
        """hostRequestors.json."""
        entries = [self._requestor(name, mode) for name, mode in self._settings.requestors.items()]
        return {"version": VERSION, "requestors": entries}

    def _requestor(self, name: str, mode: str) -> dict[str, object]:
        own = {"providers": [self._settings.instance], "requestMode": mode}
        if mode != "POLL":
            return {"name": name, "enabled": 1, **own}
        return {
            "name": name,
            "enabled": 1,
            "plugin": "symA",
            "confPath": f"${{HF_CONFDIR}}/requestors/{name}/",
            "workPath": f"${{HF_WORKDIR}}/requestors/{name}/",
            "logPath": "${HF_LOGDIR}/",
            **own,
            "resourceRequestParameters": {
                "hostSelectionPolicy": "rank",
                "typicalHostRetentionTimeMinutes": 60,
                "fulfillmentType": "partial",
            },
        }

    # --- merging ------------------------------------------------------------------------------------------------------

    def _take(self, source: Path) -> None:
        """Add what another instance's directory holds."""
        settings = config.load(source / "provisioner.yaml", {})
        provider = templates.load(source, {})
        self._take_config(provider.config_path)
        for entry in _entries(provider.templates_path):
            self._take_new(self._templates, str(entry.get("templateId")), entry, "templates", provider.templates_path)
        for name, pool in settings.pools.items():
            self._take_new(self._pools, name, _body(pool, source), "pools", str(source))
        own = {Path(provider.config_path), Path(provider.templates_path), source / "provisioner.yaml"}
        for file in sorted(source.rglob("*")):
            if file.is_file() and file not in own:
                self._take_file(str(file.relative_to(source)), file)

    def _take_config(self, path: str) -> None:
        values = templates.read_json(path) if os.path.exists(path) else {}
        for key, value in (values if isinstance(values, dict) else {}).items():
            if key == "HF_TEMPLATES_FILENAME" or key in self._settings.config:
                continue
            if self._config.setdefault(key, value) != value:
                text = f"{key} is {quoted(value)} in {path} and {quoted(self._config[key])} before: give it here"
                self._problems.append(Problem(str(self._file), "config", text))

    def _take_new(self, known: dict[str, Any], name: str, value: Any, where: str, source: str) -> None:
        given = {str(entry.get("templateId")) for entry in self._settings.templates} if where == "templates" else set()
        if name in known and name not in given:
            self._problems.append(Problem(str(self._file), where, f"{name!r} of {source} is there already"))
        known.setdefault(name, value)

    def _take_file(self, path: str, file: Path) -> None:
        if self._copies.setdefault(path, file).read_bytes() != file.read_bytes():
            text = f"{file} and {self._copies[path]} differ: rename one"
            self._problems.append(Problem(str(self._file), "merge", text))

    def _check_templates(self, directory: Path) -> None:
        provider = templates.load(directory, {"HF_PROVIDER_NAME": self._settings.instance})
        if provider.mistakes:
            raise ConfigError(Problem(mistake.file, mistake.where, mistake.text) for mistake in provider.mistakes)


def render(file: Path, out: Path) -> list[Path]:
    """Write what ``file`` asks for below ``out``; the paths written. Raises ConfigError, TemplatesError and OSError."""
    document, problems = read_mapping(file)
    settings, wrong = validate(HostFactorySettings, document, str(file), "")
    if settings is None or problems or wrong:
        raise ConfigError([*problems, *wrong])
    return Rendering(settings, file).write(out)


def _entries(path: str) -> Iterator[dict[str, Any]]:
    document = templates.read_json(path)
    entries = document.get("templates") if isinstance(document, dict) else document
    if isinstance(entries, list):
        yield from (entry for entry in entries if isinstance(entry, dict))


def _body(pool: AnyPool, source: Path) -> dict[str, Any]:
    """A pool as provisioner.yaml has it, its files relative to the directory."""
    body = {"kind": pool.kind, **pool.model_dump(mode="json", exclude_defaults=True, exclude={"name"})}
    own = f"{source}{os.sep}"
    return {key: value.removeprefix(own) if isinstance(value, str) else value for key, value in body.items()}


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
