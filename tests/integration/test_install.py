"""install.sh of a bundle: install, upgrade, rollback and uninstall. A user without rights runs it on a directory that
stands for the host's root."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broken_libraries import broken_libraries
from tests.support.bundles import sealed, small
from tests.support.hosts import PYTHON, ROOT, UNPRIVILEGED_USER, as_unprivileged, python_version
from tests.support.installs import PREFIX, Bundles, both_bundles, done, install, open_directory, open_root, versions
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.timeout(900)
"""The tests may take long because they download packages from a package index."""

INSTALLER = ROOT / "deploy" / "bundle" / "install.sh"
UNIT, LOGROTATE = "usr/lib/systemd/system/provisioner.service", "etc/logrotate.d/provisioner"
BOTH_LOGS = 2
"""The number of logs: that of the scripts, and that of the loop under EGO."""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundles]:
    with both_bundles(tmp_path_factory) as made:
        yield made


@pytest.fixture(scope="module")
def small_bundles(bundles: Bundles) -> Iterator[Bundles]:
    """Yield two bundles with few packages. Tests of install.sh then need not wait for pip and the compiler."""
    with open_directory() as directory:
        yield Bundles(*(small(bundles.old, directory, version) for version in ("1.0.0", "9.9.9")))


@pytest.fixture
def root() -> Iterator[Path]:
    with open_root() as made:
        yield made


def version_of(root: Path) -> str:
    """Call the installed command as the service does, and return the version that it prints."""
    command = as_unprivileged(root / PREFIX / "bin" / "provisioner", "--version")
    ended = subprocess.run(
        ["env", "-i", *command], cwd="/", capture_output=True, text=True, check=False, timeout=60 * PATIENCE
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()[1]


# --- usage, without a bundle ------------------------------------------------------------------------------------------


def usage(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([INSTALLER, *arguments], capture_output=True, text=True, check=False, timeout=60 * PATIENCE)


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
        ("status", 0, "no version is installed"),
        ("uninstall", 0, "no version is installed"),
        ("rollback", 1, "no version is installed"),
        ("upgrade", 1, "no version is installed to upgrade: run install.sh without a command"),
    ],
)
def test_where_nothing_is_installed_a_command_says_so(command: str, code: int, words: str, tmp_path: Path) -> None:
    ended = usage(command, "--root", str(tmp_path))

    assert ended.returncode == code
    assert words in ended.stdout + ended.stderr
    assert list(tmp_path.iterdir()) == []


# --- with one ---------------------------------------------------------------------------------------------------------


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
def test_a_root_who_has_read_ego_s_profile_installs(small_bundles: Bundles, root: Path) -> None:
    libraries = broken_libraries(root.parent / "broken")
    (root.parent / "lib64").mkdir()
    (root.parent / "lib64" / "venv.py").write_text("raise SystemExit('another Python's')\n")
    exported = {"LD_LIBRARY_PATH": libraries, "PYTHONPATH": str(root.parent / "lib64"), "PYTHONHOME": "/opt/ibm"}
    done(small_bundles.old, root=root, **exported)

    assert version_of(root) == "1.0.0"


@pytest.mark.slow
def test_the_user_that_the_loop_shares_its_group_with_and_the_prefix_are_those_given(
    small_bundles: Bundles, root: Path
) -> None:
    """install.sh must use the user and the prefix that its options name, in all files that it makes. (A test in
    test_install_root.py checks that an upgrade keeps the user.)"""
    done(small_bundles.old, "install", "--hf-user", "sym.admin", "--prefix", "/apps/p", root=root)
    assert (root / LOGROTATE).read_text().count("\n    su sym.admin hostfactory\n") == BOTH_LOGS
    assert "ExecStart=/apps/p/bin/provisioner run" in (root / UNIT).read_text()
    assert (root / "apps/p/current/installed").read_text().splitlines()[1] == "hf-user: sym.admin"

    done(small_bundles.new, "uninstall", "--prefix", "/apps/p", root=root)
    assert not (root / LOGROTATE).exists(), "it is as it was put"


@pytest.mark.slow
def test_a_rollback_puts_back_the_service_of_the_version_before(small_bundles: Bundles, root: Path) -> None:
    newer = shutil.copytree(small_bundles.new, root.parent / "newer")
    with (newer / "vm" / "provisioner.service").open("a") as unit:
        unit.write("# of another version\n")
    sealed(newer)
    done(small_bundles.old, "--hf-user", "sym.admin", root=root)
    before = {place: (root / place).read_text() for place in (UNIT, LOGROTATE)}
    done(newer, "upgrade", root=root)
    assert (root / UNIT).read_text() == f"{before[UNIT]}# of another version\n"

    done(newer, "rollback", root=root)
    assert {place: (root / place).read_text() for place in before} == before


@pytest.mark.slow
def test_rollback_and_uninstall_need_no_bundle(small_bundles: Bundles, root: Path) -> None:
    """Each installed version keeps the install.sh of its bundle."""
    done(small_bundles.old, root=root)
    done(small_bundles.new, "upgrade", root=root)
    kept = root / PREFIX / "current"
    bare = install(kept, "upgrade", root=root)
    assert (bare.returncode, bare.stderr) == (
        1,
        f"install.sh: {kept}: is no bundle: unpack one, and run its install.sh\n",
    )
    done(kept, "rollback", root=root)
    assert version_of(root) == "1.0.0"

    done(kept, "uninstall", root=root)
    left = [path for path in root.rglob("*") if path.is_file()]
    assert left == []


@pytest.mark.slow
def test_scripts_alone_take_the_service_of_a_whole_installation_away_until_it_is_taken_back(
    small_bundles: Bundles, root: Path
) -> None:
    """The service must go, because an installation of scripts alone has no loop to start. The files of logrotate and
    tmpfiles must go, because they would name a user that such an installation does not make. An upgrade of scripts
    alone installs only scripts again."""
    done(small_bundles.old, root=root)
    services = sorted((root / "usr").rglob("provisioner*"))
    assert len(services) == 5
    for command in ("install", "upgrade"):
        done(small_bundles.new, command, *(["--scripts-only"] if command == "install" else []), root=root)
        assert [path for path in [*services, root / LOGROTATE] if path.exists()] == []
    assert "version 9.9.9 runs (scripts, " in done(small_bundles.new, "status", root=root)

    done(small_bundles.new, "rollback", root=root)
    assert sorted((root / "usr").rglob("provisioner*")) == services
    assert (root / LOGROTATE).exists()


@pytest.mark.slow
def test_an_upgrade_is_for_the_python_of_before_while_that_is_there(small_bundles: Bundles, root: Path) -> None:
    mine = root.parent / "python-of-mine"
    mine.symlink_to(PYTHON)
    assert install(small_bundles.old, root=root, python=str(mine)).returncode == 0
    for python in (mine, Path(f"/usr/bin/python{python_version()}")):
        ended = install(small_bundles.new, "upgrade", root=root, python="")
        assert (ended.returncode, ended.stderr) == (0, "")
        assert f"(loop, Python {python})" in done(small_bundles.new, "status", root=root)
        mine.unlink(missing_ok=True)


@pytest.mark.slow
def test_a_python_that_does_not_start_is_passed_over(small_bundles: Bundles, root: Path) -> None:
    """If the newest Python on the host does not start, install.sh must use another one. The newest may lack a library,
    or it may be a shim of pyenv for a version that is not installed."""
    bundle = shutil.copytree(small_bundles.old, root.parent / "two-pythons")
    (bundle / "PYTHONS").write_text(f"{python_version()} 3.99\n")
    sealed(bundle)
    broken = root.parent / "bin" / "python3.99"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho broken >&2\nexit 127\n")
    broken.chmod(0o755)
    search = f"{broken.parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    for command in ("install", "upgrade"):
        ended = install(bundle, command, root=root, python="", PATH=search)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert "systemctl" not in ended.stdout, "the service is that of another host"
        assert f"(loop, Python /usr/bin/python{python_version()})" in done(bundle, "status", root=root)
        record = root / PREFIX / "versions" / "1.0.0" / "installed"
        record.write_text(record.read_text().replace(f"/usr/bin/python{python_version()}", str(broken)))

    named = install(bundle, root=root, python=str(broken))
    assert f"{broken}: does not start: Python 3.11 or newer is needed" in named.stderr


@pytest.mark.slow
def test_all_may_read_an_installation_from_a_bundle_that_only_its_owner_may_read(
    small_bundles: Bundles, root: Path
) -> None:
    """All users must be able to read an installation, although the bundle's files can be read only by their owner."""
    closed = shutil.copytree(small_bundles.old, root.parent / "closed")
    for path in (closed, *closed.rglob("*")):
        path.chmod(path.stat().st_mode & 0o700)
        if os.geteuid() == 0:
            os.chown(path, UNPRIVILEGED_USER, UNPRIVILEGED_USER)
    done(closed, root=root)
    modes = {path: path.stat().st_mode for path in root.rglob("*") if not path.is_symlink()}

    assert [path for path, mode in modes.items() if mode & 0o044 != 0o044] == []
    assert [path for path, mode in modes.items() if mode & 0o100 and not mode & 0o001] == []
    assert modes[root / PREFIX / "versions/1.0.0/share/symphony/run-loop.sh"] & 0o777 == 0o755


