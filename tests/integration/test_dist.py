"""``make dist``: one file with all that a host without a package index needs, the same bytes each time; and its RPM."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.bundles import bundle, unpacked
from tests.support.hosts import PYTHON, ROOT, tools

pytestmark = pytest.mark.slow

NO_INDEX = {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def directory(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(archive, tmp_path_factory.mktemp("unpacked"))


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=280
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


@pytest.mark.parametrize("name", ["scripts", "loop"])
def test_a_lock_is_installed_from_the_wheels_alone(name: str, directory: Path, tmp_path: Path) -> None:
    made = run(PYTHON, "-m", "venv", "--without-pip", tmp_path / "clean")
    assert made.returncode == 0, made.stderr
    done = run(
        *(tools(), "-m", "pip", "--python", tmp_path / "clean" / "bin" / "python", "install", "--no-index"),
        *("--find-links", directory / "wheelhouse", "--require-hashes"),
        *("--requirement", directory / "requirements" / f"{name}.lock"),
        **NO_INDEX,
    )
    listed = run(tools(), "-m", "pip", "--python", tmp_path / "clean" / "bin" / "python", "list", "--format=json")

    assert done.returncode == 0, done.stderr
    assert {part["name"] for part in json.loads(listed.stdout)} >= {"tinydb"}
    assert (tmp_path / "clean" / "bin" / "pip").exists() is False


def test_a_wheel_that_was_changed_is_not_installed(directory: Path, tmp_path: Path) -> None:
    wheels = shutil.copytree(directory / "wheelhouse", tmp_path / "wheels")
    (wheel,) = wheels.glob("tinydb-*.whl")
    wheel.write_bytes(wheel.read_bytes() + b"\n")
    done = run(
        *(tools(), "-m", "pip", "download", "--no-index", "--find-links", wheels, "--dest", tmp_path / "out"),
        *("--require-hashes", "--requirement", directory / "requirements" / "scripts.lock"),
        **NO_INDEX,
    )

    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stderr


@pytest.mark.skipif(shutil.which("rpmbuild") is None, reason="needs rpmbuild (Debian package rpm)")
def test_the_bundle_is_built_into_an_rpm(archive: Path, directory: Path, tmp_path: Path) -> None:
    version = (directory / "VERSION").read_text().strip()
    defined = {"version_": version, "_topdir": str(tmp_path), "python": PYTHON, "_binary_payload": "w1.gzdio"}
    options = [word for name, value in defined.items() for word in ("--define", f"{name} {value}")]
    built = run("rpmbuild", "-tb", archive, "--nodeps", "--quiet", *options)
    assert built.returncode == 0, built.stderr
    (package,) = tmp_path.glob("RPMS/*/*.rpm")
    listed = run("rpm", "--query", "--package", package, "--list", "--dbpath", tmp_path / "db").stdout.splitlines()
    scripts = run("rpm", "--query", "--package", package, "--scripts", "--dbpath", tmp_path / "db").stdout

    prefix = "/opt/provisioner"
    assert {
        f"{prefix}/bin/provisioner",
        f"{prefix}/current",
        f"{prefix}/hf_scripts",
        f"{prefix}/versions/{version}/installed",
        "/usr/lib/systemd/system/provisioner.service",
    } <= set(listed)
    assert f"{prefix}/.lock" not in listed
    assert not any(str(tmp_path) in line for line in listed)
    assert "systemd-sysusers /usr/lib/sysusers.d/provisioner.conf" in scripts
