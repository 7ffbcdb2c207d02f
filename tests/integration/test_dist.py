"""``make dist`` makes one file with all that a host without a package index needs. Each run makes the same bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.version import Version

from tests.support.bundles import bundle, shared, unpacked
from tests.support.hosts import ROOT, other_python, python_version, tools
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
"""The tests are slow because they download packages from a package index."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared(tmp_path_factory)


@pytest.fixture(scope="module")
def directory(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(archive, tmp_path_factory.mktemp("unpacked"))


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=280 * PATIENCE
    )


def test_the_same_source_gives_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    again = bundle(tmp_path / "again")

    assert again.name == archive.name
    assert again.read_bytes() == archive.read_bytes()


def test_the_sums_are_those_of_every_file(archive: Path, directory: Path) -> None:
    sums = dict(reversed(line.split("  ")) for line in (directory / "SHA256SUMS").read_text().splitlines())
    files = {str(path.relative_to(directory)): path for path in directory.rglob("*") if path.is_file()}
    (published,) = archive.with_name(f"{archive.name}.sha256").read_text().splitlines()

    assert sums.keys() == files.keys() - {"SHA256SUMS"}
    assert all(hashlib.sha256(files[name].read_bytes()).hexdigest() == value for name, value in sums.items())
    assert published == f"{hashlib.sha256(archive.read_bytes()).hexdigest()}  {archive.name}"


def test_it_holds_no_path_and_no_host_of_whoever_made_it(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file() and path.suffix != ".whl":
            assert str(ROOT) not in path.read_text(), path


NEWER = ("3.12", "3.13")
"""Versions of Python for a bundle. RHEL 9.4 and later have a package of 3.12."""


def test_a_host_that_has_a_newer_python_alone_is_installed_on(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    python = other_python(NEWER[-1])
    newer = unpacked(shared(tmp_path_factory, pythons=NEWER), tmp_path)
    done = run(newer / "install.sh", "--root", tmp_path / "root", "--python", python)
    assert (done.returncode, done.stderr) == (0, "")
    checked = run(tmp_path / "root" / "opt" / "provisioner" / "bin" / "provisioner", "check", tmp_path)

    assert f"for Python {NEWER[-1]} ..." in done.stdout
    assert (checked.returncode, "Traceback" in checked.stderr) == (2, False)


def test_a_python_that_the_bundle_has_no_wheels_for_is_named_with_those_that_it_has(
    directory: Path, tmp_path: Path
) -> None:
    python = other_python(NEWER[-1])
    done = run(directory / "install.sh", "--root", tmp_path / "root", "--python", python)

    wheels = f"is Python {NEWER[-1]}, and the bundle has wheels for {python_version()}: name one of these with --python"
    assert (done.returncode, done.stderr) == (1, f"install.sh: {python}: {wheels}\n")
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("target", ["dist", "sbom", "setup"])
def test_where_python3_is_too_old_make_says_so_and_leaves_no_environment_of_it(target: str, tmp_path: Path) -> None:
    """Run make with an old Python, as on a workstation with RHEL 9. A leftover environment would break the next try."""
    for name in ("setup.cfg", "pyproject.toml", "deploy/requirements/build.lock"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    done = run("make", "-C", tmp_path, "-f", ROOT / "Makefile", f"PYTHON={other_python('3.9')}", target)

    assert done.returncode == 2
    assert done.stderr.startswith("Python 3.11 or newer is needed, this is 3.9.")
    assert "; try make PYTHON=python3.12\n" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"setup.cfg", "pyproject.toml", "deploy"}


def test_make_dist_has_wheels_for_every_python_that_the_page_names() -> None:
    page = " ".join((ROOT / "docs" / "deploy-host.md").read_text().split())
    program = "import bundle; print(*bundle.PYTHONS)"
    printed = run(tools(), "-c", program, PYTHONPATH=str(ROOT / "deploy" / "bundle")).stdout.split()

    assert len(printed) == 3
    assert f"Python {', '.join(printed[:-1])} or {printed[-1]}" in page


def test_pip_and_rpm_order_the_versions_of_two_builds_by_time_and_not_by_commit() -> None:
    minutes = ("1700000000", "1700000060", "1800000000")
    program = "import bundle; print(bundle.commit())"
    made = [
        run(tools(), "-c", program, SOURCE_DATE_EPOCH=one, PYTHONPATH=str(ROOT / "deploy" / "bundle"))
        for one in minutes
    ]
    first, second, last = (f"0.1.0{one.stdout.strip()}".partition(".g")[0] for one in made)
    assert (first, second) == ("0.1.0+202311142213", "0.1.0+202311142214")
    builds = ["0.1.0", f"{first}.gfff0", f"{second}.gaaa0", f"{last}.gaaa0", "0.1.1"]
    assert sorted(builds, key=Version) == builds
    if shutil.which("rpm"):
        words = [f'rpm.vercmp("{one}", "{two}")' for one, two in pairwise(builds)]
        assert run("rpm", "--eval", f"%{{lua:print({', '.join(words)})}}").stdout.split() == ["-1"] * len(words)
