"""A provider instance: where its files are, by HostFactory's environment, and its ``<inst>prov_config.json``.

Read liberally (sites write the file by hand, HF rewrites it), and every mistake is named; no logger. The scripts import
this at every call: hence named tuples (dataclasses would cost 7 ms), no YAML, no pydantic.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from provisioner.files.config_error import Problem
from provisioner.files.safe_open import read_regular

TEMPLATE_ID = r"[0-9A-Za-z_-]{1,64}"
"""What HF allows as a templateId."""

UNUSED_KEYS = frozenset(
    {
        "HF_DBDIR",
        "AUTO_RUN_TRIM_DB_CMD",
        "RETURNED_VM_TTL",
        "GKE_POLLING_INTERVAL",
        "GKE_REQUEST_TIMEOUT",
        "ACCEPT_PROPAGATED_LOG_SETTING",
    }
)
"""Keys of other connectors, mostly Google's, that have no use here."""

UNUSED_PREFIXES = ("GKE_CRD_", "PUBSUB_")
"""Google's keys for its custom resources, of which only ``GKE_CRD_NAMESPACE`` has a use here, and for its messages."""

LARGEST = 16 * 1024 * 1024
"""Bytes of a file: ten times what HF's ten thousand templates would take."""

DEEPEST = 60
"""Levels of a document: far more than HF knows, far fewer than Python's stack holds."""

SHOWN_CHARACTERS = 60
"""Characters of a wrong value that are shown: enough to find it, too few to fill a line of a log."""


SCRIPTS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "hf_scripts")
"""Where the scripts are: their package is installed beside this one."""


class TemplatesError(Exception):
    """A file that cannot be used at all; the text is one line."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class DirectoryError(Exception):
    """The environment does not say where something is; the text is one line that names the variable."""


class Digests(NamedTuple):
    """Of both files of a provider instance."""

    config: str
    templates: str


def digest_of(document: object) -> str:
    """Eight hexadecimal digits, however the JSON is spaced and ordered. Guards against mistakes, not against malice."""
    import zlib  # most calls of the scripts read no template, and do without

    return f"{zlib.crc32(json.dumps(document, sort_keys=True).encode('utf-8', 'surrogatepass')):08x}"


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


class ConfigFile(NamedTuple):
    """The provider config as it was read."""

    config: ProviderConfig
    problems: tuple[Problem, ...]
    document: Mapping[str, object]


class Directories:
    """The directories of one provider instance. Each property raises DirectoryError when the environment gives none."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self._config_files: dict[str, ConfigFile] = {}

    @property
    def name(self) -> str:
        """The provider instance: HF_PROVIDER_NAME, for LSF PROVIDER_NAME."""
        name = self.environment.get("HF_PROVIDER_NAME") or self.environment.get("PROVIDER_NAME") or ""
        if not re.fullmatch(TEMPLATE_ID, name):
            words = "is not set" if not name else f"expected 1 to 64 letters, digits, '_' or '-', got {shown(name)}"
            raise DirectoryError(f"HF_PROVIDER_NAME: {words}")
        return name

    @property
    def lsf(self) -> bool:
        """LSF's resource connector calls, not HostFactory."""
        return not self.environment.get("HF_PROVIDER_NAME") and bool(self.environment.get("PROVIDER_NAME"))

    @property
    def conf(self) -> str:
        """The directory of HF's two files for the instance. LSF keeps them in ``conf`` below the directory it names."""
        directory = self._given("HF_PROVIDER_CONFDIR", "HF_CONFDIR", "conf") or self.environment.get("PRO_CONF_DIR")
        if not directory:
            raise DirectoryError("HF_PROVIDER_CONFDIR: is not set, nor HF_CONFDIR, HF_TOP or PRO_CONF_DIR")
        deeper = os.path.join(directory, "conf")
        return deeper if not self.environment.get("HF_PROVIDER_CONFDIR") and os.path.isdir(deeper) else directory

    @property
    def state(self) -> str:
        """The state directory: HF's work directory. LSF's is shared by all providers: there a directory in it."""
        directory = self._given("HF_PROVIDER_WORKDIR", "HF_WORKDIR", "work")
        if not directory and (data := self.environment.get("PRO_DATA_DIR")):
            directory = os.path.join(data, self.name)
        if not directory:
            raise DirectoryError("HF_PROVIDER_WORKDIR: is not set, nor HF_WORKDIR, HF_TOP or PRO_DATA_DIR")
        return directory

    @property
    def logs(self) -> str:
        """The directory of the log; empty when the environment gives none: then there is no log."""
        given = self.environment.get("HF_PROVIDER_LOGDIR") or self._common("HF_LOGDIR", "log")
        return given or self.environment.get("PRO_LSF_LOGDIR", "")

    @property
    def registrations(self) -> str:
        """The directory of HF's registration files, which is that of all its configuration; empty: unknown."""
        return self._common("HF_CONFDIR", "conf")

    @property
    def host(self) -> str:
        """The machine that HostFactory runs on, as the log's name has it."""
        return self.environment.get("EGOSC_INSTANCE_HOST") or os.uname().nodename

    def config_file(self, path: str) -> ConfigFile:
        """The provider config in a file, which is read once. Raises TemplatesError."""
        if path not in self._config_files:
            self._config_files[path] = load_config(path)
        return self._config_files[path]

    def _given(self, own: str, common: str, under_top: str) -> str:
        """The instance's own directory, else its part of HF's common one."""
        if given := self.environment.get(own):
            return given
        directory = self._common(common, under_top)
        return directory and os.path.join(directory, "providers", self.name)

    def _common(self, name: str, under_top: str) -> str:
        """HF's common directory: its variable, which HF's profile need not set, else below HF_TOP; empty: unknown."""
        top = self.environment.get("HF_TOP")
        return self.environment.get(name) or (os.path.join(top, under_top) if top else "")


