"""A provider instance: its directories and its file ``<inst>prov_config.json``. HostFactory's environment names the
directories.

The file is read tolerantly, because sites write it by hand and HostFactory rewrites it. The caller gets each mistake,
because this module does not log.

The scripts import this module at every call. Therefore it uses named tuples (dataclasses would cost 7 ms), and neither
YAML nor pydantic.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from itertools import chain
from typing import Any, NamedTuple

from provisioner.files.config_error import Problem
from provisioner.files.safe_open import read_regular

TEMPLATE_ID = r"[0-9A-Za-z_-]{1,64}"
"""Pattern of the templateIds that HF allows."""

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
"""Keys of other connectors, mostly of Google's, that have no effect here."""

UNUSED_PREFIXES = ("GKE_CRD_", "PUBSUB_")
"""Prefixes of Google's keys for custom resources and messages. Only ``GKE_CRD_NAMESPACE`` among them has an effect
here."""

KUBERNETES = "kubernetes:"
"""Beginning of a value of ``STATE`` that puts the state into a Kubernetes API. The name of the namespace follows."""
PLACE = rf"files|{KUBERNETES}([a-z0-9]([-a-z0-9]{{0,61}}[a-z0-9])?)"

LARGEST = 16 * 1024 * 1024
"""Maximum size of a file in bytes. Ten thousand templates, the most that HF allows, take a tenth of this size."""

DEEPEST = 60
"""Maximum depth of a document in levels: much more than HF writes, and much less than Python's stack allows."""

SHOWN_CHARACTERS = 60
"""Maximum number of characters of a wrong value that a message shows: enough to find the value, and too few to fill a
line of the log."""


SCRIPTS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "hf_scripts")
"""Directory of the scripts, whose package is installed beside this package."""


class TemplatesError(Exception):
    """Raised if a file is unusable as a whole. The message is one line."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class DirectoryError(Exception):
    """Raised if the environment does not name a required directory. The message is one line and names the variable."""


class Digests(NamedTuple):
    """The digests of a provider instance's two files: the provider config and the templates."""

    config: str
    templates: str


def digest_of(document: object) -> str:
    """Return the digest of a JSON document: eight hexadecimal digits that do not depend on white space or on the order
    of keys.

    The digest detects mistakes, not malice.
    """
    import zlib  # imported here because most script calls do not read templates

    return f"{zlib.crc32(json.dumps(document, sort_keys=True).encode('utf-8', 'surrogatepass')):08x}"


class ProviderConfig(NamedTuple):
    """The values of ``<inst>prov_config.json``. If a key is absent, its value is empty or the default."""

    templates_filename: str = ""
    log_file: str = ""
    log_level: str = "INFO"
    log_max_megabytes: float = 10.0
    """Size in megabytes at which the scripts' log is rotated."""
    log_max_rotate: int = 5
    """Number of rotated logs that are kept; 0 disables rotation."""
    gcp_project_id: str = ""
    gcp_credentials_file: str = ""
    gcp_instance_prefix: str = ""
    """Prefix of machine names in lower case. Users of Google's connector write the prefix with a ``-`` at the end."""
    gke_kubeconfig: str = ""
    gke_namespace: str = ""
    state_namespace: str = ""
    """Namespace of the Kubernetes API that keeps the state; empty if files keep it."""
    state_kubeconfig: str = ""
    """Path of the kubeconfig for the API that keeps the state; empty to use the pod's service account."""
    state_shards: tuple[tuple[str, ...], ...] = ()
    """For each shard, the names of the pools that are assigned to it. A hash assigns the other pools. Empty: there are
    no shards."""
    unused: tuple[str, ...] = ()
    """Known keys in the file that have no effect here."""
    unknown: Mapping[str, object] = {}
    """Keys in the file that this module does not know, with their values. The kind of a pool may know such a key."""


class ConfigFile(NamedTuple):
    """The provider config as read: its values, its mistakes, and the JSON document."""

    config: ProviderConfig
    problems: tuple[Problem, ...]
    document: Mapping[str, object]


