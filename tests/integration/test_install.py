"""install.sh of a bundle, run by a user without rights below a root of its own: in, up, back and out."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from tests.support.bundles import bundle, of_version, unpacked
from tests.support.hosts import NOBODY, PYTHON, ROOT, as_nobody

INSTALLER = ROOT / "deploy" / "bundle" / "install.sh"
PREFIX = "opt/provisioner"


class Bundles(NamedTuple):
    """This source's bundle, and one of a later version."""

    old: Path
    new: Path


@pytest.fixture(scope="module")
def bundles() -> Iterator[Bundles]:
    with open_directory() as directory:
        source = of_version("9.9.9", directory)
        archives = bundle(directory / "old"), bundle(directory / "new", source)
        yield Bundles(*(unpacked(archive, directory) for archive in archives))


@contextlib.contextmanager
def open_directory() -> Iterator[Path]:
    """One that the user without rights gets to; pytest's own are closed to him."""
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture
def root() -> Iterator[Path]:
    """An empty root that the user without rights may write to."""
    with open_directory() as directory:
        made = directory / "root"
        made.mkdir()
        if os.geteuid() == 0:
            os.chown(made, NOBODY, NOBODY)
        yield made


def install(
    directory: Path, *arguments: str, root: Path | None, python: str = PYTHON
) -> subprocess.CompletedProcess[str]:
    """Calls install.sh of a bundle as the user without rights, with nothing in the environment."""
    words = [*arguments, *(["--root", str(root)] if root else []), *(["--python", python] if python else [])]
    command = as_nobody(directory / "install.sh", *words)
    return subprocess.run(
        ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", *command],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


def done(directory: Path, *arguments: str, root: Path) -> str:
    """What install.sh printed; it has to have done it."""
    ended = install(directory, *arguments, root=root)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def version_of(root: Path) -> str:
    """What the installed command says of itself, called as the service calls it."""
    command = as_nobody(root / PREFIX / "bin" / "provisioner", "--version")
    ended = subprocess.run(["env", "-i", *command], cwd="/", capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()[1]


def answered(root: Path) -> list[str]:
    """The templates that the installed script answers with, called as HostFactory calls it."""
    conf = root / "etc" / "hostfactory" / "examples" / "demoinst"
    work = root / "work"
    if not work.exists():
        work.mkdir()
        work.chmod(0o777)
    script = root / PREFIX / "hf_scripts" / "getAvailableTemplates.sh"
    variables = ["HF_PROVIDER_NAME=demoinst", f"HF_PROVIDER_CONFDIR={conf}", f"HF_PROVIDER_WORKDIR={work}"]
    ended = subprocess.run(
        ["env", "-i", *variables, *as_nobody(script, "{}")],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    return [template["templateId"] for template in json.loads(ended.stdout)["templates"]]


def versions(root: Path) -> list[str]:
    return sorted(path.name for path in (root / PREFIX / "versions").iterdir())


# --- usage, without a bundle ------------------------------------------------------------------------------------------


def usage(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([INSTALLER, *arguments], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["remove"], "remove: unknown argument"),
        (["--prefix"], "--prefix: expects a value"),
        (["--prefix", "opt"], "--prefix: expected an absolute path other than /, got 'opt'"),
        (["--prefix", "/"], "--prefix: expected an absolute path other than /, got ''"),
        (["--prefix", "/opt/my place"], "--prefix: expected letters, digits and any of -_./+, got '/opt/my place'"),
        (["--root", "here"], "--root: expected an absolute path, got 'here'"),
        (["--hf-user", "a b"], "--hf-user: expected a user's name, got 'a b'"),
    ],
)
def test_a_wrong_argument_is_named(arguments: list[str], words: str) -> None:
    ended = usage(*arguments)

    assert ended.returncode == 2
    assert ended.stderr.splitlines()[0] == f"install.sh: {words}"


def test_help_names_every_command() -> None:
    ended = usage("--help")

    assert (ended.returncode, ended.stderr) == (0, "")
    for command in ("install", "upgrade", "rollback", "uninstall", "status"):
        assert f"  {command} " in ended.stdout


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("status", 0, "nothing is installed"),
        ("uninstall", 0, "nothing is installed"),
        ("rollback", 1, "nothing is installed"),
        ("upgrade", 1, "nothing is installed to upgrade: run install.sh without a command"),
    ],
)
def test_where_nothing_is_installed_a_command_says_so(command: str, code: int, words: str, tmp_path: Path) -> None:
    ended = usage(command, "--root", str(tmp_path))

    assert ended.returncode == code
    assert words in ended.stdout + ended.stderr
    assert list(tmp_path.iterdir()) == []


