"""What is installed only where it is used: a part of this program whose packages are absent says what to install."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROJECT = "hostfactory-provisioner"
OWN = frozenset({"provisioner", "hf_scripts"})
LABORATORY = "provisioner.lab"
"""The one part of our own that an installation may leave out."""


class MissingExtra(Exception):
    """A package that this part needs is not installed; the text says what to install."""


@contextmanager
def needing(distribution: str) -> Iterator[None]:
    """What is imported inside comes with ``distribution``, e.g. ``hostfactory-provisioner[loop]``.

    Raises MissingExtra. If a module of our own is absent outside of the laboratory, the installation is broken, and
    the ImportError is passed on.
    """
    try:
        yield
    except ImportError as error:
        if error.name is None or (error.name.partition(".")[0] in OWN and not error.name.startswith(LABORATORY)):
            raise
        text = f"This needs packages that are not installed ({error}): {_how_to_install(distribution)}"
        raise MissingExtra(text) from error


def _how_to_install(distribution: str) -> str:
    """What is typed where this runs; the bundle's ``install.sh`` notes beside the environment what it is for."""
    with suppress(OSError):
        if "for: scripts" in (Path(sys.prefix) / "installed").read_text().splitlines():
            return "run the bundle's install.sh without --scripts-only"
    return f"pip install '{distribution}'"


def extra(name: str) -> str:
    """An extra of this project, as pip takes it."""
    return f"{PROJECT}[{name}]"