class Directories:
    """The directories of a provider instance. The properties ``name``, ``conf`` and ``state`` raise DirectoryError if
    the environment does not give their value."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self._config_files: dict[str, ConfigFile] = {}

    @property
    def name(self) -> str:
        """Return the name of the provider instance: HF_PROVIDER_NAME, or PROVIDER_NAME under LSF."""
        name = self.environment.get("HF_PROVIDER_NAME") or self.environment.get("PROVIDER_NAME") or ""
        if not re.fullmatch(TEMPLATE_ID, name):
            words = format_expected("1 to 64 letters, digits, '_' or '-'", name) if name else "is not set"
            raise DirectoryError(f"HF_PROVIDER_NAME: {words}")
        return name

    @property
    def is_lsf(self) -> bool:
        """Return True if the caller is LSF's resource connector instead of HostFactory."""
        return not self.environment.get("HF_PROVIDER_NAME") and bool(self.environment.get("PROVIDER_NAME"))

    @property
    def conf(self) -> str:
        """Return the directory of the instance's provider config and templates. Under LSF this is ``conf`` below the
        directory that PRO_CONF_DIR names."""
        own = self._own_directory("HF_PROVIDER_CONFDIR", "HF_CONFDIR", "conf")
        directory = own or self.environment.get("PRO_CONF_DIR")
        if not directory:
            raise DirectoryError("HF_PROVIDER_CONFDIR: is not set, nor HF_CONFDIR, HF_TOP or PRO_CONF_DIR")
        deeper = os.path.join(directory, "conf")
        return deeper if not self.environment.get("HF_PROVIDER_CONFDIR") and os.path.isdir(deeper) else directory

    @property
    def state(self) -> str:
        """Return the state directory: HF's work directory. Under LSF, this is the instance's own directory in LSF's
        data directory, which all providers share."""
        directory = self._own_directory("HF_PROVIDER_WORKDIR", "HF_WORKDIR", "work")
        if not directory and (data := self.environment.get("PRO_DATA_DIR")):
            directory = os.path.join(data, self.name)
        if not directory:
            raise DirectoryError("HF_PROVIDER_WORKDIR: is not set, nor HF_WORKDIR, HF_TOP or PRO_DATA_DIR")
        return directory

    @property
    def logs(self) -> str:
        """Return the directory of the log; empty if the environment does not name one, so that no log is written."""
        directory_path = self.environment.get("HF_PROVIDER_LOGDIR") or self._common_directory("HF_LOGDIR", "log")
        return directory_path or self.environment.get("PRO_LSF_LOGDIR", "")

    @property
    def registrations(self) -> str:
        """Return the directory of HF's registration files: HF's common configuration directory. Empty if unknown."""
        return self._common_directory("HF_CONFDIR", "conf")

    @property
    def host(self) -> str:
        """Return the name of HostFactory's machine. The name of the log file contains this name."""
        return self.environment.get("EGOSC_INSTANCE_HOST") or os.uname().nodename

    def config_file(self, path: str) -> ConfigFile:
        """Return the provider config at ``path``. The file is read only at the first call. Raises TemplatesError."""
        if path not in self._config_files:
            self._config_files[path] = load_config(path)
        return self._config_files[path]

    def _own_directory(self, own: str, common: str, under_top: str) -> str:
        """Return a directory that only this instance uses; empty if unknown.

        The variable ``own`` names this directory. If the variable is not set, return the instance's directory below
        HF's common directory. ``common``: the variable that names the common directory.
        """
        if directory_path := self.environment.get(own):
            return directory_path
        directory = self._common_directory(common, under_top)
        return directory and os.path.join(directory, "providers", self.name)

    def _common_directory(self, name: str, under_top: str) -> str:
        """Return HF's common directory; empty if unknown. The variable ``name`` names this directory. If the variable
        is not set, return the directory ``under_top`` below HF_TOP."""
        top = self.environment.get("HF_TOP")
        return self.environment.get(name) or (os.path.join(top, under_top) if top else "")


