"""HostFactory's ``<inst>prov_templates.json`` and the provider config, as frozen values.

The file is read as tolerantly as the provider config. The scripts import this module in the calls that need templates.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from provisioner.files.config_error import Problem
from provisioner.hostfactory import MAX_NUMBER
from provisioner.hostfactory.provider_config import (
    TEMPLATE_ID,
    ConfigFile,
    Digests,
    ProviderConfig,
    TemplatesError,
    as_number,
    digest_of,
    format_expected,
    format_value,
    load_config,
    read_json,
)

UNLIMITED = -1
"""Value of ``maxNumber`` that means no limit."""

NUMERIC_ATTRIBUTES = frozenset({"ncpus", "ncores", "nram", "mem", "nthreads", "rank", "priority"})
"""Attributes that HF reads as numbers, even if they are written as text."""

COPIED_FIELDS = ("availableNumber", "requestedMachines")
"""Fields of a template that HF may have copied from an old answer. These fields are not part of the template's
definition."""

OWN_FIELDS = frozenset({"templateId", "maxNumber", "attributes", *COPIED_FIELDS})
"""Fields that getAvailableTemplates computes itself."""


def get_higher(one: int, other: int) -> int:
    """Return the larger of two values of maxNumber, where ``UNLIMITED`` is the largest."""
    return UNLIMITED if UNLIMITED in (one, other) else max(one, other)


class Template(NamedTuple):
    """A sort of machine that HF can request."""

    id: str
    max_number: int
    """Largest number of machines; 0 if HF must not request any; ``UNLIMITED`` if there is no limit."""
    attributes: Mapping[str, tuple[str, str]]
    """Attributes in HF's form: (type, value). The value is always a text."""
    pools: tuple[str, ...]
    """Names of the pools that can make the machine, in order. If the template names no pool, Google's fields describe
    an implicit pool."""
    pod_spec_yaml: str
    gcp_zone: str
    gcp_region: str
    gcp_instance_group: str
    fields: Mapping[str, object]
    """All fields in the file except ``OWN_FIELDS``, including Google's fields and ``pools``."""

    def document(self) -> dict[str, object]:
        """Return the template as getAvailableTemplates prints it."""
        attributes = {name: list(value) for name, value in self.attributes.items()}
        return {"templateId": self.id, "maxNumber": self.max_number, "attributes": attributes, **self.fields}

    def fits(self, name: str | None, attributes: Mapping[str, str]) -> bool:
        """Return True if the template has the id ``name`` (None: any id) and the given values of ``attributes``."""
        same = all(key in self.attributes and self.attributes[key][1] == value for key, value in attributes.items())
        return same and name in (None, self.id)


class Provider(NamedTuple):
    """The contents of a provider instance's two files: the provider config and the templates."""

    name: str
    config_path: str
    templates_path: str
    config: ProviderConfig
    templates: tuple[Template, ...]
    """Valid templates, in the file's order."""
    problems: tuple[Problem, ...]
    digests: Digests
    """Digests by which loop and scripts find out if they have read the same files."""

    def template(self, name: str) -> Template | None:
        """Return the template with the id ``name``; None if there is none."""
        return next((template for template in self.templates if template.id == name), None)


def load(
    directory: str | os.PathLike[str],
    environment: Mapping[str, str],
    read_config: Callable[[str], ConfigFile] = load_config,
) -> Provider:
    """Read the two files of a provider instance: the provider config and the templates.

    HF_PROVIDER_NAME (LSF: PROVIDER_NAME) names the instance. If this variable is not set, ``directory`` must contain
    exactly one instance, and this instance is read.

    Raises TemplatesError if a file is unreadable, if no template is valid, or if the instance is unknown.
    """
    name = environment.get("HF_PROVIDER_NAME") or environment.get("PROVIDER_NAME") or _only_name(os.fspath(directory))
    config_path = os.path.join(directory, f"{name}prov_config.json")
    config, config_problems, written = read_config(config_path)
    path = os.path.join(directory, config.templates_filename or f"{name}prov_templates.json")
    document = read_json(path)
    entries = document.get("templates") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise TemplatesError(path, f"templates: {format_expected('a list', entries)}")
    if not entries:
        raise TemplatesError(path, "templates: the list is empty")
    templates, problems = _templates(path, entries)
    if not templates:
        raise TemplatesError(path, f"no valid template; {problems[0].where}: {problems[0].text}")
    digests = Digests(digest_of(written), digest_of_templates(entries))
    return Provider(name, config_path, path, config, tuple(templates), (*config_problems, *problems), digests)


def digest_of_templates(entries: list[object]) -> str:
    """Return the digest of a list of templates. Fields that HF may have copied from an old answer do not change the
    digest."""
    return digest_of([_without(COPIED_FIELDS, entry) if isinstance(entry, dict) else entry for entry in entries])


def _without(names: Collection[str], entry: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in entry.items() if name not in names}


