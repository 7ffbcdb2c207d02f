"""Options, exit codes and printing that several commands share."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provisioner.hostfactory.provider_config import Directories, DirectoryError

if TYPE_CHECKING:
    from provisioner.settings.definitions import Settings
    from provisioner.state.directory import StateDir
    from provisioner.state.kube.state import KubeState
    from provisioner.state.opening import KubeStore

FINE, PROBLEM, WRONG = 0, 1, 2

SHARED = {"config": ("FILE", "$HF_PROVIDER_CONFDIR/provisioner.yaml"), "state-dir": ("DIR", "$HF_PROVIDER_WORKDIR")}
"""Metavar and default of each option that names a file or directory."""

Document = Mapping[str, Any]
"""The result of a command, as ``-o json`` prints it."""


class UsageError(Exception):
    """Raised for a wrong call or environment. The message contains the remedy."""


def add_shared(command: argparse.ArgumentParser, *names: str, outputs: Sequence[str] = ("text", "json")) -> None:
    """Add options that several commands share: ``config`` and ``state-dir`` with their defaults, and ``output``."""
    for name in names:
        if name == "output":
            command.add_argument("-o", "--output", choices=outputs, default="text", help="default text")
        else:
            metavar, default = SHARED[name]
            command.add_argument(f"--{name}", type=Path, metavar=metavar, help=f"default {default}")


def _get_directory(read: Callable[[], str], option: str) -> str:
    """Return the directory that ``read`` finds in the environment.

    Raises DirectoryError if ``read`` raises it. The message then also names ``option``, by which an operator can name
    the directory.
    """
    try:
        return read()
    except DirectoryError as error:
        raise DirectoryError(f"{error}; give {option}, or set the variable as HostFactory does") from error


def config_file(given: Path | None) -> Path:
    """Return the path of provisioner.yaml, from ``--config`` or from HostFactory's environment. Raises
    DirectoryError."""
    path = given or Path(_get_directory(lambda: Directories(os.environ).conf, "--config FILE"))
    return path / "provisioner.yaml" if path.is_dir() else path


def settings(given: Path | None) -> Settings:
    """Read the settings of ``config_file``. Raises ConfigError, DirectoryError."""
    from provisioner.settings.loader import load

    return load(config_file(given), os.environ)


def open_state(given: Path | None, *, follows: bool = False) -> StateDir | KubeState:
    """Return the state, which is in files or in a Kubernetes API.

    ``given``: the directory of the option ``--state-dir``; None to find the state by HostFactory's environment.
    ``follows``: True for a running loop, which follows changes in the Kubernetes API. Raises UsageError,
    DirectoryError, TemplatesError, StateError.
    """
    if (store := find_store(os.environ, given)) is None:
        return state_directory(given)
    from provisioner.state.kube.state import KubeState
    from provisioner.state.opening import instance_of

    directories = Directories(os.environ)
    local = str(directories.state) if os.environ.get("HF_PROVIDER_WORKDIR") else ""
    state = KubeState(store.api(), instance_of(store, directories), local, follows=follows)
    if follows:
        state.wait_synced()
    return state


def open_states() -> list[StateDir | KubeState]:
    """Return the state of each shard, or the only state if there are no shards. Raises the errors of ``open_state``."""
    if (store := find_store(os.environ)) is None:
        return [state_directory(None)]
    from provisioner.hostfactory.shards import shard_instance
    from provisioner.state.kube.state import KubeState

    directories = Directories(os.environ)
    names = [shard_instance(directories.name, number) for number in range(len(store.shards))] or [directories.name]
    return [KubeState(store.api(), name, str(directories.state)) for name in names]


def find_store(environment: Mapping[str, str], given: Path | None = None) -> KubeStore | None:
    """Return the Kubernetes API that keeps the state; None if the state is in files. Raises StateError, TemplatesError
    or DirectoryError."""
    from provisioner.hostfactory.provider_config import KUBERNETES
    from provisioner.state.opening import find_kube_store

    if given is not None and not str(given).startswith(KUBERNETES):
        return None
    try:
        return find_kube_store(Directories(environment), str(given or ""))
    except DirectoryError:
        if given is not None:
            raise
        return None  # HostFactory's files are unknown, so the state can only be in a directory


def state_directory(given: Path | None) -> StateDir:
    """Return the state directory that ``given`` or HostFactory's environment names.

    ``given``: the directory of the option ``--state-dir``. Raises DirectoryError. Raises UsageError if the directory
    does not exist, or if the state is in a Kubernetes API.
    """
    from provisioner.state.directory import StateDir

    if (store := find_store(os.environ, given)) is not None:
        raise UsageError(
            f"The Kubernetes API keeps this state (namespace {store.namespace}), and this command is for state files. "
            "To use the command, name a directory with --state-dir"
        )
    path = given or Path(_get_directory(lambda: Directories(os.environ).state, "--state-dir DIR"))
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path}: is not a directory; name a directory with --state-dir or HF_PROVIDER_WORKDIR")
    if not path.is_dir():
        raise UsageError(
            f"{path}: no such directory; create it for the loop's user and the group that it shares with HostFactory's "
            "user, mode 2770, or name another with --state-dir or HF_PROVIDER_WORKDIR"
        )
    return StateDir(str(path))


def allow_drawing() -> None:
    """Let the package rich write its control characters to the terminal from now on."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "is_drawn_on"):
            stream.is_drawn_on = True


def show(
    options: argparse.Namespace, document: Document, lines: Callable[[Document], Iterable[str]], *, fine: bool = True
) -> int:
    """Print the document in the form that ``--output`` names. Return FINE if ``fine`` is True, and PROBLEM if not."""
    print(format_output(options.output, document, lines))
    return FINE if fine else PROBLEM


def format_output(output: str, document: Document, lines: Callable[[Document], Iterable[str]]) -> str:
    """Return the document as JSON or YAML if ``output`` names this format. Otherwise return ``lines`` for a
    terminal."""
    if output not in ("json", "yaml"):
        from provisioner.telemetry.pool_windows import format_local_time

        return format_local_time("\n".join(lines(document)))
    text = json.dumps(document, indent=2)
    if output == "json":
        return text
    import yaml

    return str(yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=True)).rstrip("\n")