# --- with one ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_version_is_installed_upgraded_taken_back_and_removed(bundles: Bundles, root: Path) -> None:
    state = root / "var" / "lib" / "hostfactory" / "intent.json"
    state.parent.mkdir(parents=True)
    state.write_text("{}")
    old = (bundles.old / "VERSION").read_text().strip()

    printed = done(bundles.old, root=root)
    assert (
        f"Version {old} runs from now on: scriptPath of HostFactory's plug-in is /opt/provisioner/hf_scripts/"
        in printed
    )
    assert (version_of(root), answered(root)) == (old, ["GkePod", "GceVm", "Mixed"])
    unit = (root / "usr/lib/systemd/system/provisioner.service").read_text()
    assert "ExecStart=/opt/provisioner/bin/provisioner run" in unit

    example = root / "etc/hostfactory/examples/demoinst/provisioner.yaml"
    mine = example.read_text() + "# mine\n"
    example.write_text(mine)
    assert f"Version {old} is built already" in done(bundles.old, root=root)
    assert f"{example}: left as it is, yours" in done(bundles.new, "upgrade", root=root)
    assert (version_of(root), answered(root)) == ("9.9.9", ["GkePod", "GceVm", "Mixed"])
    assert versions(root) == [old, "9.9.9"]
    assert f"rollback goes to {old}" in done(bundles.new, "status", root=root)

    done(bundles.new, "rollback", root=root)
    assert (version_of(root), versions(root)) == (old, [old, "9.9.9"])
    done(bundles.new, "rollback", root=root)
    assert version_of(root) == "9.9.9"

    done(bundles.new, "uninstall", root=root)
    assert not (root / PREFIX).exists()
    assert not (root / "usr/lib/systemd/system/provisioner.service").exists()
    assert (example.read_text(), state.read_text()) == (mine, "{}")


@pytest.mark.slow
def test_nothing_names_the_place_where_it_was_made_and_all_may_read_it(bundles: Bundles, root: Path) -> None:
    done(bundles.old, "--scripts-only", "--prefix", "/apps/provisioner", root=root)
    tree = root / "apps" / "provisioner"
    named = [path for path in tree.rglob("*") if path.is_file() and str(root).encode() in path.read_bytes()]
    closed = [path for path in tree.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o044 != 0o044]

    assert named == []
    assert [path.name for path in closed] == []
    assert not (root / "usr").exists()  # no loop: no service


@pytest.mark.slow
def test_the_user_that_the_loop_shares_its_group_with_and_the_prefix_are_those_given(
    bundles: Bundles, root: Path
) -> None:
    done(bundles.old, "--hf-user", "sym.admin", "--prefix", "/apps/p", root=root)

    assert "m sym.admin hostfactory" in (root / "usr/lib/sysusers.d/provisioner.conf").read_text()
    assert "ExecStart=/apps/p/bin/provisioner run" in (root / "usr/lib/systemd/system/provisioner.service").read_text()


@pytest.mark.slow
def test_a_rehearsal_changes_nothing(bundles: Bundles, root: Path) -> None:
    printed = done(bundles.old, "--dry-run", root=root)
    assert "would build: " in printed
    assert "runs from now on" not in printed
    assert list(root.iterdir()) == []

    done(bundles.old, "--scripts-only", root=root)
    before = sorted(path for path in root.rglob("*"))
    for command in ("upgrade", "uninstall"):
        assert "would " in done(bundles.new, command, "--scripts-only", "--dry-run", root=root)
    assert sorted(path for path in root.rglob("*")) == before


