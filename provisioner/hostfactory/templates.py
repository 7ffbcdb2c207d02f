"""HostFactory's two JSON files, ``<inst>prov_config.json`` and ``<inst>prov_templates.json``, as frozen values.

Read liberally (sites write them by hand, HF rewrites them), and every mistake is told; no logger. The scripts import
this at every call: hence named tuples (dataclasses would cost 7 ms), no YAML, no pydantic.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from provisioner.files.problem import Problem
from provisioner.files.regular import read_regular
from provisioner.hostfactory import MAX_NUMBER
from provisioner.hostfactory.digest import OF_A_MOMENT, Digests, digest_of, digest_of_templates

UNLIMITED = -1
"""The ``maxNumber`` that sets no limit."""

TEMPLATE_ID = r"[0-9A-Za-z_-]{1,64}"
"""What HF allows as a templateId."""

NUMERIC_ATTRIBUTES = frozenset({"ncpus", "ncores", "nram", "mem", "nthreads", "rank", "priority"})
"""Attributes that HF takes as numbers, whichever way the file writes them."""

UNUSED_KEYS = frozenset(
    {
        "HF_DBDIR",
        "PUBSUB_TOPIC",
        "PUBSUB_SUBSCRIPTION",
        "PUBSUB_TIMEOUT",
        "PUBSUB_LOCKFILE",
        "PUBSUB_AUTOLAUNCH",
        "AUTO_RUN_TRIM_DB_CMD",
        "RETURNED_VM_TTL",
        "GKE_POLLING_INTERVAL",
        "GKE_REQUEST_TIMEOUT",
        "ACCEPT_PROPAGATED_LOG_SETTING",
    }
)
"""Keys of other connectors, mostly Google's, that have no use here."""

UNUSED_PREFIX = "GKE_CRD_"
"""Google's keys for its custom resources; of these only ``GKE_CRD_NAMESPACE`` has a use here."""

OWN_FIELDS = frozenset({"templateId", "maxNumber", "attributes", *OF_A_MOMENT})
"""What getAvailableTemplates says by itself."""

LARGEST = 16 * 1024 * 1024
"""Bytes of a file: ten times what HF's ten thousand templates would take."""

DEEPEST = 60
"""Levels of a document: far more than HF knows, far fewer than Python's stack holds."""

SHOWN_CHARACTERS = 60
"""Characters of a wrong value that are shown: enough to find it, too few to fill a line of a log."""


def higher(one: int, other: int) -> int:
    """The maxNumber that allows more."""
    return UNLIMITED if UNLIMITED in (one, other) else max(one, other)


class TemplatesError(Exception):
    """A file that cannot be used at all; the text is one line."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class ProviderConfig(NamedTuple):
    """``<inst>prov_config.json``. An empty text or None: the key is absent."""

    templates_filename: str = ""
    log_file: str = ""
    log_level: str = "INFO"
    log_max_megabytes: float = 10.0
    """Size at which the scripts' log is rotated."""
    log_max_rotate: int = 5
    """Rotated logs that are kept; 0: the log is never rotated."""
    gcp_project_id: str = ""
    gcp_credentials_file: str = ""
    gcp_instance_prefix: str = ""
    """In lower case; Google's users write it with a final ``-``."""
    gke_kubeconfig: str = ""
    gke_namespace: str = ""
    unused: tuple[str, ...] = ()
    """Known keys in the file that have no use here."""
    unknown: tuple[str, ...] = ()
    """Keys in the file that nobody knows."""