@pytest.mark.slow
def test_a_rehearsal_changes_nothing(small_bundles: Bundles, root: Path) -> None:
    printed = done(small_bundles.old, "--dry-run", root=root)
    assert "would build: " in printed
    assert "runs from now on" not in printed
    assert list(root.iterdir()) == []

    done(small_bundles.old, "--scripts-only", root=root)
    before = sorted(path for path in root.rglob("*"))
    for command in ("upgrade", "uninstall"):
        assert "would " in done(small_bundles.new, command, "--scripts-only", "--dry-run", root=root)
    assert sorted(path for path in root.rglob("*")) == before


@pytest.mark.slow
def test_an_impossible_installation_is_refused_before_any_change(small_bundles: Bundles, root: Path) -> None:
    old_python = root.parent / "python3"
    old_python.write_text("#!/bin/sh\necho 3.6 False\n")
    old_python.chmod(0o755)
    changed = shutil.copytree(small_bundles.old, root.parent / "changed")
    (changed / "requirements" / "scripts.lock").write_text("")
    if os.geteuid() == 0:
        os.chown(changed, UNPRIVILEGED_USER, UNPRIVILEGED_USER)
    needed = "Python 3.11 or newer is needed (RHEL 8 and 9: dnf install python3.11); name it with --python"
    for directory, python, place, words in (
        (small_bundles.old, str(old_python), root, f"{old_python}: is Python 3.6: {needed}"),
        (small_bundles.old, "/no/such/python", root, f"/no/such/python: no such program: {needed}"),
        (changed, PYTHON, root, f"{changed}: is not what was packed (see above): unpack the bundle again"),
        (small_bundles.old, PYTHON, Path("/proc"), "run as root, or name a place of yours with --prefix"),
    ):
        ended = install(directory, root=place, python=python)
        assert ended.returncode == 1
        assert ended.stderr.splitlines()[-1].endswith(words), ended.stderr
        assert list(root.iterdir()) == []


