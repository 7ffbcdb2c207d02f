"""``provisioner configmap``: the ConfigMap of the loop's pod, from the directory that HostFactory's scripts read.

So both sides have one source: what is written here is what is mounted there.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from pathlib import Path

from provisioner.commands.options import FINE, UsageError, add_shared, config_file, settings
from provisioner.files.regular import read_regular
from provisioner.hostfactory import templates

LARGEST = 1_048_576
"""Bytes of all that a ConfigMap holds."""


def add_options(command: argparse.ArgumentParser) -> None:
    """From which directory, and under which name."""
    add_shared(command, "config")
    command.add_argument("--name", default="provisioner-config", help="name of the ConfigMap; default %(default)s")
    command.add_argument("--namespace", default="hostfactory", help="its namespace; default %(default)s")


def run(options: argparse.Namespace) -> int:
    """Print it. Raises ConfigError, TemplatesError, DirectoryError, UsageError."""
    import yaml

    file = config_file(options.config)
    provider = templates.load(file.parent, os.environ)
    data = {path.name: _text(path) for path in sorted(_sources(options.config, provider))}
    size = sum(len(name) + len(text.encode()) for name, text in data.items())
    if size > LARGEST:
        raise UsageError(
            f"{file.parent}: its files have {size} bytes together, a ConfigMap holds {LARGEST}: leave out templates "
            "that nobody asks for, or let the pod mount the directory itself"
        )
    print(f"# HostFactory's instance {provider.name}: the pod's HF_PROVIDER_NAME. Made from {file.parent.resolve()}")
    metadata = {"name": options.name, "namespace": options.namespace}
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    print(yaml.dump(manifest, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=1000), end="")
    return FINE


def _sources(given: Path | None, provider: templates.Provider) -> Iterator[Path]:
    """The files of HF's instance, provisioner.yaml, and what pools are made from; no login and no key."""
    file = config_file(given)
    yield from (path for path in (file, Path(provider.config_path)) if path.exists())
    yield Path(provider.templates_path)
    found = {}
    for name, pool in settings(given).pools.items():
        for setting, field in type(pool).model_fields.items():
            value = getattr(pool, setting)
            if field.is_required() and isinstance(value, Path):  # what may be left out says how to log in
                found[value.resolve()] = f"pools.{name}.{setting}"
    for path, where in found.items():
        if path.parent != file.parent.resolve():
            raise UsageError(
                f"{file}: {where}: '{path}' is not beside {file.name}; a ConfigMap has no directories: move it there"
            )
        yield path


def _text(path: Path) -> str:
    if not re.fullmatch(r"[-._a-zA-Z0-9]+", path.name):
        raise UsageError(f"{path}: a ConfigMap takes names of letters, digits, '-', '_' and '.' alone: rename it")
    return read_regular(str(path), most=templates.LARGEST).decode()


def _dumper() -> type:
    """Prints texts of several lines as people read them."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """With a way of its own for texts."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return Dumper
