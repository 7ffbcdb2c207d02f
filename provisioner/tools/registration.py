"""HostFactory's registration files: our entries in them, and all that others have there as it is.

Reads files; no network, no clock, no logger.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from provisioner.files.yaml_text import join
from provisioner.hostfactory import templates
from provisioner.schema.problems import ConfigError, Problem

JsonObject = Mapping[str, Any]
VERSION = 2
"""Of the registration files, since Symphony 7.3 (docs/hostfactory.md: registration files)."""


def with_entries(path: Path, key: str, entries: Iterable[JsonObject]) -> JsonObject:
    """The document for ``path`` with our entries: each replaces one of the same name, or follows those of others.

    Raises ConfigError when the file is there and has another shape.
    """
    document = _read(path, key)
    left = {entry["name"]: entry for entry in entries}
    kept = [left.pop(entry["name"], entry) for entry in document[key]]
    return {**document, key: [*kept, *left.values()]}


def with_requestors(path: Path, entries: Iterable[JsonObject], instance: str) -> JsonObject:
    """The document for hostRequestors.json: ``instance`` is added to what a requestor of the same name has.

    Raises ConfigError as ``with_entries``, and when a requestor that others use has another mode than ours: it is
    theirs too.
    """
    ours = {entry["name"]: entry for entry in entries}
    present = {entry["name"]: entry for entry in _read(path, "requestors")["requestors"] if entry["name"] in ours}
    problems = [
        problem for name, entry in present.items() for problem in _other_mode(path, entry, ours[name], instance)
    ]
    if problems:
        raise ConfigError(problems)
    joined = {name: _joined(entry, ours[name], instance) for name, entry in present.items()}
    return with_entries(path, "requestors", {**ours, **joined}.values())


def without_entries(path: Path, key: str, name: str) -> JsonObject:
    """The document for ``path`` without the entry of that name. Raises ConfigError as ``with_entries``."""
    document = _read(path, key)
    return {**document, key: [entry for entry in document[key] if entry["name"] != name]}


def without_requestor(path: Path, instance: str) -> JsonObject:
    """The document for hostRequestors.json in which nobody asks ``instance``; raises ConfigError as ``with_entries``.

    A requestor that has no other provider is disabled, and kept: it may have been there before us.
    """
    document = _read(path, "requestors")
    return {**document, "requestors": [_parted(entry, instance) for entry in document["requestors"]]}


def _parted(entry: JsonObject, instance: str) -> JsonObject:
    if instance not in entry.get("providers", []):
        return entry
    others = _others(entry, instance)
    return {**entry, "providers": others} if others else {**entry, "enabled": 0, "providers": []}


def _others(entry: JsonObject, instance: str) -> list[object]:
    return [provider for provider in entry.get("providers", []) if provider != instance]


def _other_mode(path: Path, entry: JsonObject, own: JsonObject, instance: str) -> Iterator[Problem]:
    mode = entry.get("requestMode")
    if _others(entry, instance) and mode != own["requestMode"]:
        text = templates.expected(f"{own['requestMode']} of the settings file", mode)
        where = join("requestors", own["name"], "requestMode")
        yield Problem(str(path), where, f"{text}, which other providers use: give the settings file that mode")


def _joined(entry: JsonObject, own: JsonObject, instance: str) -> JsonObject:
    """A requestor that is there, with our provider in it; one that no other provider has takes our mode.

    One that asked nobody is enabled, as ``without_requestor`` has disabled it; else people have said what it is.
    """
    if not entry.get("providers"):
        entry = {**entry, "enabled": own["enabled"]}
    if not _others(entry, instance):
        return {**own, **entry, "providers": [instance], "requestMode": own["requestMode"]}
    providers = entry["providers"]
    return {**entry, "providers": providers if instance in providers else [*providers, instance]}


def _read(path: Path, key: str) -> JsonObject:
    """The document that is there; one without entries where there is no file. Raises ConfigError."""
    if not os.path.lexists(path):
        return {"version": VERSION, key: []}
    try:
        document = templates.read_json(str(path))
    except templates.TemplatesError as error:
        raise ConfigError([Problem(error.path, "", error.reason)]) from error
    problems = [Problem(str(path), where, text) for where, text in _misshapen(document, key)]
    if problems or not isinstance(document, dict):
        raise ConfigError(problems)
    return document


def _misshapen(document: object, key: str) -> Iterator[tuple[str, str]]:
    """Each part of a document that no registration file has in this shape, and the shape that it should have."""
    if not isinstance(document, dict):
        yield "", templates.expected("an object", document)
        return
    if document.get("version") != VERSION:
        yield "version", templates.expected(f"{VERSION}, that of Symphony 7.3 and later", document.get("version"))
    entries = document.get(key)
    if not isinstance(entries, list):
        yield key, templates.expected("a list", entries)
        return
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            yield f"{key}[{index}]", templates.expected("an object with a name", entry)
        elif not isinstance(entry.get("providers", []), list):
            yield f"{key}[{index}].providers", templates.expected("a list", entry["providers"])
