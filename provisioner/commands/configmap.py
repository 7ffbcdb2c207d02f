"""``provisioner configmap``: the ConfigMap of the loop's pod, from the directory that HostFactory's scripts read.

So both sides have one source: what is written here is what is mounted there, in one directory without others.
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
from provisioner.files.safe_open import read_regular
from provisioner.files.yaml_text import join, reason_of
from provisioner.hostfactory import instance, templates

LARGEST = 1_048_576
"""Bytes of all that a ConfigMap holds."""

PUBLIC = frozenset({"ca_file", "ca_bundle"})
"""Optional settings that name a file without a secret; other files that a pool may leave out are logins and keys."""

KEY = re.compile("-----BEGIN [A-Z ]*PRIVATE KEY-----")

Place = tuple[str, ...]
"""The names that lead to a setting in provisioner.yaml."""


class _Dumper(yaml.SafeDumper):
    """Print texts of several lines as blocks."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _Dumper.represent_str)


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_shared(command, "config")
    command.add_argument("--name", default="provisioner-config", help="name of the ConfigMap; default %(default)s")
    command.add_argument("--namespace", default="hostfactory", help="its namespace; default %(default)s")


def run(options: argparse.Namespace) -> int:
    """Print it. Raises ConfigError, TemplatesError, DirectoryError, UsageError."""
    file = config_file(options.config)
    provider = templates.load(file.parent, os.environ)
    named, secret = _named(options.config)
    data: dict[str, str] = {}
    own = {path for path in (file, Path(provider.config_path)) if path.exists()}  # no login and no key
    for path in sorted({*own, Path(provider.templates_path), *named.values()}, key=lambda path: path.name):
        if path.name in data:
            raise UsageError(f"{path}: another file has this name, and a ConfigMap no directories: rename one of them")
        data[path.name] = _text(path)
    moved = {place: path.name for place, path in named.items() if path.parent != file.parent.resolve()}
    if moved:
        data[file.name] = _renamed(file, data.get(file.name, ""), moved)
    size = sum(len(name) + len(text.encode()) for name, text in data.items())
    if size > LARGEST:
        raise UsageError(
            f"{file.parent}: its files have {size} bytes together, a ConfigMap holds {LARGEST}: leave out templates "
            "that nobody asks for, or let the pod mount the directory itself"
        )
    print(f"# HostFactory's instance {provider.name}: the pod's HF_PROVIDER_NAME. Made from {file.parent.resolve()}")
    for place, path in named.items():
        if place[-1] in PUBLIC:
            print(f"# With {path.name}, the {_setting_words(place)}.")
    for place, path in secret.items():
        print(f"# Without {path}, the {_setting_words(place)}, which may hold a key: give it to the pod as a Secret.")
    metadata = {"name": options.name, "namespace": options.namespace}
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    print(yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000), end="")
    return FINE


def _named(given: Path | None) -> tuple[dict[Place, Path], dict[Place, Path]]:
    """The files that are named, by setting: those that are carried, and those that may hold a key."""
    carried: dict[Place, Path] = {}
    secret: dict[Place, Path] = {}
    configuration = settings(given)
    if configuration.ca_bundle is not None:
        carried["ca_bundle",] = configuration.ca_bundle.resolve()
    for name, pool in configuration.pools.items():
        for setting, field in type(pool).model_fields.items():
            if isinstance(value := getattr(pool, setting), Path):
                public = field.is_required() or setting in PUBLIC
                (carried if public else secret)["pools", name, setting] = value.resolve()
    return carried, secret


def _setting_words(place: Place) -> str:
    """A setting in words."""
    return f"{place[-1]} of pool {place[1]}" if len(place) > 1 else place[0]


def _renamed(file: Path, text: str, names: Mapping[Place, str]) -> str:
    """The text of provisioner.yaml with other values of these settings, and all else as it is. Raises UsageError."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    spans = {}
    for place, name in names.items():
        node = reduce(lambda at, key: _entries(at).get(key), place, root)
        if node is None or text[node.start_mark.index] in "&!":
            raise UsageError(
                f"{file}: {join(*place)}: a ConfigMap has no directories, and this value stands elsewhere: "
                f"move its file beside {file.name}, or write the value in the pool itself"
            )
        spans[node.start_mark.index, node.end_mark.index] = name
    for (start, end), name in sorted(spans.items(), reverse=True):
        text = f"{text[:start]}{json.dumps(name)}{text[end:]}"
    return text


def _entries(node: Any) -> dict[str, Any]:
    """The values of a mapping in a YAML text, with where they stand; none where there is no mapping."""
    return {key.value: value for key, value in node.value} if getattr(node, "id", "") == "mapping" else {}


def _text(path: Path) -> str:
    if not re.fullmatch(r"[-._a-zA-Z0-9]+", path.name):
        raise UsageError(f"{path}: a ConfigMap takes names of letters, digits, '-', '_' and '.' alone: rename it")
    try:
        text = read_regular(str(path), most=instance.LARGEST).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: {reason_of(error)}") from error
    if KEY.search(text):
        raise UsageError(f"{path}: it holds a private key, and a ConfigMap is no place for one: take it out")
    return text