def _only_name(directory: str) -> str:
    """Return the name of the only instance in the directory. Raises TemplatesError if there is no instance or more than
    one."""
    end = "prov_templates.json"
    try:
        names = sorted(entry[: -len(end)] for entry in os.listdir(directory) if entry.endswith(end))
    except OSError as error:
        raise TemplatesError(directory, error.strerror or str(error)) from error
    if len(names) != 1:
        there = ", ".join(name + end for name in names) or "none"
        raise TemplatesError(directory, f"expected one <instance>{end}, or HF_PROVIDER_NAME to name one; found {there}")
    return names[0]


class Invalid(Exception):
    """Raised for an invalid template. The arguments are the path of the field in the template, and the reason."""


def _templates(path: str, entries: list[object]) -> tuple[list[Template], list[Problem]]:
    """Return the valid templates, and the problems of the invalid templates. If an id occurs twice, the first template
    counts."""
    templates: dict[str, Template] = {}
    problems = []
    for index, entry in enumerate(entries):
        try:
            template = _template(entry)
            if template.id in templates:
                raise Invalid(".templateId", f"{format_value(template.id)} occurs twice; the first template counts")
            templates[template.id] = template
        except Invalid as error:
            place, reason = error.args
            problems.append(Problem(path, f"templates[{index}]{place}", reason))
    return list(templates.values()), problems


def _template(entry: object) -> Template:
    if not isinstance(entry, dict):
        raise Invalid("", format_expected("an object", entry))
    name = entry.get("templateId")
    if not isinstance(name, str) or not re.fullmatch(TEMPLATE_ID, name):
        raise Invalid(".templateId", format_expected("1 to 64 letters, digits, '_' or '-'", name))
    return Template(
        name,
        _max_number(entry.get("maxNumber")),
        _attributes(entry.get("attributes")),
        _pools(entry.get("pools")),
        _text_field(entry, "podSpecYaml"),
        _text_field(entry, "gcp_zone"),
        _text_field(entry, "gcp_region"),
        _text_field(entry, "gcp_instance_group"),
        fields=_without(OWN_FIELDS, entry),
    )


def _max_number(value: object) -> int:
    written = str(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else ""
    if not re.fullmatch(r"-1|[0-9]{1,9}", written) or int(written) > MAX_NUMBER:
        raise Invalid(".maxNumber", format_expected(f"a whole number from {UNLIMITED} to {MAX_NUMBER}", value))
    return int(written)


def _pools(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or {*map(type, names)} != {str} or "" in names:
        raise Invalid(".pools", format_expected("a list of pool names", value))
    return tuple(dict.fromkeys(names))


def _text_field(fields: Mapping[str, object], key: str) -> str:
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        raise Invalid(f".{key}", format_expected("a text", value))
    return value or ""


def _attributes(value: object) -> dict[str, tuple[str, str]]:
    """Return all attributes in HF's form. The size of a machine's memory may be given under LSF's name ``mem``. The
    number of cores is 1 by default."""
    if not isinstance(value, dict):
        raise Invalid(".attributes", format_expected("an object", value))
    attributes = {name: tagged(name, given) for name, given in value.items() if given is not None}
    if "mem" in attributes:
        attributes.setdefault("nram", attributes["mem"])
    # Symphony counts ncores x ncpus slots, and leaves out a host that lacks one of the two.
    attributes.setdefault("ncores", ("Numeric", "1"))
    for name in ("type", "ncpus", "nram"):
        if name not in attributes:
            raise Invalid(f".attributes.{name}", "is missing")
    return attributes


def tagged(name: str, given: object) -> tuple[str, str]:
    """Return an attribute as (type, value), from ``["Numeric", "4"]``, ``["Numeric", 4]``, ``["4"]``, ``"4"`` or ``4``.

    Raises Invalid.
    """
    parts = given if isinstance(given, list) else [given]
    value = parts[-1] if parts else None
    is_tagged = len(parts) == 2
    if len(parts) > 2 or not isinstance(value, (str, int, float)) or (is_tagged and not isinstance(parts[0], str)):
        raise Invalid(f".attributes.{name}", format_expected('a value or ["type", "value"]', given))
    if name in NUMERIC_ATTRIBUTES:
        return "Numeric", _positive(name, value, given)
    if name == "type":
        return "String", _written(value)
    if is_tagged:
        return str(parts[0]), _written(value)
    if isinstance(value, bool):
        return "Boolean", _written(value)
    return ("String" if isinstance(value, str) else "Numeric"), _written(value)


def _positive(name: str, value: str | float, given: object) -> str:
    number = as_number(value)
    if number is None or (number == 0 and name not in ("rank", "priority")):
        raise Invalid(f".attributes.{name}", format_expected("a number above 0", given))
    return str(int(number)) if number == int(number) else str(number)


def _written(value: str | float) -> str:
    """Return a value in HF's form: always as text, with 1 for true and 0 for false."""
    return str(int(value)) if isinstance(value, bool) else str(value)
