"""Run a bundle's install.sh as a user without rights. The files go below a root directory of the test."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from tests.support.bundles import renewed, shared, unpacked
from tests.support.hosts import PYTHON, UNPRIVILEGED_USER, as_unprivileged
from tests.support.waiting import PATIENCE

PREFIX = "opt/provisioner"
NEWER = "9.9.9"


class Bundles(NamedTuple):
    """Two bundles: one of this source, and one of a later version."""

    old: Path
    new: Path

    @property
    def version(self) -> str:
        """Return the version of this source's bundle."""
        return (self.old / "VERSION").read_text().strip()


@contextlib.contextmanager
def open_directory() -> Iterator[Path]:
    """Make a directory that the user without rights can enter, and yield it. This user cannot enter pytest's own
    directories."""
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@contextlib.contextmanager
def open_root() -> Iterator[Path]:
    """Yield an empty root that the user without rights may write to."""
    with open_directory() as directory:
        made = directory / "root"
        made.mkdir()
        if os.geteuid() == 0:
            os.chown(made, UNPRIVILEGED_USER, UNPRIVILEGED_USER)
        yield made


@contextlib.contextmanager
def both_bundles(run: pytest.TempPathFactory) -> Iterator[Bundles]:
    """Yield both bundles in a directory that the user without rights can enter."""
    with open_directory() as directory:
        old = unpacked(shared(run), directory)
        yield Bundles(old, renewed(old, directory, NEWER))


def install(
    directory: Path, *arguments: str, root: Path | None, python: str = PYTHON, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run install.sh of a bundle as the user without rights. The environment has only the given variables."""
    words = [*arguments, *(["--root", str(root)] if root else []), *(["--python", python] if python else [])]
    variables = [f"{name}={value}" for name, value in environment.items()]
    command = as_unprivileged("env", *variables, directory / "install.sh", *words)
    return subprocess.run(
        ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", *command],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=280 * PATIENCE,
    )


def done(directory: Path, *arguments: str, root: Path, **environment: str) -> str:
    """Run install.sh in a directory, check that it succeeded, and return its output."""
    ended = install(directory, *arguments, root=root, **environment)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return ended.stdout


def versions(root: Path) -> list[str]:
    """Return the installed versions."""
    return sorted(path.name for path in (root / PREFIX / "versions").iterdir())
