"""Bundles as ``make dist`` makes them: of this source, and of the same with another version."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.hosts import ROOT, python_version, tools

SECONDS = "1700000000"
PARTS = (
    "pyproject.toml",
    "setup.cfg",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "provisioner",
    "hf_scripts",
    "deploy",
    "config",
)


def bundle(out: Path, source: Path = ROOT, pythons: Sequence[str] = ()) -> Path:
    """The archive, with wheels for these Pythons, or for the system's alone."""
    done = subprocess.run(
        [
            tools(),
            source / "deploy" / "bundle" / "bundle.py",
            "--out",
            out,
            "--python",
            *(pythons or [python_version()]),
        ],
        env=os.environ | {"SOURCE_DATE_EPOCH": SECONDS},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def of_version(version: str, directory: Path) -> Path:
    """This source, as another version."""
    source = directory / f"source-{version}"
    source.mkdir()
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    (source / "provisioner" / "__init__.py").write_text(f'"""Another version."""\n\n__version__ = "{version}"\n')
    return source


def unpacked(archive: Path, directory: Path) -> Path:
    """The bundle's directory, readable for everybody."""
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter="fully_trusted")
    return directory / archive.name.removesuffix(".tar.gz")
