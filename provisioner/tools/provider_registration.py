"""HostFactory's registration files with the entries of this provider. Entries of other providers do not change.

The module reads files. It uses neither network, clock nor log.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from provisioner.files.yaml_text import join
from provisioner.hostfactory.provider_config import TemplatesError, format_expected, read_json
from provisioner.schema.validation import ConfigError, Problem
from provisioner.tools.settings_file import HostFactorySettings, Requestor

JsonObject = Mapping[str, Any]
VERSION = 2
"""Version of the registration files since Symphony 7.3 (docs/hostfactory.md: registration files)."""


def with_entries(path: Path, key: str, entries: Iterable[JsonObject]) -> JsonObject:
    """Return the JSON object for ``path`` with these ``entries`` below ``key``.

    Each entry replaces the entry with the same name. An entry with a new name is appended. Raises ConfigError if the
    file exists and has another structure.
    """
    document = _read(path, key)
    left = {entry["name"]: entry for entry in entries}
    kept = [left.pop(entry["name"], entry) for entry in document[key]]
    return {**document, key: [*kept, *left.values()]}


def plugin_entry(settings: HostFactorySettings) -> JsonObject:
    """Return this provider's entry for hostProviderPlugins.json."""
    name = settings.plugin
    scripts = settings.scripts or f"${{HF_TOP}}/${{HF_VERSION}}/providerplugins/{name}/scripts/"
    return {"name": name, "enabled": 1, "scriptPath": scripts}


def provider_entry(settings: HostFactorySettings) -> JsonObject:
    """Return this provider's entry for hostProviders.json."""
    name = settings.instance
    return {"name": name, "enabled": 1, "plugin": settings.plugin, **_paths("providers", name)}


def with_requestors(path: Path, settings: HostFactorySettings) -> JsonObject:
    """Return the JSON object for hostRequestors.json. In it, the requestors of the settings file may use this provider
    instance.

    Raises ConfigError if the file has another structure. A requestor's mode applies to all its providers. Raises
    ConfigError if the settings file changes the mode of a requestor with other providers.
    """
    entries = {name: _new_requestor(name, settings) for name in settings.requestors}
    problems: list[Problem] = []
    for present in _read(path, "requestors")["requestors"]:
        if (name := present["name"]) in settings.requestors:
            joined = _merge_requestor(present, entries[name], settings)
            problems += _other_mode(path, present, joined, settings.instance)
            entries[name] = joined
    if problems:
        raise ConfigError(problems)
    return with_entries(path, "requestors", entries.values())


def disabled_requestors(document: JsonObject, instance: str) -> list[str]:
    """Return the names of the disabled requestors that use ``instance``. HostFactory makes no requests for a disabled
    requestor."""
    return [
        entry["name"]
        for entry in document["requestors"]
        if instance in entry.get("providers", []) and str(entry.get("enabled", 1)).lower() in ("0", "false")
    ]


def without_entries(path: Path, key: str, name: str) -> JsonObject:
    """Return the JSON object for ``path`` without the entry with this name. Raises ConfigError if the file has another
    structure."""
    document = _read(path, key)
    return {**document, key: [entry for entry in document[key] if entry["name"] != name]}


def without_requestor(path: Path, instance: str) -> JsonObject:
    """Return the JSON object for hostRequestors.json, in which no requestor uses ``instance``.

    A requestor that is left without providers is disabled. It is not removed, because it may be older than this
    provider's registration. Raises ConfigError if the file has another structure.
    """
    document = _read(path, "requestors")
    return {**document, "requestors": [_without_provider(entry, instance) for entry in document["requestors"]]}


def registration_text(path: Path, document: JsonObject) -> str:
    """Return the text of a registration file. Use the indentation and layout of the present file at ``path``."""
    before = path.read_text(encoding="utf-8-sig") if path.exists() else ""
    return _Style.from_text(before).written(document, 0) + "\n"


