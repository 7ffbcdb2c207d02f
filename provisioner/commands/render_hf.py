"""``provisioner render-hf``: HostFactory's files, from one settings file."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from provisioner.commands.options import FINE, PROBLEM, UsageError
from provisioner.interrupts import orderly


def add_options(command: argparse.ArgumentParser) -> None:
    """From what, to where, and whether in earnest."""
    command.add_argument("settings", type=Path, metavar="SETTINGS", help="YAML; docs/render-hf.md has all of it")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory, laid out as HF_TOP")
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="write nothing: print how the files there would change, as a unified diff; exit code 0 when none would, "
        "1 when one would",
    )
    command.add_argument(
        "--uninstall",
        action="store_true",
        help="take the instance out of the registration files; its own files and all that others have stay",
    )


def run(options: argparse.Namespace) -> int:
    """Print what was written, or would be. Raises ConfigError, UsageError."""
    from provisioner.tools.placing import changed, difference, put
    from provisioner.tools.render import render, unregistered

    try:
        with orderly():
            files = (unregistered if options.uninstall else render)(options.settings, options.out)
            if options.dry_run:
                lines = list(difference(files))
                print("\n".join(lines or ["Nothing would change."]))
                return PROBLEM if lines else FINE
            written = list(changed(files))
            kept = put(files, options.out, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))
    except OSError as error:
        raise UsageError(str(error)) from error
    print("\n".join(map(str, written)) or "Nothing was to be changed.")
    if kept:
        print(f"What was there before is kept in {kept}")
    return FINE
