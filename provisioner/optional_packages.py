"""Optional packages. If a part of this program lacks its packages, the error says what to install."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROJECT = "hostfactory-provisioner"
OWN = frozenset({"provisioner", "hf_scripts"})
LABORATORY = "provisioner.lab"
"""The only package of this project that an installation may omit."""


class MissingExtra(Exception):
    """Raised if a package that this part of the program needs is not installed. The message says what to install."""


@contextmanager
def require_packages(distribution: str) -> Iterator[None]:
    """Raise MissingExtra if an import in the block fails. The message says how to install ``distribution``, e.g.
    ``hostfactory-provisioner[loop]``.

    If the missing module is our own and not in the lab, the installation is broken. The ImportError is then raised
    unchanged.
    """
    try:
        yield
    except ImportError as error:
        if error.name is None or (error.name.partition(".")[0] in OWN and not error.name.startswith(LABORATORY)):
            raise
        text = f"This needs packages that are not installed ({error}): {_how_to_install(distribution)}"
        raise MissingExtra(text) from error


def _how_to_install(distribution: str) -> str:
    """Return a text that says how to install ``distribution`` here.

    If the bundle's ``install.sh`` has installed only the scripts, the text names install.sh. Otherwise the text names
    pip. A file records what install.sh has installed.
    """
    with suppress(OSError):
        if "for: scripts" in (Path(sys.prefix) / "installed").read_text().splitlines():
            return "run the bundle's install.sh without --scripts-only"
    return f"pip install '{distribution}'"


def extra(name: str) -> str:
    """Return the name of this project's distribution with an extra, in pip's notation:
    ``hostfactory-provisioner[loop]``."""
    return f"{PROJECT}[{name}]"
