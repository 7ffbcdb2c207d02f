"""Make the bundle that installs a host without a package index (``make dist``).

The lock files name the wheels of other projects with their hashes. Two bundles from the same source and options have
the same bytes, because all files in a bundle get the same time (``epoch``).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "deploy" / "requirements"
SOURCE = ("pyproject.toml", "setup.cfg", "README.md", "LICENSE", "provisioner", "hf_scripts")
PYTHONS = ("3.11", "3.12", "3.13")
GLIBCS = ("2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")
"""Versions of glibc for which wheels are taken. These wheels run on RHEL 8 (glibc 2.28) and on newer systems."""

OLDEST = 315532800
"""The beginning of 1980 in epoch seconds: the earliest time that a zip file can contain."""


def epoch() -> int:
    """Return the time of all files in the bundle, in epoch seconds: SOURCE_DATE_EPOCH, or else the time of the last
    commit, or else the beginning of 1980."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if not given:
        log = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%ct"], capture_output=True, text=True)
        given = log.stdout.strip()
    return max(int(given or OLDEST), OLDEST)


def commit() -> str:
    """Return the part of our version that names the git commit; empty outside of a git clone. The ending ``.dirty``
    means that files differ from the commit.

    The part begins with the minute of ``epoch``, so that rpm and pip sort a later build after an earlier one.
    """
    command = ["git", "-C", ROOT, "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=.dirty"]
    described = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return described and f"+{time.strftime('%Y%m%d%H%M', time.gmtime(epoch()))}.g{described}"


def pip(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"], check=True)


def build_wheel(wheelhouse: Path, seconds: int) -> str:
    """Build our own wheel and return its version. The build uses a copy, because setuptools leaves files beside the
    sources."""
    os.environ["SOURCE_DATE_EPOCH"] = str(seconds)
    with tempfile.TemporaryDirectory() as directory:
        for name in SOURCE:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, Path(directory, name), ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, directory)
        package = Path(directory, "provisioner", "__init__.py")
        package.write_text(re.sub(r'(?m)^(__version__ = "[^"]*)', rf"\g<1>{commit()}", package.read_text()))
        pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheelhouse, directory)
    (wheel,) = wheelhouse.glob("hostfactory_provisioner-*.whl")
    return wheel.name.split("-")[1]


def locked(name: str, python: str, machine: str) -> Iterator[str]:
    """Yield those requirements in a lock file that apply to the Python version ``python``. Conditions of the
    requirements are removed, because pip would test them for the Python that runs pip."""
    place = {"python_version": python, "python_full_version": f"{python}.0", "implementation_name": "cpython"}
    place |= {"platform_python_implementation": "CPython", "platform_machine": machine}
    place |= {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    lines = re.sub(r"(?m)^\s*#.*\n", "", (LOCKS / f"{name}.lock").read_text()).replace("\\\n", " ").splitlines()
    for line in filter(str.strip, lines):
        text, *hashes = line.split(" --hash=")
        requirement = Requirement(text.strip())
        if requirement.marker is None or requirement.marker.evaluate(place):
            requirement.marker = None
            yield " --hash=".join((str(requirement), *map(str.strip, hashes)))


def download(requirements: list[str], wheelhouse: Path, python: str, machine: str) -> None:
    """Download the wheels of these requirements for one version of Python."""
    platforms = [f"manylinux_{glibc}_{machine}" for glibc in GLIBCS] + [f"manylinux2014_{machine}", f"linux_{machine}"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(requirements))
        file.flush()
        pip(
            *("download", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--dest", wheelhouse),
            *("--python-version", python, "--implementation", "cp", "--requirement", file.name),
            *(f"--platform={platform}" for platform in platforms),
        )


def stage(bundle: Path, options: argparse.Namespace) -> None:
    """Put all files of the bundle into the directory ``bundle``, with a file of their checksums."""
    wheelhouse = bundle / "wheelhouse"
    wheelhouse.mkdir(parents=True)
    version = build_wheel(wheelhouse, options.epoch)
    for python in options.python:
        for name in ("scripts", "loop"):
            download(list(locked(name, python, options.machine)), wheelhouse, python, options.machine)
    installer = [line for line in locked("build", options.python[0], options.machine) if line.startswith("pip==")]
    download(installer, wheelhouse, options.python[0], options.machine)
    for name in ("scripts", "loop"):
        copy(LOCKS / f"{name}.lock", bundle / "requirements" / f"{name}.lock")
    for name in ("install.sh", "provisioner", "provisioner.spec"):
        copy(ROOT / "deploy" / "bundle" / name, bundle / name)
    shutil.copytree(ROOT / "deploy" / "vm", bundle / "vm")
    shutil.copytree(ROOT / "deploy" / "symphony", bundle / "share" / "symphony")
    shutil.copytree(ROOT / "config", bundle / "share" / "config")
    for name in ("LICENSE", "CHANGELOG.md"):
        copy(ROOT / name, bundle / "share" / name)
    (bundle / "VERSION").write_text(f"{version}\n")
    (bundle / "PYTHONS").write_text(" ".join(options.python) + "\n")
    (bundle / "MACHINE").write_text(f"{options.machine}\n")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(bundle)}" for path in files(bundle)]
    (bundle / "SHA256SUMS").write_text("\n".join(sums) + "\n")


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def pack(bundle: Path, archive: Path, seconds: int) -> None:
    """Pack the bundle into one file. The bytes of this file do not depend on the user or on the present time."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in files(bundle):
            entry = tarfile.TarInfo(str(Path(bundle.name, path.relative_to(bundle))))
            entry.size, entry.mtime = path.stat().st_size, seconds
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            with path.open("rb") as file:
                tar.addfile(entry, file)
    with archive.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=seconds) as compressed:
        compressed.write(packed.getvalue())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "dist", metavar="DIR", help="default: build/dist")
    parser.add_argument("--python", nargs="+", default=PYTHONS, metavar="X.Y", help=f"default: {' '.join(PYTHONS)}")
    parser.add_argument("--machine", default="x86_64", help="default: x86_64")
    options = parser.parse_args()
    options.epoch = epoch()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        bundle = Path(directory, "bundle")
        stage(bundle, options)
        named = bundle.rename(bundle.with_name(f"hostfactory-provisioner-{(bundle / 'VERSION').read_text().strip()}"))
        archive = options.out / f"{named.name}.tar.gz"
        pack(named, archive, options.epoch)
    (options.out / f"{archive.name}.sha256").write_text(
        f"{hashlib.sha256(archive.read_bytes()).hexdigest()}  {archive.name}\n"
    )
    print(archive)


if __name__ == "__main__":
    main()