class Template(NamedTuple):
    """A kind of machine HF can ask for."""

    id: str
    max_number: int
    """Machines at most; 0: none may be requested; ``UNLIMITED``."""
    attributes: Mapping[str, tuple[str, str]]
    """As HF wants them: (type, value), the value always a text."""
    pools: tuple[str, ...]
    """Names of the pools that can make it, in order. Empty: Google's fields make an implicit pool."""
    pod_spec_yaml: str
    gcp_zone: str
    gcp_region: str
    gcp_instance_group: str
    fields: Mapping[str, object]
    """All that the file says beside ``OWN_FIELDS``, Google's fields and ``pools`` included."""

    def document(self) -> dict[str, object]:
        """The template as getAvailableTemplates prints it."""
        attributes = {name: list(value) for name, value in self.attributes.items()}
        return {"templateId": self.id, "maxNumber": self.max_number, "attributes": attributes, **self.fields}

    def fits(self, name: str | None, attributes: Mapping[str, str]) -> bool:
        """It has this id, if one is given, and each of these attributes with this value."""
        same = all(key in self.attributes and self.attributes[key][1] == value for key, value in attributes.items())
        return same and name in (None, self.id)


class Provider(NamedTuple):
    """Both files of one provider instance."""

    name: str
    config_path: str
    templates_path: str
    config: ProviderConfig
    templates: tuple[Template, ...]
    """The valid ones, in the file's order."""
    problems: tuple[Problem, ...]
    digests: Digests
    """By which the loop and the scripts know whether they have read the same."""

    def template(self, name: str) -> Template | None:
        """The template of that id."""
        return next((template for template in self.templates if template.id == name), None)


def load(directory: str | os.PathLike[str], environment: Mapping[str, str]) -> Provider:
    """Both files in ``directory`` of the instance HF_PROVIDER_NAME (LSF: PROVIDER_NAME), or else of the only one there.

    Raises TemplatesError when a file cannot be read, no template is valid, or it is unclear which file is meant.
    """
    name = environment.get("HF_PROVIDER_NAME") or environment.get("PROVIDER_NAME") or _only_name(os.fspath(directory))
    config_path = os.path.join(directory, f"{name}prov_config.json")
    written = _config_document(config_path)
    config, config_problems = _config(config_path, written)
    path = os.path.join(directory, config.templates_filename or f"{name}prov_templates.json")
    entries = _listed(path, read_json(path))
    templates, problems = _templates(path, entries)
    if not templates:
        raise TemplatesError(
            path, "no valid template" + (f"; {problems[0].where}: {problems[0].text}" if problems else "")
        )
    digests = Digests(digest_of(written), digest_of_templates(entries))
    return Provider(name, config_path, path, config, tuple(templates), (*config_problems, *problems), digests)


def load_config(path: str) -> tuple[ProviderConfig, list[Problem]]:
    """The provider config; the defaults when there is no such file. Raises TemplatesError when it is no JSON object."""
    return _config(path, _config_document(path))


def _config_document(path: str) -> dict[str, object]:
    """What the provider config says; nothing when there is no such file."""
    if not os.path.lexists(path):
        return {}
    values = read_json(path)
    if not isinstance(values, dict):
        raise TemplatesError(path, f"expected a JSON object, got {shown(values)}")
    return values


