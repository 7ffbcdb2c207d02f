"""Virtual environments with the built distribution and without access to this clone. They are made without
downloads."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Collection
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.hostfactory.provider import ROOT

OFFLINE = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")


def build_ours(directory: Path) -> Path:
    """Build this distribution's wheel from a copy of the source in ``directory``, and return the wheel's path."""
    source = directory / "source"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("provisioner", "hf_scripts"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    return build(source, directory / "wheels")


def build(source: Path, wheels: Path) -> Path:
    """Build the wheel of a source, and return the wheel's path."""
    before = {*wheels.glob("*")}
    _pip("wheel", *OFFLINE, "--no-build-isolation", "-w", wheels, source)
    (made,) = {*wheels.glob("*")} - before
    return made


def environment(directory: Path, wheels: Collection[Path], extras: Collection[str] = ()) -> Path:
    """Make a virtual environment with these wheels and with all packages that our distribution and ``extras`` require.
    Return its directory."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    _pip("--python", directory / "bin" / "python", "install", *OFFLINE, *wheels)
    site_packages = Path(sysconfig.get_path("purelib", vars={"base": str(directory)}))
    (ours,) = importlib.metadata.distributions(name="hostfactory-provisioner", path=[str(site_packages)])
    _copy_required(ours, frozenset(extras), site_packages, set())
    return directory


def _pip(*arguments: str | Path) -> None:
    """Run pip in Python's isolated mode, so that pip does not find our clone."""
    subprocess.run([sys.executable, "-I", "-m", "pip", *arguments], env={"PATH": os.environ["PATH"]}, check=True)


def _copy_required(
    distribution: importlib.metadata.Distribution, extras: Collection[str], site_packages: Path, done: set[object]
) -> None:
    """Copy the requirements of a distribution from the environment of the tests, because pip cannot download them."""
    for requirement in map(Requirement, distribution.requires or ()):
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            continue
        if (key := (requirement.name, frozenset(requirement.extras))) in done:
            continue
        done.add(key)
        is_ours = requirement.name == "hostfactory-provisioner"
        required = distribution if is_ours else importlib.metadata.distribution(requirement.name)
        if not is_ours:
            _copy(required, site_packages)
        _copy_required(required, requirement.extras, site_packages, done)


def _copy(distribution: importlib.metadata.Distribution, site_packages: Path) -> None:
    for file in distribution.files or ():
        if ".." not in file.parts and file.suffix != ".pyc":
            target = site_packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(distribution.locate_file(file), target)
