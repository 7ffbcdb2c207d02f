"""The launchers of scripts and loop, under a Python that is too old, and under EGO's profile.

Their error names the old Python, the required version, and the setting to change. The launchers do not use EGO's
libraries.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broken_libraries import broken_libraries
from tests.support.hostfactory.provider import COMMANDS, SCRIPTS, HostFactory
from tests.support.hosts import ROOT, other_python
from tests.support.waiting import PATIENCE

ADVICE = "set HF_PYTHON to the Python that hostfactory-provisioner is installed for"
PROGRAM = re.findall(r"exec \"\$python\" -I -c '\n(.*)' \"\$root\"", (SCRIPTS / "python").read_text(), re.DOTALL)[0]
"""The program that the launcher gives to Python, of any version."""


def posing_as(version: tuple[int, int, int], path: Path) -> Path:
    """Return the path of a Python that reports an older version than it has."""
    pose = f"import sys; sys.version_info = {(*version, 'final', 0)}; sys.executable = {str(path)!r}"
    path.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -I -c "{pose}; exec(sys.argv.pop(1))" "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("version", [(3, 6, 8), (3, 10, 14)], ids=["RHEL 8's", "the last"])
def test_a_python_that_is_too_old_is_named_with_the_one_needed(version: tuple[int, int, int], tmp_path: Path) -> None:
    hf = HostFactory(tmp_path)
    python = posing_as(version, tmp_path / "python3")
    environment = hf.environment | {"HF_PYTHON": str(python)}
    refusal = hf.run(hf.command("getAvailableTemplates", {}), environment=environment).refusal
    number = ".".join(map(str, version))
    needed = "3.11 or newer is needed (RHEL 8 and 9: dnf install python3.11)"
    assert refusal == f"{python}: is Python {number}, and {needed}: {ADVICE}"


@pytest.mark.parametrize("version", ["3.6", "3.9"])
@pytest.mark.parametrize("script", ["getAvailableTemplates", "requestMachines", "check_install"])
def test_a_real_old_python_says_so_and_nothing_else(version: str, script: str, tmp_path: Path) -> None:
    hf, python = HostFactory(tmp_path), other_python(version)
    program = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
    number = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    words = [SCRIPTS / f"{script}.sh", *([] if script == "check_install" else ["{}"])]
    environment = hf.environment | {"HF_PYTHON": python}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60 * PATIENCE)
    needed = "3.11 or newer is needed (RHEL 8 and 9: dnf install python3.11)"
    message = f"{python}: is Python {number}, and {needed}: {ADVICE}"
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == ("fix: " if script == "check_install" else "") + message + "\n"


def test_a_python_that_is_new_enough_answers(tmp_path: Path) -> None:
    hf = HostFactory(tmp_path)
    python = posing_as((3, 11, 0), tmp_path / "python3")
    environment = hf.environment | {"HF_PYTHON": str(python)}
    assert hf.run(hf.command("getAvailableTemplates", {}), environment=environment).document["templates"]


def test_an_old_python_can_read_what_it_is_given_to_run() -> None:
    ast.parse(PROGRAM, feature_version=(3, 6))
    with pytest.raises(SyntaxError):
        ast.parse("if (n := 1):\n    pass\n" + PROGRAM, feature_version=(3, 6))


# --- under EGO's profile ----------------------------------------------------------------------------------------------


@pytest.fixture
def libraries(tmp_path: Path) -> str:
    """Return a directory with broken libraries. A program with this directory in LD_LIBRARY_PATH cannot start."""
    return broken_libraries(tmp_path / "broken")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_script_starts_without_ego_s_libraries(name: str, libraries: str, tmp_path: Path) -> None:
    """A script must start without EGO's libraries. Call it also through a link, because it then starts programs of the
    system to follow the link."""
    hf = HostFactory(tmp_path)
    link = tmp_path / "link.sh"
    link.symlink_to(SCRIPTS / f"{name}.sh")
    document = {"requestMachines": '{"template": {"templateId": "T1", "machineCount": 1}}'}.get(name, "{}")
    plain = hf.run([str(SCRIPTS / f"{name}.sh"), document])
    for script in (SCRIPTS / f"{name}.sh", link):
        called = hf.run([str(script), document], environment=hf.environment | {"LD_LIBRARY_PATH": libraries})
        assert (called.code, called.err) == (plain.code, "")
        assert "requestId" in called.out if name == "requestMachines" else called.out == plain.out


def test_the_check_of_an_installation_starts_without_ego_s_libraries(libraries: str, tmp_path: Path) -> None:
    hf = HostFactory(tmp_path)
    environment = hf.environment | {"LD_LIBRARY_PATH": libraries}
    done = subprocess.run(
        [SCRIPTS / "check_install.sh"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60 * PATIENCE,
    )
    assert (done.stderr, done.stdout.count(": answers")) == ("", 5)


def test_the_bundle_s_command_and_what_it_starts_are_without_what_ego_s_profile_exports(
    libraries: str, tmp_path: Path
) -> None:
    """The bundle's command must not pass on the variables that EGO's profile exports. This includes the variables about
    Python, because a plug-in of a kubeconfig may be a Python program."""
    places = tmp_path / "bin"
    places.mkdir()
    command = Path(shutil.copy(ROOT / "deploy" / "bundle" / "provisioner", places))
    (places / "python").write_text(f'#!/bin/sh\nenv >"{tmp_path}/given"\nexec {sys.executable} -c "import ssl, zlib"\n')
    (places / "python").chmod(0o755)
    exported = {"LD_LIBRARY_PATH": libraries, "PYTHONPATH": "/opt/ibm/lib64", "PYTHONHOME": "/opt/ibm"}
    subprocess.run([command, "--version"], env=os.environ | exported, check=True, timeout=60 * PATIENCE)
    given = (tmp_path / "given").read_text()
    assert [name for name in exported if f"{name}=" in given] == []


def test_a_python_that_needs_a_library_path_of_its_own_may_be_a_script(libraries: str, tmp_path: Path) -> None:
    hf = HostFactory(tmp_path)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH=/own exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    environment = hf.environment | {"HF_PYTHON": str(python), "LD_LIBRARY_PATH": libraries}
    assert hf.run(hf.command("getAvailableTemplates", {}), environment=environment).document["templates"]
