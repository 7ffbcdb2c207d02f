"""check_install.sh on installations with one fault each. It names the fault and the fix, and leaves no files behind."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hf_scripts import host_checks, installation_check
from hf_scripts.host_checks import CheckResult, fine
from provisioner.files.ownership import user_name
from provisioner.hostfactory.provider_config import Directories
from provisioner.state.locks import LockFile
from tests.support.hostfactory.provider import SCRIPTS, HostFactory
from tests.support.stores import add_request
from tests.support.waiting import PATIENCE

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="root: only root can become another user")


@pytest.fixture
def hf(tmp_path: Path) -> HostFactory:
    made = HostFactory(tmp_path)
    made.state.intent.create(made.instance)
    made.state.heartbeat.touch()
    return made


def checked(hf: HostFactory, *arguments: str, **environment: str) -> tuple[int, list[str], list[str]]:
    """Run check_install.sh. Return the exit code, the lines that begin with "fine:", and the texts after "fix:"."""
    done = subprocess.run(
        [str(SCRIPTS / "check_install.sh"), *arguments],
        env={name: value for name, value in (hf.environment | environment).items() if value},
        capture_output=True,
        text=True,
        check=False,
        timeout=60 * PATIENCE,
    )
    lines = done.stdout.splitlines()
    return (
        done.returncode,
        [line for line in lines if line.startswith("fine: ")],
        [line.removeprefix("fix: ") for line in lines if line.startswith("fix: ")],
    )


def test_a_good_installation_is_fine_and_left_as_it_was(hf: HostFactory) -> None:
    before = {file: file.read_bytes() for file in hf.work.iterdir()}
    code, good, bad = checked(hf)
    assert (code, bad) == (0, [])
    assert sum("answers" in line for line in good) == 5
    assert {file: file.read_bytes() for file in hf.work.iterdir()} == before


def test_an_ego_that_lists_machines_that_have_gone_for_ever_is_to_be_fixed(hf: HostFactory, tmp_path: Path) -> None:
    conf = tmp_path / "kernel" / "conf" / "ego.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text("EGO_DYNAMIC_HOST_WAIT_TIME=60\n")
    (tmp_path / "hostfactory").mkdir()
    code, _, bad = checked(hf, HF_TOP=str(tmp_path / "hostfactory"))
    assert (code, len(bad)) == (1, 1)
    assert "EGO_DYNAMIC_HOST_TIMEOUT is missing" in bad[0]


def test_a_directory_without_any_request_yet_is_fine(tmp_path: Path) -> None:
    hf = HostFactory(tmp_path)
    hf.state.heartbeat.touch()
    code, good, bad = checked(hf)
    assert (code, bad) == (0, [])
    assert any("intent.json: will be created by the first request" in line for line in good)


def old_copy_of_intent(hf: HostFactory) -> None:
    path = hf.work / "intent.json"
    copy = path.read_bytes()
    add_request(hf.state, "T", 1, created_wall=0.0)
    path.write_bytes(copy)


def intent_is_gone_beside_memory(hf: HostFactory) -> None:
    for name in ("intent.json", "intent.json.lock"):
        (hf.work / name).unlink()
    (hf.work / "memory.json").write_text("{}")


LOG = "demoinst-provider.master1.log"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda hf: hf.templates_file.unlink(), "No such file"),
        (lambda hf: shutil.rmtree(hf.work), "no such directory: create it"),
        (lambda hf: hf.logs.rmdir(), "the log of calls cannot be written: create it"),
        (lambda hf: os.mkfifo(hf.logs / LOG), f"{LOG}: is no regular file, so calls are not logged"),
        (lambda hf: os.utime(hf.work / "heartbeat", (1.0, 1.0)), "start `provisioner run`"),
        (lambda hf: (hf.work / "status.json").write_text("{"), "getReturnRequests.sh: ended with 1, expected 0: "),
        (lambda hf: (hf.work / "intent.json").write_text("{"), "intent.json: not valid JSON: "),
        (old_copy_of_intent, "intent.json: generation 1 is older than 2, which was written before"),
        (intent_is_gone_beside_memory, "memory.json exists, so it was lost"),
    ],
)
def test_each_fault_is_named_with_its_fix(hf: HostFactory, wrong: Callable[[HostFactory], object], words: str) -> None:
    """The check runs step by step, and the test stops it at the expected finding. This saves time, because the last
    steps call the scripts."""
    wrong(hf)
    found = map(str, installation_check.check_all(Directories(hf.environment), ""))
    assert any(line.startswith("fix: ") and words in line for line in found)


def test_a_process_that_keeps_the_queue_for_the_lock_of_intent_is_named(hf: HostFactory) -> None:
    turn = LockFile(f"{hf.state.intent.lock_path}.turn")
    assert turn.acquire(0)
    os.utime(turn.path, (1.0, 1.0))
    found = [*map(str, installation_check.check_all(Directories(hf.environment), ""))]
    turn.release()
    assert any(line.startswith(f"fix: {hf.work}: intent.json.lock.turn is held for ") for line in found)


def test_a_missing_variable_a_wrong_argument_and_a_python_that_does_not_start(hf: HostFactory) -> None:
    assert checked(hf, HF_PROVIDER_CONFDIR="")[2][0].startswith("HF_PROVIDER_CONFDIR: is not set")
    code, _, bad = checked(hf, HF_PYTHON="/no/such/python")
    assert code == 1
    advice = "set HF_PYTHON to the Python that hostfactory-provisioner is installed for"
    assert bad == [f"/no/such/python: is no program: {advice}"]


def test_a_loop_of_another_user_needs_a_group_that_both_are_in(hf: HostFactory) -> None:
    def findings_for(user: str) -> str:
        return "".join(map(str, installation_check._both_users(str(hf.work), user)))

    hf.work.chmod(0o750)
    assert "chmod 2770" in findings_for("nobody")
    hf.work.chmod(0o2770)
    assert "lacks the user" in findings_for("nobody")
    assert "does not exist" in findings_for("no-such-user")
    assert checked(hf, "--loop-user", user_name(os.geteuid()))[2] == []


USER = 54321
"""A user id that has no entry in /etc/passwd."""


def found_by_user(hf: HostFactory, user: int = USER) -> list[str]:
    """Return the findings for a user who is only in group ``USER``.

    The findings come from a forked child, because the user may be unable to read this Python's modules. A forked child
    has already loaded all modules.
    """
    with ProcessPoolExecutor(1, get_context("fork"), initializer=become_user, initargs=(user,)) as child:
        return child.submit(checked_lines, hf.environment).result(60 * PATIENCE)


def become_user(user: int) -> None:
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(user, user, user)


def checked_lines(environment: dict[str, str]) -> list[str]:
    installation_check._script = lambda *_: fine("")  # these tests are not about the answers of scripts
    return [str(result) for result in installation_check.check_all(Directories(environment), "")]


@pytest.fixture
def users_hf() -> Iterator[HostFactory]:
    """Yield an installation whose directories belong to ``USER`` and are reachable for that user."""
    with TemporaryDirectory() as directory:
        made = HostFactory(Path(directory))
        for path in (directory, made.conf, made.work, made.logs, made.templates_file):
            os.chown(path, USER, USER)
        yield made


@only_root
def test_a_user_without_a_name_is_reported_by_number(users_hf: HostFactory) -> None:
    assert found_by_user(users_hf)[0] == f"fine: the scripts run as user {USER}, in groups {USER}"


@only_root
def test_a_login_that_is_older_than_the_user_s_new_group_is_advised_to_log_in_anew(users_hf: HostFactory) -> None:
    """A user who became a member of a group after logging in must be advised to log in again. Here the host's accounts
    list ``nobody`` in the group, but the process is not in the group."""
    other = pwd.getpwnam("nobody")
    work = users_hf.work
    work.parent.chmod(0o755)
    for path in (users_hf.logs, users_hf.templates_file):
        os.chown(path, other.pw_uid, USER)
    os.chown(work, USER, other.pw_gid)
    work.chmod(0o2770)
    group = grp.getgrgid(other.pw_gid).gr_name
    words = f"{other.pw_name} is in group {group} now, but was not when this login began"
    (line,) = (line for line in found_by_user(users_hf, other.pw_uid) if line.startswith("fix: "))
    assert line.startswith(f"fix: {work}: {other.pw_name} may not write here")
    assert f"): {words}: log in again; " in line

    work.chmod(0o2750)
    (line,) = (line for line in found_by_user(users_hf, other.pw_uid) if line.startswith("fix: "))
    assert line.endswith("): change owner, group or mode")


@only_root
@pytest.mark.parametrize(
    ("owner", "mode", "word"),
    [(0, 0o2770, "fine"), (USER + 1, 0o2770, "fix"), (0, 0o2777, "fix")],
    ids=["of the group alone", "its owner", "among all"],
)
def test_a_loop_without_an_account_here_is_in_the_group_if_nothing_else_let_it_write(
    users_hf: HostFactory, owner: int, mode: int, word: str
) -> None:
    """A loop in a pod may run as a number without an account on this host. The host's groups do not list this number.
    If the loop could write only because of the directory's group, it must count as a member."""
    work = users_hf.work
    (work / "heartbeat").touch()
    (work / "heartbeat").chmod(0o660)
    os.chown(work / "heartbeat", USER + 1, USER)
    os.chown(work, owner, USER)
    work.chmod(mode)
    (line,) = [line for line in found_by_user(users_hf) if str(USER + 1) in line]

    assert line.startswith(f"{word}: ")
    assert ("share group" in line) is (word == "fine")