@pytest.mark.slow
def test_what_cannot_be_done_is_said_before_anything_is_changed(bundles: Bundles, root: Path) -> None:
    old_python = root.parent / "python3"
    old_python.write_text("#!/bin/sh\necho 3.6 False\n")
    old_python.chmod(0o755)
    changed = shutil.copytree(bundles.old, root.parent / "changed")
    (changed / "requirements" / "scripts.lock").write_text("")
    if os.geteuid() == 0:
        os.chown(changed, NOBODY, NOBODY)
    needed = "Python 3.11 or newer is needed (RHEL 8 and 9: dnf install python3.11); name it with --python"
    for directory, python, place, words in (
        (bundles.old, str(old_python), root, f"{old_python}: is Python 3.6: {needed}"),
        (bundles.old, "/no/such/python", root, f"/no/such/python: no such program: {needed}"),
        (changed, PYTHON, root, f"{changed}: is not what was packed (see above): unpack the bundle again"),
        (bundles.old, PYTHON, Path("/proc"), "run as root, or name a place of yours with --prefix"),
    ):
        ended = install(directory, root=place, python=python)
        assert ended.returncode == 1
        assert ended.stderr.splitlines()[-1].endswith(words), ended.stderr
        assert list(root.iterdir()) == []


@pytest.mark.slow
def test_another_build_of_the_same_version_gets_a_place_of_its_own(bundles: Bundles, root: Path) -> None:
    """What runs is never changed under whoever runs it."""
    version = (bundles.old / "VERSION").read_text().strip()
    done(bundles.old, "--scripts-only", root=root)
    done(bundles.old, root=root)

    assert versions(root) == [version, f"{version}-2"]
    assert version_of(root) == version


# --- killed -----------------------------------------------------------------------------------------------------------


CHANGES = re.compile(r"\+ (env|ln|mv|rm|cp|sed|sync|\S+ -m) (?!.*/etc/)")
"""A line of the trace before a command that changes something below PREFIX."""


def killed(directory: Path, root: Path, change: int) -> bool:
    """Kills install.sh with all its children at the n-th change; False when there are fewer."""
    words = as_nobody("sh", "-x", directory / "install.sh", "--scripts-only", "--root", root, "--python", PYTHON)
    process = subprocess.Popen(
        words, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    seen = 0
    with process.stderr as trace:
        for line in trace:
            assert not line.startswith("install.sh: "), line
            seen += bool(CHANGES.match(line))
            if seen == change:
                os.killpg(process.pid, signal.SIGKILL)
                break
    return process.wait(60) != 0


def scripts_version(root: Path) -> str:
    """The version of the scripts that run now; all that they import has to be there."""
    program = "import hf_scripts.commands, provisioner; print(provisioner.__version__)"
    command = as_nobody(root / PREFIX / "current" / "bin" / "python", "-I", "-c", program)
    ended = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.mark.slow
def test_killed_at_any_change_the_old_version_or_the_new_one_runs_and_a_rerun_goes_on(
    bundles: Bundles, root: Path
) -> None:
    done(bundles.old, "--scripts-only", root=root)
    old = (bundles.old / "VERSION").read_text().strip()
    prefix, kept = root / PREFIX, root.parent / "kept"
    subprocess.run(["cp", "-a", prefix, kept], check=True)
    seen: list[str] = []
    change = 1
    while killed(bundles.new, root, change):
        change += 1
        seen.append(scripts_version(root))
        done(bundles.new, "--scripts-only", root=root)
        assert (scripts_version(root), versions(root)) == ("9.9.9", [old, "9.9.9"])
        left = {path.name for path in prefix.iterdir()}
        assert left == {".lock", "bin", "current", "hf_scripts", "previous", "share", "versions"}
        shutil.rmtree(prefix)
        subprocess.run(["cp", "-a", kept, prefix], check=True)

    assert {old, "9.9.9"} == set(seen)