@pytest.mark.slow
def test_another_build_of_the_same_version_gets_a_place_of_its_own(small_bundles: Bundles, root: Path) -> None:
    """If another build of an installed version is installed, it must get a directory of its own, because a process may
    still use the files of the first build."""
    done(small_bundles.old, "--scripts-only", root=root)
    done(small_bundles.old, root=root)

    assert versions(root) == ["1.0.0", "1.0.0-2"]
    assert version_of(root) == "1.0.0"


# --- killed -----------------------------------------------------------------------------------------------------------


CHANGES = re.compile(r"\+ (env|ln|mv|rm|cp|sed|sync|\S+ -m) (?!.*/etc/)")
"""A line of the trace before a command that changes something below PREFIX."""

CHANGES_MADE = 20
"""An upgrade makes at least so many changes. If the trace shows fewer, the test reads it wrongly."""


def killed(directory: Path, root: Path, change: int) -> int:
    """Kill install.sh and all its children when change number ``change`` begins. Return the number of changes that
    began."""
    words = as_unprivileged("sh", "-x", directory / "install.sh", "--scripts-only", "--root", root, "--python", PYTHON)
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
    process.wait(60 * PATIENCE)
    until(lambda: is_free(root / PREFIX / ".lock"), 60, every=0.01, what="the end of the last child")
    return seen


def is_free(lock: Path) -> bool:
    """Return True if this lock is free or does not exist."""
    if not lock.exists():
        return True
    with lock.open() as file, contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def scripts_version(root: Path) -> str:
    """Import the installed scripts, and check that their imports succeed. Return their version."""
    program = "import hf_scripts.commands, provisioner; print(provisioner.__version__)"
    command = as_unprivileged(root / PREFIX / "current" / "bin" / "python", "-I", "-c", program)
    ended = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, timeout=60 * PATIENCE)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def layout(prefix: Path) -> tuple[str, ...]:
    """Return what the next install.sh reads of an interrupted installation: the names of the versions, and the targets
    of links."""
    found = [*prefix.iterdir(), *(prefix / "versions").iterdir()]
    return tuple(sorted(f"{path.name} {path.readlink() if path.is_symlink() else ''}" for path in found))


@pytest.mark.slow
def test_killed_at_any_change_the_old_version_or_the_new_one_runs_and_a_rerun_goes_on(
    small_bundles: Bundles, root: Path
) -> None:
    """Kills at different changes can leave the same files. To save time, run install.sh again only once for each set of
    files."""
    old, new = small_bundles
    done(old, "--scripts-only", root=root)
    prefix, kept = root / PREFIX, root.parent / "kept"
    subprocess.run(["cp", "-a", prefix, kept], check=True)
    seen: list[str] = []
    layouts: set[tuple[str, ...]] = set()
    number = killed(new, root, -1)  # at none: it ends
    assert number >= CHANGES_MADE
    for change in range(1, number + 1):
        shutil.rmtree(prefix)
        subprocess.run(["cp", "-a", kept, prefix], check=True)
        killed(new, root, change)
        seen.append(scripts_version(root))
        if (state := layout(prefix)) not in layouts:
            layouts.add(state)
            done(new, "--scripts-only", root=root)
            assert (scripts_version(root), versions(root)) == ("9.9.9", ["1.0.0", "9.9.9"])
            left = {path.name for path in prefix.iterdir()}
            assert left == {".lock", "bin", "current", "hf_scripts", "previous", "share", "versions"}

    assert {"1.0.0", "9.9.9"} == set(seen)