@only_root
@pytest.mark.slow
def test_files_of_root_in_the_user_s_directory_are_to_be_given_to_the_user(users_hf: HostFactory) -> None:
    hf, work = users_hf, users_hf.work
    (work / "provisioner.yaml").touch(0o600)  # not of the state, though it lies there
    request = hf.request()
    for path in (*work.glob("intent.json*"), work / "config", *(work / "config").iterdir()):
        os.chown(path, USER, USER)
    lines = found_by_user(hf)
    assert f"fine: {work}: the files in it can be read and written" in lines
    assert f"fine: {work}/intent.json: the requests in it can be read" in lines
    os.chown(work / "intent.json", 0, 0)
    hf.status(request)
    assert [line for line in found_by_user(hf) if "may not read and write" in line] == [
        f"fix: {work}/intent.json: {USER} may not read and write it (owner root, group root, mode 660): "
        f"chown {USER}:{USER} {work}/intent.json; chmod 660 {work}/intent.json",
        f"fix: {work}/seen: {USER} may not read and write it (owner root, group root, mode 770): "
        f"chown -R {USER}:{USER} {work}/seen; chmod 770 {work}/seen",
    ]
    os.chown(work / "seen", USER, USER)
    assert any(f"; chmod 660 {work}/seen/{request}" in line for line in found_by_user(hf))


