"""check_install.sh on hosts that prevent the scripts from running: by mounts, directories without access, or
SELinux."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hf_scripts import host_checks
from provisioner.files.ownership import user_name
from tests.support.hostfactory.provider import ROOT, SCRIPTS, HostFactory
from tests.support.hosts import UNPRIVILEGED_USER
from tests.support.waiting import PATIENCE


def checked(hf: HostFactory, *command: str | Path, **environment: str) -> tuple[int, list[str]]:
    """Return exit code and lines of check_install.sh, or of a command that runs it."""
    done = subprocess.run(
        [*(command or [SCRIPTS / "check_install.sh"])],
        env=hf.environment | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60 * PATIENCE,
    )
    return done.returncode, done.stdout.splitlines()


# --- mounts -----------------------------------------------------------------------------------------------------------


def test_scripts_on_a_mount_without_execution_are_named_by_sh(tmp_path: Path) -> None:
    """Run check_install.sh with the scripts on a mount with the option noexec. The mount is real, in a mount namespace
    of its own."""
    hf = HostFactory(tmp_path)
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    script = (
        f"mount -t tmpfs -o noexec tmpfs {mounted} && cp -R {ROOT / 'hf_scripts'} {ROOT / 'provisioner'} {mounted}"
        f" && {mounted}/hf_scripts/check_install.sh; echo $?; exec sh {mounted}/hf_scripts/check_install.sh"
    )
    code, (direct, *lines) = checked(
        hf, "unshare", "--map-root-user", "--mount", "sh", "-c", script, HF_PYTHON=sys.executable
    )

    assert direct == "126"
    assert code == 1
    assert any(
        line.startswith(f"fix: {mounted}/hf_scripts: on tmpfs mounted at {mounted} with noexec, so HostFactory can run")
        for line in lines
    ), lines


ROOT_MOUNT = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw"


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        pytest.param([ROOT_MOUNT, "40 22 8:2 / /opt rw,noexec - xfs /dev/b rw"], False, id="noexec on a mount above"),
        pytest.param(
            [ROOT_MOUNT, "40 22 8:2 / /opt rw,noexec - xfs /dev/b rw", "41 40 8:3 / /opt/p rw - xfs /dev/c rw"],
            True,
            id="a mount between",
        ),
        pytest.param([ROOT_MOUNT, "40 22 8:2 / /opt/px rw,noexec - xfs /dev/b rw"], True, id="a mount beside"),
    ],
)
def test_the_nearest_mount_decides(lines: list[str], verdict: bool) -> None:
    assert host_checks.check_executable("/opt/p/hf_scripts", lines).is_fine is verdict


# --- directories ------------------------------------------------------------------------------------------------------


def way_findings(path: Path) -> list[str]:
    """Return the findings about ``path`` and the directories above it, for a user without rights."""
    program = f"from hf_scripts import host_checks; print(*host_checks.check_searchable({str(path)!r}), sep='\\n')"
    if os.geteuid() != 0:
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()
    reader, writer = os.pipe()
    child = os.fork()  # with all modules: that user may not be able to read this Python's
    if child == 0:
        os.setgroups([])
        os.setresgid(UNPRIVILEGED_USER, UNPRIVILEGED_USER, UNPRIVILEGED_USER)
        os.setresuid(UNPRIVILEGED_USER, UNPRIVILEGED_USER, UNPRIVILEGED_USER)
        os.write(writer, "\n".join(map(str, host_checks.check_searchable(str(path)))).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as output:
        lines = output.read().splitlines()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return lines


def test_a_directory_that_the_user_may_not_pass_is_named_and_not_what_is_below_it() -> None:
    user = UNPRIVILEGED_USER if os.geteuid() == 0 else os.geteuid()
    top = Path("/tmp", f"way-{os.getpid()}")
    state = top / "home" / "work" / "state"
    state.mkdir(parents=True)
    (top / "link").symlink_to(state)
    try:
        for each in (top, top / "home", top / "home" / "work"):
            each.chmod(0o755)
        assert way_findings(state) == []
        (top / "home").chmod(0o600)
        (line,) = way_findings(state)
        assert line.startswith(
            f"fix: {top}/home: {user_name(user)} may not search it (owner {user_name(os.geteuid())}, "
        )
        assert line.endswith(
            f"so {state} cannot be opened: chmod o+x {top}/home, or setfacl -m u:{user_name(user)}:x {top}/home"
        )
        assert way_findings(top / "link") == [line.replace(str(state), str(top / "link"))]
    finally:
        (top / "home").chmod(0o700)
        shutil.rmtree(top)


# --- SELinux ----------------------------------------------------------------------------------------------------------


def selinux(directory: Path, mode: str, types: dict[str, str]) -> str:
    """Return a PATH with stand-ins for getenforce and ls. They print what they would print on a host with SELinux in
    this mode."""
    directory.mkdir()
    cases = "".join(f"  *{path}) type={type_} ;;\n" for path, type_ in types.items())
    for name, text in {
        "getenforce": f"echo {mode}\n",
        "ls": f'[ "$1" = -Zd ] || exit 9\ntype=usr_t\ncase $2 in\n{cases}esac\necho "system_u:object_r:$type:s0 $2"\n',
    }.items():
        (directory / name).write_text(f"#!/bin/sh\n{text}")
        (directory / name).chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"


def linked(directory: Path) -> tuple[HostFactory, Path]:
    """Return an installation whose state directory is a link, and the directory to which the link points."""
    hf = HostFactory(directory / "home")
    hf.state.heartbeat.touch()
    link = hf.work
    state = hf.work.rename(directory / "state")
    link.symlink_to(state)
    return hf, state


def test_where_selinux_enforces_labels_of_homes_are_to_be_changed(tmp_path: Path) -> None:
    """If the state directory is a link, only the SELinux label of the link's target counts. The label of the link
    itself denies no access."""
    hf, state = linked(tmp_path)
    path = selinux(tmp_path / "bin", "Enforcing", {str(hf.work): "default_t", str(state): "user_home_t"})
    code, lines = checked(hf, PATH=path)

    assert code == 1
    assert [line for line in lines if line.startswith("fix: ")] == [
        f"fix: {state}: SELinux is enforcing, and denies services the type of this path, user_home_t: "
        f"semanage fcontext -a -t var_lib_t '{state}(/.*)?'; restorecon -R {state}"
    ]
    assert f"fine: {SCRIPTS}: SELinux is enforcing; the type of this path is usr_t" in lines


def test_where_selinux_does_not_enforce_labels_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", selinux(tmp_path / "bin", "Permissive", {str(tmp_path): "user_home_t"}))

    assert list(host_checks.check_selinux_labels({str(tmp_path): "var_lib_t"})) == []


def test_a_file_system_whose_locks_no_other_process_sees_is_to_be_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (good,) = [str(one) for one in host_checks.check_filesystem(str(tmp_path)) if "locks of one process" in one.text]
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    (bad,) = [str(one) for one in host_checks.check_filesystem(str(tmp_path)) if "locks of one process" in one.text]
    assert good == f"fine: {tmp_path}: locks of one process are seen by another"
    assert bad.startswith(
        f"fix: {tmp_path}: this check failed: locks of one process are seen by another: mount it without nolock"
    )
    assert list(tmp_path.iterdir()) == []
