"""The command ``provisioner new-kind``: write the skeleton of a Python distribution that adds a kind of place."""

from __future__ import annotations

import argparse
import re
from importlib.resources import files
from pathlib import Path

from provisioner.backends import registry
from provisioner.commands.shared_options import FINE, UsageError

NAME = re.compile(r"[a-z][a-z0-9]{1,19}")
SOURCES = {
    "pyproject.toml.in": "pyproject.toml",
    "README.md.in": "README.md",
    "settings.py": "skeleton_provisioner/settings.py",
    "kind.py": "skeleton_provisioner/kind.py",
    "backend.py": "skeleton_provisioner/backend.py",
    "contract.py": "tests/test_contract.py",
}
"""The files of ``provisioner.lab.skeleton``, each with its path in the new distribution."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``provisioner new-kind``."""
    command.add_argument("name", metavar="NAME", help="the value of `kind`: 2 to 20 small letters and digits")
    command.add_argument("--out", type=Path, metavar="DIR", help="new directory; default NAME-provisioner")


def run(options: argparse.Namespace) -> int:
    """Write the files and return the exit code. Raises UsageError."""
    name: str = options.name
    if not NAME.fullmatch(name):
        raise UsageError(f"new-kind {name!r}: expected 2 to 20 small letters and digits, a letter first")
    if name in (known := registry.kind_names()):
        raise UsageError(f"new-kind {name}: there is a kind of this name; the kinds are {', '.join(known)}")
    directory: Path = options.out or Path(f"{name}-provisioner")
    try:
        directory.mkdir(parents=True)
    except FileExistsError as error:
        raise UsageError(f"{directory}: exists already; name another directory with --out") from error
    for source, target in SOURCES.items():
        path = directory / _rename(target, name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(_rename((files("provisioner.lab.skeleton") / source).read_text("utf-8"), name))
        print(path)
    return FINE


def _rename(text: str, name: str) -> str:
    package = text.replace("provisioner.lab.skeleton", f"{name}_provisioner")
    return package.replace("skeleton", name).replace("Skeleton", name.capitalize())