@only_root
def test_a_templates_file_that_hostfactory_s_user_cannot_rewrite_is_named(
    users_hf: HostFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, environment = users_hf.templates_file, users_hf.environment | {"HF_TOP": "/opt/hf"}
    file.chmod(0o644)
    finding = (
        f"fix: {file}: HostFactory rewrites it, and {USER} may not (owner root, group root, mode 644): "
        f"chown {USER} {file}"
    )
    os.chown(file, 0, 0)
    assert finding not in found_by_user(users_hf), "HostFactory does not run here: the file is a copy, as in a pod"
    monkeypatch.setattr(HostFactory, "environment", property(lambda _: environment))
    assert finding in found_by_user(users_hf)
    os.chown(file, USER, USER)
    assert finding not in found_by_user(users_hf)


@only_root
def test_each_file_of_root_s_is_named(users_hf: HostFactory) -> None:
    names = ("intent.json.lock", "intent.json.lock.turn", "loop.lock", "status.json", "journal.jsonl")
    for name in names:
        (users_hf.work / name).touch(0o600)
    (users_hf.work / "refused").mkdir(0o700)
    lines = found_by_user(users_hf)
    for path in (users_hf.work / name for name in (*names, "refused")):
        assert any(line.startswith(f"fix: {path}: {USER} may not") for line in lines), path


@only_root
@pytest.mark.parametrize(("mode", "group"), [(0o750, str(USER)), (0o2750, "root")])
def test_a_file_is_given_to_the_group_of_the_user_s_new_files(users_hf: HostFactory, mode: int, group: str) -> None:
    """The advice must name the group that the user's new files get. An owner can give a file only to a group of which
    the owner is a member."""
    hf, intent = users_hf, users_hf.work / "intent.json"
    os.chown(hf.work, USER, 0)
    hf.work.chmod(mode)
    intent.touch(0o600)
    assert any(f": chown {USER}:{group} {intent}; " in line for line in found_by_user(hf))


def test_a_finding_is_printed_at_once(
    hf: HostFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(*_: object) -> Iterator[CheckResult]:
        raise RuntimeError

    monkeypatch.setattr(installation_check, "_loop", breaks)
    with pytest.raises(RuntimeError):
        installation_check.main([], hf.environment)
    assert "the scripts run as user" in capsys.readouterr().out


ROOT = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw"
NFS = "40 22 0:50 / /srv/state rw,relatime shared:2 - nfs4 server:/export rw,vers=4.2,"
UNCACHED = "acregmin=0,acregmax=0,acdirmin=0,acdirmax=0,lookupcache=none,hard"


@pytest.mark.parametrize(
    ("mounts", "verdict", "words"),
    [
        pytest.param([ROOT], True, "on ext4 mounted at /", id="a local disk"),
        pytest.param([ROOT, NFS + UNCACHED], True, "on nfs4 mounted at /srv/state", id="NFS as it has to be"),
        pytest.param([ROOT, NFS + "hard"], False, "lookupcache=none,actimeo=0", id="NFS with caches"),
        pytest.param([ROOT, NFS + UNCACHED + ",soft"], False, "soft: mount it with hard", id="NFS that gives up"),
        pytest.param([ROOT, NFS + UNCACHED + ",softerr"], False, "softerr: mount it with hard", id="NFS that says so"),
        pytest.param([ROOT, NFS + UNCACHED + ",local_lock=all"], False, "local_lock", id="NFS with local locks"),
        pytest.param([ROOT, NFS.replace(" rw,rel", " ro,rel") + UNCACHED], False, "read-only", id="read-only"),
        pytest.param([ROOT, "41 22 0:51 / /srv rw - tmpfs tmpfs rw"], False, "after a restart", id="memory"),
        pytest.param([ROOT, "41 22 0:51 / /srv/st rw - tmpfs tmpfs rw"], True, "on ext4", id="another mount beside it"),
    ],
)
def test_the_file_system_of_the_state_directory(mounts: list[str], verdict: bool, words: str) -> None:
    result = host_checks.state_mount("/srv/state/inst", mounts)
    assert result.is_fine is verdict
    assert words in result.text


def test_directories_may_be_given_from_where_one_stands(hf: HostFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    top = hf.work.parent
    monkeypatch.chdir(top.parent)
    places = {"CONF": hf.conf, "WORK": hf.work, "LOG": hf.logs}
    relative = {f"HF_PROVIDER_{name}DIR": f"{top.name}/{place.name}" for name, place in places.items()}
    assert checked(hf, **relative)[::2] == (0, [])
