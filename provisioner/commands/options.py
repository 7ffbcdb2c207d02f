"""What several commands share: options, what those lead to, exit codes, and how a document is printed."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provisioner.hostfactory.environment import Places

if TYPE_CHECKING:
    from provisioner.settings.tree import Settings
    from provisioner.state.directory import StateDir

FINE, PROBLEM, WRONG = 0, 1, 2

Document = Mapping[str, Any]
"""What a command found, as ``-o json`` prints it."""


class UsageError(Exception):
    """The call or its environment is wrong; the text says what to give."""


def add_config(command: argparse.ArgumentParser) -> None:
    """``--config``, for :func:`settings`."""
    command.add_argument("--config", type=Path, metavar="FILE", help="default $HF_PROVIDER_CONFDIR/provisioner.yaml")


def add_state(command: argparse.ArgumentParser) -> None:
    """``--state-dir``, for :func:`state_directory`."""
    command.add_argument("--state-dir", type=Path, metavar="DIR", help="default $HF_PROVIDER_WORKDIR")


def add_output(command: argparse.ArgumentParser) -> None:
    """``--output``, for :func:`show`."""
    command.add_argument("-o", "--output", choices=["text", "json"], default="text", help="default text")


def config_file(given: Path | None) -> Path:
    """The file that ``--config`` or HostFactory's environment names, perhaps by its directory. Raises PlaceError."""
    path = given or Path(Places(os.environ).conf)
    return path / "provisioner.yaml" if path.is_dir() else path


def settings(given: Path | None) -> Settings:
    """What that file says. Raises ConfigError, PlaceError."""
    from provisioner.settings.loader import load

    return load(config_file(given), os.environ)


def state_directory(given: Path | None) -> StateDir:
    """What ``--state-dir`` or HostFactory's environment names; it has to exist. Raises UsageError, PlaceError."""
    from provisioner.state.directory import StateDir

    path = given or Path(Places(os.environ).state)
    if not path.is_dir():
        raise UsageError(
            f"{path}: no such directory; create it, owned by the user HostFactory runs as, or see --state-dir"
        )
    return StateDir(str(path))


def show(options: argparse.Namespace, document: Document, text: Callable[[Document], str]) -> None:
    """Print the document, as ``--output`` asks for it."""
    print(json.dumps(document, indent=2) if options.output == "json" else text(document))
