"""The lock files of the image and the bundle, which fix the version of each package. They fit the requirements of
setup.cfg, have hashes, and name no package index."""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "deploy" / "requirements"
WANTED = {"scripts": [], "loop": ["gke", "mig", "events"]}
"""The extras of setup.cfg that each lock is made for."""


def locked(name: str) -> dict[str, str]:
    """Return the version of each package in a lock file, by the package's name."""
    found = re.findall(r"(?m)^([\w.-]+)==([^\s;\\]+)", (LOCKS / f"{name}.lock").read_text())
    return {canonicalize_name(distribution): version for distribution, version in found}


def required(extras: list[str]) -> Iterator[Requirement]:
    """Yield the requirements in setup.cfg for these extras. If an extra names further extras, yield their requirements,
    too."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = [setup["options"]["install_requires"], *(setup["options.extras_require"][extra] for extra in extras)]
    for requirement in map(Requirement, filter(None, "\n".join(lines).splitlines())):
        if requirement.name == "hostfactory-provisioner":
            yield from required(sorted(requirement.extras))
        else:
            yield requirement


@pytest.mark.parametrize("name", sorted(WANTED))
def test_a_lock_was_made_of_what_setup_cfg_asks_for_now(name: str) -> None:
    """A lock file must have no package that setup.cfg no longer requires. Such a package would be installed, and would
    be in the SBOM."""
    entries = re.split(r"\n(?=[\w.-]+==)", (LOCKS / f"{name}.lock").read_text())
    made_of = {entry.partition("==")[0] for entry in entries if "hostfactory-provisioner (setup.cfg)" in entry}

    assert made_of == {canonicalize_name(requirement.name) for requirement in required(WANTED[name])}


@pytest.mark.parametrize("name", sorted(WANTED))
def test_a_lock_has_every_requirement_in_a_version_that_fits(name: str) -> None:
    wanted, versions = list(required(WANTED[name])), locked(name)

    assert wanted
    for requirement in wanted:
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


def test_the_build_s_lock_has_what_builds() -> None:
    wanted = [Requirement(line) for line in (LOCKS / "build.in").read_text().splitlines() if line[0] != "#"]

    assert {requirement.name for requirement in wanted} == {"setuptools", "pip", "packaging", "cyclonedx-bom"}
    assert all(requirement.specifier.contains(locked("build")[requirement.name]) for requirement in wanted)


def test_the_scripts_run_with_the_same_versions_as_the_loop() -> None:
    assert locked("scripts").items() <= locked("loop").items()


def test_the_scripts_lock_has_no_more_than_they_import() -> None:
    assert locked("scripts").keys() == {"tinydb"}


@pytest.mark.parametrize("name", ["build", *WANTED])
def test_each_version_has_its_hashes_and_no_line_names_a_host(name: str) -> None:
    text = re.sub(r"(?m)^\s*#.*\n", "", (LOCKS / f"{name}.lock").read_text())
    entries = re.split(r"\n(?=\S)", text.strip())

    assert len(entries) == len(locked(name))
    for entry in entries:
        assert re.fullmatch(r"[\w.-]+==\S+( ; [^\\\n]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+", entry), entry
    assert "://" not in (LOCKS / f"{name}.lock").read_text()
