"""The command ``provisioner configmap``: print the ConfigMap of the loop's pod.

The command makes the ConfigMap from the directory that HostFactory's scripts read, so that scripts and loop have the
same configuration. Kubernetes mounts a ConfigMap as one directory without subdirectories, so each file must have a
unique name.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from provisioner.commands.shared_options import FINE, UsageError, add_shared, config_file, settings
from provisioner.demand.settings import FILE as DEMAND_FILE
from provisioner.files.safe_open import read_regular
from provisioner.files.yaml_text import format_read_error, join
from provisioner.hostfactory import provider_config, templates
from provisioner.schema.setting_types import FileUse, file_use

LARGEST = 1_048_576
"""Maximum number of bytes of a ConfigMap's data."""

KEY = re.compile("-----BEGIN [A-Z ]*PRIVATE KEY-----")

Place = tuple[str, ...]
"""The keys that lead to a setting in provisioner.yaml, from the outermost key to the key of the setting itself."""


class _Dumper(yaml.SafeDumper):
    """A YAML writer that writes a text of several lines as a block."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _Dumper.represent_str)


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_shared(command, "config")
    command.add_argument("--name", default="provisioner-config", help="name of the ConfigMap; default %(default)s")
    command.add_argument("--namespace", default="hostfactory", help="namespace of the ConfigMap; default %(default)s")


def run(options: argparse.Namespace) -> int:
    """Print the ConfigMap. Raises ConfigError, TemplatesError, DirectoryError, UsageError."""
    file = config_file(options.config)
    provider = templates.load(file.parent, os.environ)
    included_files, left_files = _find_files(options.config)
    data: dict[str, str] = {}
    own = {path for path in (file, Path(provider.config_path), file.parent / DEMAND_FILE) if path.exists()}
    for path in sorted({*own, Path(provider.templates_path), *included_files.values()}, key=lambda path: path.name):
        if path.name in data:
            raise UsageError(
                f"{path}: another file has this name, and a ConfigMap has no directories; rename one of them"
            )
        data[path.name] = _checked_text(path)
    if moved := {place: path.name for place, path in included_files.items() if path.parent != file.parent.resolve()}:
        data[file.name] = _rewrite_settings(file, data.get(file.name, ""), moved)
    size = sum(len(name) + len(text.encode()) for name, text in data.items())
    if size > LARGEST:
        raise UsageError(
            f"{file.parent}: its files have {size} bytes together, and a ConfigMap holds {LARGEST}; leave out unused "
            "templates, or let the pod mount the directory itself"
        )
    print(f"# HostFactory's instance {provider.name}: the pod's HF_PROVIDER_NAME. Made from {file.parent.resolve()}")
    for place, path in included_files.items():
        print(f"# With {path.name}, the {_format_setting(place)}.")
    for place, path in left_files.items():
        print(f"# Left out: {path}, the {_format_setting(place)}, which may hold a key; the pod needs it as a Secret.")
    metadata = {"name": options.name, "namespace": options.namespace}
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    print(yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000), end="")
    return FINE


def _find_files(given: Path | None) -> tuple[dict[Place, Path], dict[Place, Path]]:
    """Return the files that settings name, as two dicts of setting → path.

    The ConfigMap includes the files of the first dict. It leaves out the files of the second dict, because these files
    may contain a private key.
    """
    included_files: dict[Place, Path] = {}
    left_files: dict[Place, Path] = {}
    configuration = settings(given)
    if configuration.ca_bundle is not None:
        included_files["ca_bundle",] = configuration.ca_bundle.resolve()
    for name, pool in configuration.pools.items():
        for setting, field in type(pool).model_fields.items():
            if isinstance(value := getattr(pool, setting), Path):
                chosen = included_files if file_use(field) is FileUse.CARRIED else left_files
                chosen["pools", name, setting] = value.resolve()
    return included_files, left_files


def _format_setting(place: Place) -> str:
    """Return a setting's name as comments show it, for example ``ca_cert of pool west``."""
    return f"{place[-1]} of pool {place[1]}" if len(place) > 1 else place[0]


def _rewrite_settings(file: Path, text: str, names: Mapping[Place, str]) -> str:
    """Return the text of provisioner.yaml with new values for the settings in ``names``. The rest of the text is
    unchanged. Raises UsageError."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    spans = {}
    for place, name in names.items():
        node = reduce(lambda at, key: _mapping_entries(at).get(key), place, root)
        if node is None or text[node.start_mark.index] in "&!":
            raise UsageError(
                f"{file}: {join(*place)}: a ConfigMap has no directories, so this path has to change, but the "
                f"pool itself does not contain the path; write the path there, or move the file beside {file.name}"
            )
        spans[node.start_mark.index, node.end_mark.index] = name
    for (start, end), name in sorted(spans.items(), reverse=True):
        text = f"{text[:start]}{json.dumps(name)}{text[end:]}"
    return text


def _mapping_entries(node: Any) -> dict[str, Any]:
    """Return the YAML nodes of a mapping's values, by key; empty if ``node`` is not a mapping."""
    return {key.value: value for key, value in node.value} if getattr(node, "id", "") == "mapping" else {}


def _checked_text(path: Path) -> str:
    """Return the content of a file for the ConfigMap. Raises UsageError if its name or content is not allowed in a
    ConfigMap."""
    if not re.fullmatch(r"[-._a-zA-Z0-9]+", path.name):
        raise UsageError(f"{path}: a ConfigMap's names have only letters, digits, '-', '_' and '.'; rename the file")
    try:
        text = read_regular(str(path), most=provider_config.LARGEST).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: {format_read_error(error)}") from error
    if KEY.search(text):
        raise UsageError(f"{path}: contains a private key, which must not be in a ConfigMap; remove the key")
    return text
