"""One guest for all tests: a start in pure emulation takes half a minute."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bundles import PARTS, bundle, of_version, unpacked
from tests.support.hosts import PYTHON, ROOT, python_version
from tests.support.waiting import PATIENCE
from tests.vm import build
from tests.vm.guest import Guest

NEWER = "9.9.9"


def without() -> str:
    """What this machine lacks for these tests; empty when nothing."""
    lacking = build.lacking()
    if not lacking and python_version() != build.PYTHON:
        lacking = f"{PYTHON} of version {build.PYTHON}, as the guest has it"
    return lacking


@pytest.fixture(scope="session")
def drive(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guest's /opt: this repository, two bundles, and what install.sh builds of them: emulation takes minutes."""
    directory = tmp_path_factory.mktemp("drive")
    content = directory / "opt"
    (content / "repo").mkdir(parents=True)
    for name in (*PARTS, "tests"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, content / "repo" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, content / "repo")
    # Emulation takes seconds to compile what a call imports; the guest has the same Python and believes this.
    _run(PYTHON, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", content / "repo")
    (directory / "dist").mkdir()
    for name, source in (("old", ROOT), ("new", of_version(NEWER, directory))):
        found = unpacked(bundle(directory / "dist" / name, source), directory)
        _run("env", "-i", found / "install.sh", "--root", directory / "host", "--python", PYTHON)
        shutil.move(found, content / name)
    shutil.move(directory / "host" / "opt" / "provisioner" / "versions", content / "built")
    content.chmod(0o755)
    image = directory / "opt.ext4"
    _run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", content, image, "2G")
    shutil.rmtree(content)
    return image


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600 * PATIENCE)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


@pytest.fixture(scope="session")
def disk() -> Path:
    """The guest's disk and kernel; without them nothing here runs."""
    if lacking := without():
        pytest.skip(f"needs {lacking}")
    try:
        return build.disk(os.environ)
    except build.NoMirrorError as error:
        pytest.skip(f"needs a mirror of Debian's: {error}")
    except build.BuildError as error:
        pytest.fail(str(error))


@pytest.fixture(scope="session")
def guest(disk: Path, drive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A guest with HostFactory's user."""
    with Guest(disk, drive, tmp_path_factory.mktemp("guest")) as made:
        made.run("useradd --create-home egoadmin")
        yield made