def load_config(path: str) -> ConfigFile:
    """Read the provider config. If there is no such file, return the defaults.

    A default also replaces an invalid value. Raises TemplatesError if the file is not a JSON object.
    """
    values = read_json(path) if os.path.lexists(path) else {}
    if not isinstance(values, dict):
        raise TemplatesError(path, f"expected a JSON object, got {format_value(values)}")
    problems: list[Problem] = []
    fields: dict[str, Any] = {"unused": (), "unknown": {}}
    for key, value in values.items():
        if key not in FIELDS and (key in UNUSED_KEYS or key.startswith(UNUSED_PREFIXES)):
            fields["unused"] = (*fields["unused"], key)
        elif key not in FIELDS:
            fields["unknown"][key] = value
        elif value not in (None, ""):
            words, usable = _usable(key, value)
            if usable is None:
                problems.append(Problem(path, key, format_expected(words, value)))
            else:
                fields[FIELDS[key]] = usable
    config = ProviderConfig(**fields)
    config = config._replace(
        log_level=config.log_level.upper(),
        log_max_rotate=int(config.log_max_rotate),
        gcp_instance_prefix=config.gcp_instance_prefix.lower(),
    )
    return ConfigFile(config, tuple(problems), values)


def _usable(key: str, value: object) -> tuple[str, Any]:
    """Convert the value of a key of the provider config. Return a description of the key's valid values, and the
    converted value; None instead of the converted value if the value is invalid."""
    if key.startswith("LOG_MAX_"):
        return "a number of at least 0", as_number(value)
    if key == "STATE_SHARDS":
        from provisioner.hostfactory import shards  # imported here because few sites have shards

        return f"a number of loops, 1 to {len(shards.SYMBOLS)}, or for each a list of pool names", shards.parse(value)
    if key == "STATE":
        place = re.fullmatch(PLACE, value) if isinstance(value, str) else None
        return '"files" or "kubernetes:NAMESPACE"', (place and place[1]) or ("" if place else None)
    if not isinstance(value, str):
        return "a text", None
    return "printable characters", value if value.isprintable() else None


def read_json(path: str) -> object:
    """Read the JSON document in a file, with or without a byte order mark. Raises TemplatesError."""
    try:
        content = read_regular(path, most=LARGEST)
    except OSError as error:
        raise TemplatesError(path, error.strerror or str(error)) from error
    try:
        document = json.loads(content, parse_float=finite, parse_constant=finite)
    except (ValueError, RecursionError) as error:
        raise TemplatesError(path, f"not JSON: {error}") from error
    if _is_too_deep(document):
        raise TemplatesError(path, f"nested more than {DEEPEST} levels deep")
    return document


def _is_too_deep(document: object) -> bool:
    """Return True if the nesting exceeds ``DEEPEST``.

    A deep document is refused even if Python can read it, because Python may fail to print it.
    """
    level = [document]
    for _ in range(DEEPEST):
        parts = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level = list(chain.from_iterable(parts))
    return bool(level)


def finite(written: str) -> float:
    """Convert a number. Raises ValueError for NaN and 1e999, because Python accepts these numbers but cannot print them
    as valid JSON."""
    number = float(written)
    if not math.isfinite(number):
        raise ValueError(f"{written} is not a JSON number")
    return number


def format_value(value: object) -> str:
    """Return a wrong value as short JSON on one line, as it may stand in the file."""
    try:
        text = json.dumps(value)
    except RecursionError:  # the stack was less deep when the value was read
        return "a value nested too deeply to show"
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def format_expected(words: str, value: object) -> str:
    """Return the message for a value that does not match the description ``words``."""
    return f"expected {words}, got {format_value(value)}"


FIELDS = {
    "HF_TEMPLATES_FILENAME": "templates_filename",
    "LOGFILE": "log_file",
    "LOG_LEVEL": "log_level",
    "GCP_PROJECT_ID": "gcp_project_id",
    "GCP_CREDENTIALS_FILE": "gcp_credentials_file",
    "GCP_INSTANCE_PREFIX": "gcp_instance_prefix",
    "GKE_KUBECONFIG": "gke_kubeconfig",
    "GKE_CRD_NAMESPACE": "gke_namespace",
    "STATE": "state_namespace",
    "STATE_KUBECONFIG": "state_kubeconfig",
    "STATE_SHARDS": "state_shards",
    "LOG_MAX_FILE_SIZE": "log_max_megabytes",
    "LOG_MAX_ROTATE": "log_max_rotate",
}
"""Fields of ProviderConfig by their keys in the file. The values of keys that begin with ``LOG_MAX_`` are numbers."""


def as_number(value: object) -> float | None:
    """Return a number of at least 0, which may be written as text; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    written = str(value).strip()
    return float(written) if re.fullmatch(r"[0-9]{1,15}(\.[0-9]+)?", written) else None
