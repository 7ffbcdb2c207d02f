"""The command ``provisioner render-hf``: write HostFactory's files from one settings file."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from pathlib import Path

from provisioner.commands.shared_options import FINE, PROBLEM, UsageError
from provisioner.hostfactory.provider_config import Directories
from provisioner.process_end import interruptible


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    command.add_argument("settings", type=Path, metavar="SETTINGS", help="YAML file; docs/render-hf.md describes it")
    text = "directory with the layout of HF_TOP; default $HF_TOP, with its configuration in $HF_CONFDIR if set"
    command.add_argument("--out", type=Path, metavar="DIR", help=text)
    text = "write no file, but print the changes as a unified diff; exit code 0 without changes, 1 with changes"
    command.add_argument("--dry-run", action="store_true", help=text)
    text = "remove the instance from the registration files; its own files and the entries of others stay"
    command.add_argument("--uninstall", action="store_true", help=text)


def run(options: argparse.Namespace) -> int:
    """Write the files, or print the changes if ``--dry-run`` is given. Raises ConfigError, UsageError."""
    from provisioner.tools.file_placement import changes, difference, put
    from provisioner.tools.render import disabled_messages, render, unregistered

    try:
        with interruptible():
            conf = _conf(options.out, os.environ)
            files = (unregistered if options.uninstall else render)(options.settings, conf)
            messages = [] if options.uninstall else list(disabled_messages(options.settings, files))
            due = changes(files)
            lines = list(difference(due)) if options.dry_run else []
            kept = None if options.dry_run else put(due, conf, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))
    except OSError as error:
        raise UsageError(str(error)) from error
    if options.dry_run:
        print("\n".join([*(lines or ["No file would change."]), *messages]))
        return PROBLEM if lines else FINE
    written = [str(change.path) for change in due] or ["No file had to be changed."]
    replaced = [f"The replaced files are kept in {kept}"] if kept else []
    print("\n".join([*written, *replaced, *messages]))
    return FINE


def _conf(out: Path | None, environment: Mapping[str, str]) -> Path:
    """Return HostFactory's configuration directory: ``out``/conf if ``out`` is given; otherwise the directory that the
    environment names. Raises UsageError."""
    if out is not None:
        return out / "conf"
    directory = Directories(environment).registrations
    if not directory:
        raise UsageError("--out is missing, and neither HF_CONFDIR nor HF_TOP is set: source HostFactory's profile.hf")
    return Path(directory)