def load_config(path: str) -> ConfigFile:
    """The provider config; the defaults when there is no such file. Raises TemplatesError when it is no JSON object.

    A value that cannot be used leaves the default.
    """
    values = read_json(path) if os.path.lexists(path) else {}
    if not isinstance(values, dict):
        raise TemplatesError(path, f"expected a JSON object, got {shown(values)}")
    problems: list[Problem] = []
    fields: dict[str, Any] = {"unused": (), "unknown": ()}
    for key, value in values.items():
        if key not in FIELDS:
            use = "unused" if key in UNUSED_KEYS or key.startswith(UNUSED_PREFIXES) else "unknown"
            fields[use] = (*fields[use], key)
        elif value not in (None, ""):
            words, usable = _usable(key, value)
            if usable is None:
                problems.append(Problem(path, key, expected(words, value)))
            else:
                fields[FIELDS[key]] = usable
    config = ProviderConfig(**fields)
    config = config._replace(
        log_level=config.log_level.upper(),
        log_max_rotate=int(config.log_max_rotate),
        gcp_instance_prefix=config.gcp_instance_prefix.lower(),
    )
    return ConfigFile(config, tuple(problems), values)


def _usable(key: str, value: object) -> tuple[str, str | float | None]:
    """What the key's value has to be, in words; and the value as it is used, None where it cannot be."""
    if key.startswith("LOG_MAX_"):
        return "a number of at least 0", as_number(value)
    if not isinstance(value, str):
        return "a text", None
    return "printable characters", value if value.isprintable() else None


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
        deeper: list[object] = []
        for whole in level:
            if isinstance(whole, dict):
                deeper += whole.values()
            elif isinstance(whole, list):
                deeper += whole
        if not deeper:
            return False
        level = deeper
    return True


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


FIELDS = {
    "HF_TEMPLATES_FILENAME": "templates_filename",
    "LOGFILE": "log_file",
    "LOG_LEVEL": "log_level",
    "GCP_PROJECT_ID": "gcp_project_id",
    "GCP_CREDENTIALS_FILE": "gcp_credentials_file",
    "GCP_INSTANCE_PREFIX": "gcp_instance_prefix",
    "GKE_KUBECONFIG": "gke_kubeconfig",
    "GKE_CRD_NAMESPACE": "gke_namespace",
    "LOG_MAX_FILE_SIZE": "log_max_megabytes",
    "LOG_MAX_ROTATE": "log_max_rotate",
}
"""The keys of Google's connector that have a use here, and their fields; those of ``LOG_MAX_`` are numbers."""


def as_number(value: object) -> float | None:
    """A number of at least 0, also when it is written as a text; None when it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    written = str(value).strip()
    return float(written) if re.fullmatch(r"[0-9]{1,15}(\.[0-9]+)?", written) else None