def _json_text(value: object) -> str:
    """Return the JSON of a value on one line. Only surrogates are escaped, because UTF-8 cannot encode them."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


class _Style(NamedTuple):
    """The layout of a JSON text. HostFactory's own files and files from an editor have different layouts."""

    indent: str
    colon: str
    is_inline: bool
    """True if a list of texts and numbers stands on one line."""
    is_hugging: bool
    """True if a list of objects begins with ``[{`` on one line, as in HostFactory's own files."""
    space: str
    """The text between a comma and the next value on the same line."""

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the layout of a JSON text. For an empty text, return the layout of Python's ``json`` with an
        indentation of two spaces."""
        bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)  # remove quoted texts, because they are not layout
        indent, colon = re.search(r'\n([ \t]+)""', bare), re.search(r'""([ \t]*:[ \t]*)\S', bare)
        return cls(
            indent[1] if indent else "  ",
            colon[1] if colon else ": ",
            re.search(r"\[[ \t]*[^\s\[\]{]", bare) is not None,
            re.search(r"\[[ \t]*[\[{]", bare) is not None,
            "" if re.search(r",[^\s]", bare) else " ",
        )

    def written(self, value: object, depth: int) -> str:
        """Return the JSON text of a value, with the indentation of ``depth`` levels."""
        if not isinstance(value, (dict, list)) or not value:
            return _json_text(value)
        parts = [self.written(part, depth + 1) for part in (value.values() if isinstance(value, dict) else value)]
        inner, end = "\n" + self.indent * (depth + 1), "\n" + self.indent * depth
        if isinstance(value, dict):
            pairs = [f"{_json_text(key)}{self.colon}{part}" for key, part in zip(value, parts, strict=True)]
            return f"{{{inner}{f',{inner}'.join(pairs)}{end}}}"
        objects = any(isinstance(part, (dict, list)) for part in value)
        if self.is_hugging if objects else self.is_inline:
            return f"[{f',{self.space}'.join(parts)}]"
        return f"[{inner}{f',{inner}'.join(parts)}{end}]"


def _without_provider(entry: JsonObject, instance: str) -> JsonObject:
    if instance not in entry.get("providers", []):
        return entry
    others = _others(entry, instance)
    return {**entry, "providers": others} if others else {**entry, "enabled": 0, "providers": []}


def _others(entry: JsonObject, instance: str) -> list[object]:
    return [provider for provider in entry.get("providers", []) if provider != instance]


def _other_mode(path: Path, entry: JsonObject, joined: JsonObject, instance: str) -> Iterator[Problem]:
    mode = entry.get("requestMode")
    if _others(joined, instance) and mode != joined["requestMode"]:
        text = format_expected(f"{joined['requestMode']} of the settings file", mode)
        where = join("requestors", joined["name"], "requestMode")
        yield Problem(str(path), where, f"{text}, which other providers use; give the settings file that mode")


def _paths(kind: str, name: str) -> JsonObject:
    """Return the directories of a provider or requestor. ``kind``: ``providers`` or ``requestors``."""
    below = f"{kind}/{name}/"
    return {"confPath": f"${{HF_CONFDIR}}/{below}", "workPath": f"${{HF_WORKDIR}}/{below}", "logPath": "${HF_LOGDIR}/"}


def _get_given_keys(requestor: Requestor) -> JsonObject:
    """Return those keys of a requestor for which the settings file has a value."""
    enabled = None if requestor.enabled is None else int(requestor.enabled)
    named = {"enabled": enabled, "providers": requestor.providers, "requestMode": requestor.mode}
    return {key: value for key, value in named.items() if value is not None}


def _new_requestor(name: str, settings: HostFactorySettings) -> JsonObject:
    """Return the entry for a requestor that hostRequestors.json does not have yet."""
    requestor = settings.requestors[name]
    symphony = {"plugin": "symA", **_paths("requestors", name)}
    parameters = {"hostSelectionPolicy": "rank", "typicalHostRetentionTimeMinutes": 60, "fulfillmentType": "partial"}
    own: JsonObject = {"providers": [settings.instance], "requestMode": "POLL"}
    if requestor.mode in (None, "POLL"):
        own = {**symphony, **own, "resourceRequestParameters": parameters}
    return {"name": name, "enabled": 1, **own, **_get_given_keys(requestor)}


def _merge_requestor(entry: JsonObject, new: JsonObject, settings: HostFactorySettings) -> JsonObject:
    """Return the entry of an existing requestor. Add this provider, and set each key that the settings file sets.

    A requestor without providers is enabled, because ``without_requestor`` may have disabled it. Every other requestor
    stays enabled or disabled.
    """
    if not entry.get("providers"):
        entry = {**entry, **new, **entry, "enabled": 1}  # the existing keys keep their order
    providers = entry.get("providers", [])
    joined = {**entry, "providers": providers if settings.instance in providers else [*providers, settings.instance]}
    given = _get_given_keys(settings.requestors[entry["name"]])
    return {**joined, "requestMode": joined.get("requestMode", new["requestMode"]), **given}


def _read(path: Path, key: str) -> JsonObject:
    """Return the JSON object in a file. If the file does not exist, return an object without entries. Raises
    ConfigError if the file has another structure."""
    if not os.path.lexists(path):
        return {"version": VERSION, key: []}
    try:
        document = read_json(str(path))
    except TemplatesError as error:
        raise ConfigError([Problem(error.path, "", error.reason)]) from error
    problems = [Problem(str(path), where, text) for where, text in _find_structure_problems(document, key)]
    if problems or not isinstance(document, dict):
        raise ConfigError(problems)
    return document


def _find_structure_problems(document: object, key: str) -> Iterator[tuple[str, str]]:
    """Yield path and message for each part of a JSON value that has a wrong structure."""
    if not isinstance(document, dict):
        yield "", format_expected("an object", document)
        return
    if document.get("version") != VERSION:
        yield "version", format_expected(f"{VERSION}, that of Symphony 7.3 and later", document.get("version"))
    entries = document.get(key)
    if not isinstance(entries, list):
        yield key, format_expected("a list", entries)
        return
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            yield f"{key}[{index}]", format_expected("an object with a name", entry)
        elif not isinstance(entry.get("providers", []), list):
            yield f"{key}[{index}].providers", format_expected("a list", entry["providers"])
