"""A guest for all tests, because a start in pure emulation takes half a minute."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bundles import PARTS, bundle, sealed, unpacked
from tests.support.hosts import PYTHON, ROOT, python_version
from tests.support.waiting import PATIENCE
from tests.vm import build
from tests.vm.guest import Guest

NEWER = "9.9.9"


def without() -> str:
    """Return the programs that this machine lacks for these tests; empty if it has all."""
    lacking = build.lacking()
    if not lacking and python_version() != build.PYTHON:
        lacking = f"{PYTHON} of version {build.PYTHON}, as the guest has it"
    return lacking


def fill(drive: Path, directory: Path) -> None:
    """Make the drive for the guest's /opt on this machine, because the guest is slow.

    The drive gets this repository, two bundles and their installations.
    """
    content = directory / "opt"
    (content / "repo").mkdir(parents=True)
    for name in (*PARTS, "tests"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, content / "repo" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, content / "repo")
    # Emulation takes seconds to compile what a call imports; the guest has the same Python and believes this.
    _run(PYTHON, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", content / "repo")
    found = unpacked(bundle(directory / "dist"), directory)
    _run("env", "-i", found / "install.sh", "--root", directory / "host", "--python", PYTHON)
    shutil.move(found, content / "old")
    shutil.move(directory / "host" / "opt" / "provisioner" / "versions", content / "built")
    _renew(content)
    content.chmod(0o755)
    _run("mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-d", content, drive)
    shutil.rmtree(content)


def _renew(content: Path) -> None:
    """Write another version into a copy of the bundle and of its installation."""
    old, new = content / "old", shutil.copytree(content / "old", content / "new", symlinks=True)
    version = (old / "VERSION").read_text().strip()
    (new / "VERSION").write_text(f"{NEWER}\n")
    before, after = _digest(old), _digest(sealed(new))
    built = shutil.copytree(content / "built" / version, content / "built" / NEWER, symlinks=True)
    record = built / "installed"
    assert before in record.read_text()
    record.write_text(record.read_text().replace(before, after))
    (package,) = built.glob("lib/*/site-packages/provisioner/__init__.py")
    package.write_text(package.read_text().replace(f'"{version}"', f'"{NEWER}"'))
    _run(PYTHON, "-m", "compileall", "-q", "-f", package)


def _digest(directory: Path) -> str:
    """Return the digest by which install.sh identifies a bundle."""
    return hashlib.sha256((directory / "SHA256SUMS").read_bytes()).hexdigest()


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600 * PATIENCE)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


@pytest.fixture(scope="session")
def disk() -> Path:
    """Return the guest's disk and kernel. Without them, no test here can run."""
    if lacking := without():
        pytest.skip(f"needs {lacking}")
    try:
        return build.disk(os.environ)
    except build.NoMirrorError as error:
        pytest.skip(f"needs a mirror of Debian's: {error}")
    except build.BuildError as error:
        pytest.fail(str(error))


@pytest.fixture(scope="session")
def guest(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """Yield a guest with HostFactory's user. It starts while its drive is filled."""
    directory = tmp_path_factory.mktemp("guest")
    drive = directory / "opt.ext4"
    with drive.open("wb") as file:
        file.truncate(2 << 30)
    with Guest(disk, drive, directory) as made:
        fill(drive, tmp_path_factory.mktemp("drive"))
        made.serve()
        made.run("useradd --create-home egoadmin")
        yield made