def read_json(path: str) -> object:
    """The JSON document in a file (with or without a byte order mark); raises TemplatesError."""
    try:
        content = read_regular(path, most=LARGEST)
    except OSError as error:
        raise TemplatesError(path, error.strerror or str(error)) from error
    try:
        document = json.loads(content, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise TemplatesError(path, f"not JSON: {error}") from error
    if _is_too_deep(document):
        raise TemplatesError(path, f"nested more than {DEEPEST} levels deep")
    return document


def _is_too_deep(document: object) -> bool:
    """What can just be read might not be printed again: Python's stack ends both."""
    level = [document]
    for _ in range(DEEPEST):
        level = [part for whole in level for part in _parts(whole)]
        if not level:
            return False
    return True


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _finite(written: str) -> float:
    """A number that is printed as JSON again. Python's parser takes NaN and 1e999, and prints what is no JSON."""
    number = float(written)
    if not math.isfinite(number):
        raise ValueError(f"{written} is no number of JSON")
    return number


def shown(value: object) -> str:
    """A wrong value as people find it in their file: JSON, short, on one line."""
    try:
        text = json.dumps(value)
    except RecursionError:  # it could just be read, a few calls less deep
        return "a value nested too deeply to show"
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def expected(words: str, value: object) -> str:
    """The text for a value that is not what ``words`` says."""
    return f"expected {words}, got {shown(value)}"


def _only_name(directory: str) -> str:
    """The instance whose templates file is alone in the directory."""
    end = "prov_templates.json"
    try:
        names = sorted(entry[: -len(end)] for entry in os.listdir(directory) if entry.endswith(end))
    except OSError as error:
        raise TemplatesError(directory, error.strerror or str(error)) from error
    if len(names) != 1:
        there = ", ".join(name + end for name in names) or "none"
        raise TemplatesError(
            directory, f"expected one <instance>{end}, or HF_PROVIDER_NAME to say which; found {there}"
        )
    return names[0]


# --- provider config --------------------------------------------------------------------------------------------------


def _config(path: str, values: Mapping[str, object]) -> tuple[ProviderConfig, list[Problem]]:
    """The keys of Google's connector that have a use here; a value that cannot be used leaves the default."""
    problems: list[Problem] = []
    left = dict(values)

    def text(key: str, default: str = "") -> str:
        value = left.pop(key, None)
        if value is None or (isinstance(value, str) and value.isprintable()):
            return value or default
        words = "printable characters" if isinstance(value, str) else "a text"
        problems.append(Problem(path, key, expected(words, value)))
        return default

    def number(key: str) -> float | None:
        value = left.pop(key, None)
        parsed = None if value in (None, "") else as_number(value)
        if value not in (None, "") and parsed is None:
            problems.append(Problem(path, key, expected("a number of at least 0", value)))
        return parsed

    size, rotate = number("LOG_MAX_FILE_SIZE"), number("LOG_MAX_ROTATE")
    defaults = ProviderConfig()
    config = ProviderConfig(
        templates_filename=text("HF_TEMPLATES_FILENAME"),
        log_file=text("LOGFILE"),
        log_level=text("LOG_LEVEL", defaults.log_level).upper(),
        log_max_megabytes=defaults.log_max_megabytes if size is None else size,
        log_max_rotate=defaults.log_max_rotate if rotate is None else int(rotate),
        gcp_project_id=text("GCP_PROJECT_ID"),
        gcp_credentials_file=text("GCP_CREDENTIALS_FILE"),
        gcp_instance_prefix=text("GCP_INSTANCE_PREFIX").lower(),
        gke_kubeconfig=text("GKE_KUBECONFIG"),
        gke_namespace=text("GKE_CRD_NAMESPACE"),
    )
    unused = tuple(key for key in left if key in UNUSED_KEYS or key.startswith(UNUSED_PREFIX))
    return config._replace(unused=unused, unknown=tuple(key for key in left if key not in unused)), problems


def as_number(value: object) -> float | None:
    """A number of at least 0, also when it is written as a text; None when it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    written = str(value).strip()
    return float(written) if re.fullmatch(r"[0-9]{1,15}(\.[0-9]+)?", written) else None


# --- templates --------------------------------------------------------------------------------------------------------


class Invalid(Exception):
    """What makes one template invalid: the place within it, and the reason."""


def _listed(path: str, document: object) -> list[object]:
    """The list of templates in the file's document; raises TemplatesError."""
    entries = document.get("templates") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise TemplatesError(path, f"templates: {expected('a list', entries)}")
    if not entries:
        raise TemplatesError(path, "templates: the list is empty")
    return entries


def _templates(path: str, entries: list[object]) -> tuple[list[Template], list[Problem]]:
    """The valid templates, and why the others are not. Of two with one id the first stands."""
    templates: dict[str, Template] = {}
    problems = []
    for index, entry in enumerate(entries):
        try:
            template = _template(entry)
            if template.id in templates:
                raise Invalid(".templateId", f"{shown(template.id)} is there twice; the first stands")
            templates[template.id] = template
        except Invalid as error:
            place, reason = error.args
            problems.append(Problem(path, f"templates[{index}]{place}", reason))
    return list(templates.values()), problems


def _template(entry: object) -> Template:
    if not isinstance(entry, dict):
        raise Invalid("", expected("an object", entry))
    name = entry.get("templateId")
    if not isinstance(name, str) or not re.fullmatch(TEMPLATE_ID, name):
        raise Invalid(".templateId", expected("1 to 64 letters, digits, '_' or '-'", name))
    fields = {key: value for key, value in entry.items() if key not in OWN_FIELDS}
    return Template(
        id=name,
        max_number=_max_number(entry.get("maxNumber")),
        attributes=_attributes(entry.get("attributes")),
        pools=_pools(fields),
        pod_spec_yaml=_text_field(fields, "podSpecYaml"),
        gcp_zone=_text_field(fields, "gcp_zone"),
        gcp_region=_text_field(fields, "gcp_region"),
        gcp_instance_group=_text_field(fields, "gcp_instance_group"),
        fields=fields,
    )


def _max_number(value: object) -> int:
    written = str(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else ""
    if not re.fullmatch(r"-1|[0-9]{1,9}", written) or int(written) > MAX_NUMBER:
        raise Invalid(".maxNumber", expected(f"a whole number from {UNLIMITED} to {MAX_NUMBER}", value))
    return int(written)


def _pools(fields: Mapping[str, object]) -> tuple[str, ...]:
    value = fields.get("pools")
    if value is None:
        return ()
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise Invalid(".pools", expected("a list of pool names", value))
    return tuple(dict.fromkeys(names))


def _text_field(fields: Mapping[str, object], key: str) -> str:
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        raise Invalid(f".{key}", expected("a text", value))
    return value or ""


def _attributes(value: object) -> dict[str, tuple[str, str]]:
    """All attributes as HF wants them: memory also from LSF's name for it, one core where none is given."""
    if not isinstance(value, dict):
        raise Invalid(".attributes", expected("an object", value))
    attributes = {name: tagged(name, given) for name, given in value.items() if given is not None}
    if "mem" in attributes:
        attributes.setdefault("nram", attributes["mem"])
    # Symphony counts slots as ncores x ncpus, and leaves out hosts without both.
    attributes.setdefault("ncores", ("Numeric", "1"))
    for name in ("type", "ncpus", "nram"):
        if name not in attributes:
            raise Invalid(f".attributes.{name}", "is missing")
    return attributes


def tagged(name: str, given: object) -> tuple[str, str]:
    """One attribute as (type, value), from ``["Numeric", "4"]``, ``["Numeric", 4]``, ``["4"]``, ``"4"`` or ``4``.

    Raises Invalid.
    """
    parts = given if isinstance(given, list) else [given]
    value = parts[-1] if parts else None
    if (
        len(parts) > 2
        or not isinstance(value, (str, int, float))
        or (len(parts) == 2 and not isinstance(parts[0], str))
    ):
        raise Invalid(f".attributes.{name}", expected('a value or ["type", "value"]', given))
    if name in NUMERIC_ATTRIBUTES:
        return "Numeric", _positive(name, value, given)
    if name == "type":
        return "String", _written(value)
    if len(parts) == 2:
        return str(parts[0]), _written(value)
    if isinstance(value, bool):
        return "Boolean", _written(value)
    return ("String" if isinstance(value, str) else "Numeric"), _written(value)


def _positive(name: str, value: str | float, given: object) -> str:
    number = as_number(value)
    if number is None or (number == 0 and name not in ("rank", "priority")):
        raise Invalid(f".attributes.{name}", expected("a number above 0", given))
    return str(int(number)) if number == int(number) else str(number)


def _written(value: str | float) -> str:
    """A value as HF writes it: everything is a text, true is 1."""
    return str(int(value)) if isinstance(value, bool) else str(value)
