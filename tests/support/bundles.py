"""Bundles as ``make dist`` makes them: from this source, from this source under another version, or with small
wheels."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.hosts import PYTHON, ROOT, python_version, tools
from tests.support.waiting import PATIENCE

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


def bundle(out: Path, pythons: Sequence[str] = ()) -> Path:
    """Return the archive of a new bundle, with wheels for these Pythons; if none is given, for the system's Python."""
    done = subprocess.run(
        [
            tools(),
            ROOT / "deploy" / "bundle" / "bundle.py",
            "--out",
            out,
            "--python",
            *(pythons or [python_version()]),
        ],
        env=os.environ | {"SOURCE_DATE_EPOCH": SECONDS},
        capture_output=True,
        text=True,
        check=False,
        timeout=280 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def shared(run: pytest.TempPathFactory, pythons: Sequence[str] = ()) -> Path:
    """Return the archive of this source's bundle. All processes of a run of pytest share it, and the first process
    makes it."""
    base = run.getbasetemp()
    whole = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    directory = whole / "bundles" / "-".join(["this", *pythons])
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(directory.glob("*.sha256")):  # they are written last
            bundle(directory, pythons)
    (archive,) = directory.glob("*.tar.gz")
    return archive


def unpacked(archive: Path, directory: Path) -> Path:
    """Unpack a bundle, and return its directory. Every user can read the directory."""
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter="fully_trusted")
    return directory / archive.name.removesuffix(".tar.gz")


def renewed(whole: Path, directory: Path, version: str) -> Path:
    """Return the directory of a copy of the bundle that has another version. The copy differs only in the texts that
    name the version."""
    made = shutil.copytree(whole, directory / f"hostfactory-provisioner-{version}")
    (wheel,) = (made / "wheelhouse").glob("hostfactory_provisioner-*.whl")
    before = wheel.name.split("-")[1]
    with (
        zipfile.ZipFile(wheel) as old,
        zipfile.ZipFile(wheel.with_name(wheel.name.replace(before, version)), "w") as new,
    ):
        for info in old.infolist():
            content = b"" if info.filename.endswith("/RECORD") else old.read(info)
            if info.filename.endswith(("provisioner/__init__.py", "/METADATA")):
                content = content.replace(before.encode(), version.encode(), 1)
            info.filename = info.filename.replace(f"-{before}.dist-info", f"-{version}.dist-info")
            new.writestr(info, content)
    wheel.unlink()
    (made / "VERSION").write_text(f"{version}\n")
    return sealed(made)


# --- with little in them ----------------------------------------------------------------------------------------------


def small(whole: Path, directory: Path, version: str) -> Path:
    """Return the directory of a bundle with small wheels.

    The wheels are programs that only print their version, TinyDB, and a compiled pip. install.sh installs such a bundle
    like any bundle, in a tenth of the time.
    """
    made = directory / f"hostfactory-provisioner-{version}"
    shutil.copytree(whole, made, ignore=shutil.ignore_patterns("*.whl"))
    (tinydb,) = (whole / "wheelhouse").glob("tinydb-*.whl")
    shutil.copy(tinydb, made / "wheelhouse")
    (pip,) = (whole / "wheelhouse").glob("pip-*.whl")
    _compiled(pip, made / "wheelhouse" / pip.name)
    _wheel(made / "wheelhouse", "hostfactory_provisioner", version, PROGRAMS)
    for name in ("scripts", "loop"):
        lock = f"tinydb=={tinydb.name.split('-')[1]} --hash=sha256:{_sum(tinydb)}\n"
        (made / "requirements" / f"{name}.lock").write_text(lock)
    (made / "VERSION").write_text(f"{version}\n")
    return sealed(made)


def sealed(directory: Path) -> Path:
    """Write the checksums of a bundle's files into SHA256SUMS, and return the bundle's directory."""
    (directory / "SHA256SUMS").unlink()
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    (directory / "SHA256SUMS").write_text("".join(f"{_sum(path)}  {path.relative_to(directory)}\n" for path in files))
    return directory


def packed(directory: Path) -> Path:
    """Pack a bundle's directory into an archive beside the directory, and return the archive."""
    archive = directory.with_name(f"{directory.name}.tar.gz")
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(directory, directory.name)
    return archive


PROGRAMS = {
    "provisioner/__init__.py": "__version__ = '{version}'\n",
    "provisioner/__main__.py": "print('provisioner {version}')\n",
    "hf_scripts/__init__.py": "",
    "hf_scripts/commands.py": "import tinydb\n",
}
"""Programs that a small bundle installs."""


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _wheel(wheelhouse: Path, name: str, version: str, files: Mapping[str, str]) -> None:
    """Write a wheel of these files."""
    about = f"{name}-{version}.dist-info"
    metadata = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(wheelhouse / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text.format(version=version))
        for path, text in metadata.items():
            wheel.writestr(f"{about}/{path}", text)


def _compiled(wheel: Path, target: Path) -> None:
    """Copy a wheel with bytecode in place of its Python sources. Otherwise Python compiles the sources in a zip at each
    import."""
    with TemporaryDirectory() as directory:
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(directory)
        options = ["-q", "-b", "--invalidation-mode", "unchecked-hash"]
        subprocess.run([PYTHON, "-m", "compileall", *options, directory], check=True, timeout=280 * PATIENCE)
        with zipfile.ZipFile(target, "w") as packed:
            for path in sorted(Path(directory).rglob("*")):
                if path.is_file() and path.suffix != ".py":
                    packed.write(path, path.relative_to(directory))
