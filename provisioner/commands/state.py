"""The command ``provisioner state copy``: copy the state from files into a Kubernetes API, or back."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from provisioner.commands.shared_options import FINE, UsageError
from provisioner.hostfactory.provider_config import KUBERNETES, Directories
from provisioner.state.directory import StateDir
from provisioner.state.kube.state import KubeState
from provisioner.state.kube.transfer import copy_state
from provisioner.state.opening import find_kube_store

PLACES = f"DIR|{KUBERNETES}NAMESPACE"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    command.add_argument("action", choices=["copy"], help="copy the whole state; stop HostFactory and all loops first")
    command.add_argument("--from", dest="source", required=True, metavar=PLACES, help="the state that is copied")
    command.add_argument("--to", dest="target", required=True, metavar=PLACES, help="an empty state")


def run(options: argparse.Namespace) -> int:
    """Copy the state, and print the next steps. Raises UsageError, StateError."""
    directories = Directories(os.environ)
    is_upload = options.target.startswith(KUBERNETES)
    place, path = (options.target, options.source) if is_upload else (options.source, options.target)
    if not place.startswith(KUBERNETES) or path.startswith(KUBERNETES):
        raise UsageError(f"--from, --to: expected a directory and {KUBERNETES}NAMESPACE, got {path} and {place}")
    if not Path(path).is_dir():
        raise UsageError(f"{path}: no such directory; create it, or correct {'--from' if is_upload else '--to'}")
    if not (store := find_kube_store(directories, place)) or store.shards:
        raise UsageError("STATE_SHARDS: the ids in files show no shard. Drain the grid, and begin with an empty state.")
    files, state = StateDir(path), KubeState(store.api(), directories.name)
    if is_upload and (instance := files.intent.read().provisioner) != directories.name:
        raise UsageError(f"{path}: belongs to HF's provider instance {instance!r}, not to {directories.name!r}")
    copied = copy_state(files, state) if is_upload else copy_state(state, files)
    key = place if is_upload else "files"
    print(
        f"Copied requests {copied.requests}, returns {copied.returns}, final answers to HostFactory {copied.answers}.\n"
        "Next steps:\n"
        f'  1. Set "STATE": "{key}" in {directories.name}prov_config.json, for scripts and loop.\n'
        "  2. Start the loop, then HostFactory. Never start a loop on the old state: it would make machines twice."
    )
    return FINE
