"""The machine's own side. The machine joins EGO under the name that was reported to HostFactory. It is ready only after
it has joined, and it leaves in time.

EGO's programs are stand-ins. They record their calls, and behave as a test sets. The scripts run as they do in a
container and as a start-up script.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.machine import MACHINE, NAME, Machine, container, log_lines, of_an_instance, ready
from tests.support.metadata_server import MetadataServer
from tests.support.ports import free_ports
from tests.support.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]


# --- a pod ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", ["", "grid.bank.example"], ids=["short name", "with domain"])
def test_a_pod_joins_under_the_name_reported_to_hf_and_leaves_at_sigterm(machine: Machine, domain: str) -> None:
    name = f"{NAME}.{domain}" if domain else NAME
    (machine.ego / "name").write_text(name)
    pod = machine.start("entry.sh", HF_MACHINE_NAME=NAME, HF_MACHINE_DOMAIN=domain)
    ready(machine)
    assert machine.hosts.read_text().splitlines()[1].split() == ["10.1.2.3", name, *([NAME] if domain else [])]
    assert machine.calls[:2] == ["egoconfig join master1 -f", "egosh ego start"]
    pod.send_signal(signal.SIGTERM)
    assert pod.wait(timeout=30 * PATIENCE) == 0
    assert machine.calls[-2:] == [f"egosh resource close {name}", "egosh ego shutdown -f"]
    assert not machine.ready.exists()


def test_ego_s_profile_says_where_its_programs_are(machine: Machine, tmp_path: Path) -> None:
    """IBM's profile uses unset variables, which must not end the script."""
    programs, _, rest = machine.environment["PATH"].partition(":")
    profile = tmp_path / "profile.platform"
    profile.write_text(f'EGO_OLD=$EGO_UNSET\nexport PATH="{programs}:$PATH"\n')
    machine.start("entry.sh", HF_MACHINE_NAME=NAME, HF_EGO_PROFILE=str(profile), PATH=rest)
    ready(machine)
    assert machine.calls[:2] == ["egoconfig join master1 -f", "egosh ego start"]


@pytest.mark.parametrize("way", ["join", "start"])
def test_a_refused_step_is_tried_again(machine: Machine, way: str) -> None:
    machine.behave(f"refuses-{way}")
    machine.start("entry.sh", HF_MACHINE_NAME=NAME)
    ready(machine)
    assert machine.calls.count({"join": "egoconfig join master1 -f", "start": "egosh ego start"}[way]) == 2
    assert ("egosh ego start ended with 1 and said: No memory yet" in log_lines(machine)) is (way == "start")


@pytest.mark.parametrize("way", ["never-joins", "hangs"])
def test_a_machine_that_never_joins_ends_with_a_failure_and_was_never_ready(machine: Machine, way: str) -> None:
    """If a machine does not join, its pod must end when the time to join is over. Usually a program of EGO may take 30
    s, but never more than the rest of this time."""
    machine.behave(way)
    pod = machine.start("entry.sh", HF_MACHINE_NAME=NAME, HF_JOIN_SECONDS="1")
    assert pod.wait(timeout=25 * PATIENCE) == 1
    assert not machine.ready.exists()
    assert f"did not join master1 as {NAME} within 1 s" in machine.log.read_text()


AS_A_POD_S_USER = ("unshare", "--user", "--map-user=4711")
"""An id without an account here; its access to files is that of the tests' user."""


@pytest.mark.parametrize(
    ("within", "why"),
    [
        (["setpriv", "--no-new-privs"], "no_new_privs (allowPrivilegeEscalation: false) disables egosetsudoers.sh"),
        ([], "who needs egosetsudoers.sh to have run in the image"),
    ],
    ids=["in a pod that forbids it", "in one that does not"],
)
def test_where_ego_wants_root_a_pod_says_what_keeps_its_user_from_starting_it(
    machine: Machine, within: list[str], why: str
) -> None:
    if subprocess.run([*AS_A_POD_S_USER, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"needs namespaces for users who are not root ({shlex.join(AS_A_POD_S_USER)})")
    machine.behave("wants-root")
    pod = machine.start("entry.sh", *AS_A_POD_S_USER, *within, HF_MACHINE_NAME=NAME, HF_JOIN_SECONDS="1")
    assert pod.wait(timeout=30 * PATIENCE) == 1
    lines = log_lines(machine)
    cause = f"EGO may ask for root: this is user 4711, {'and ' if within else ''}{why}"
    assert f"egosh ego start ended with 1 and said: Only root may do this; {cause}" in lines
    assert lines[-1] == f"did not join master1 as {NAME} within 1 s; {cause}"


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("HF_EGO_MASTER", "", "HF_EGO_MASTER is not set"),
        ("HF_JOIN_SECONDS", "20s", "HF_JOIN_SECONDS is 20s: expected a whole number of seconds"),
        ("HF_LEAVE_SECONDS", "20s", "HF_LEAVE_SECONDS is 20s: expected a whole number of seconds"),
        ("HF_READY_FILE", "/proc/hf/ready", "/proc/hf/ready cannot be made: let user "),
    ],
)
def test_with_a_setting_that_cannot_be_it_says_so_and_does_not_join(
    machine: Machine, setting: str, value: str, words: str
) -> None:
    """Expect that the machine does not join. If it joined without a ready file, for example, EGO would use a machine
    that HostFactory never sees ready."""
    assert machine.start("entry.sh", **{setting: value}).wait(timeout=30 * PATIENCE) == 1
    assert log_lines(machine)[-1].startswith(words)
    assert machine.calls == []


def test_it_joins_for_as_long_as_it_may_though_the_clock_is_set_meanwhile(machine: Machine) -> None:
    """Bash's variable SECONDS follows the wall clock, so it cannot measure the time to join. Here SECONDS advances by
    an hour at each pause."""
    machine.behave("slow")
    machine.start_line(f". {MACHINE}/lib.sh; pause() {{ SECONDS=$((SECONDS + 3600)); sleep 0.05; }}; join {NAME}")
    looked(machine)
    machine.behave("up")
    ready(machine)
    assert not any(line.startswith("did not join") for line in log_lines(machine))


@pytest.mark.parametrize(("way", "asked"), [("slow", "egosh resource list -l"), ("hangs", "egoconfig join master1 -f")])
def test_a_signal_while_it_joins_lets_it_leave(machine: Machine, way: str, asked: str) -> None:
    """A program of EGO that hangs may take 30 s. A pod that has to leave has less time, so the signal must end the
    program."""
    machine.behave(way)
    pod = machine.start("entry.sh", HF_MACHINE_NAME=NAME)
    until(lambda: asked in machine.calls, 30, what="it joins")
    pod.send_signal(signal.SIGTERM)
    assert pod.wait(timeout=25 * PATIENCE) == 0
    assert machine.calls[-1] == "egosh ego shutdown -f"


def test_a_pod_stays_while_ego_does_not_answer_and_fails_by_ego_s_own_answer(machine: Machine) -> None:
    """If EGO's master is away, all pods of a grid notice it at once. They must stay and keep their work. A pod that an
    operator closed must stay, too. A pod must end only if an answer of EGO lists the hosts without the pod."""
    pod = machine.start("entry.sh", HF_MACHINE_NAME=NAME)
    ready(machine)
    machine.tell("no-master", "1")
    until(lambda: any("Cannot contact" in line for line in log_lines(machine)), 30, what="it logs the reason")
    looked(machine)
    (machine.ego / "no-master").unlink()
    until(lambda: f"EGO has {NAME} again" in log_lines(machine), 30, what="it logs that EGO has it again")
    machine.tell("closed", NAME)
    looked(machine, 6)
    assert pod.poll() is None
    assert machine.ready.exists()
    machine.tell("name", "another")
    assert pod.wait(timeout=30 * PATIENCE) == 1


def test_a_pod_s_name_is_its_host_s_and_not_what_its_node_s_metadata_says(machine: Machine) -> None:
    with MetadataServer({"instance/name": "gke-node-1"}) as server:
        machine.start("entry.sh", HOSTNAME=f"{NAME}.grid.svc", GCE_METADATA_HOST=server.host)
        until(lambda: f"joined master1 as {NAME}" in log_lines(machine), 30, what="it joins")


@pytest.mark.parametrize(("script", "code"), [("entry.sh", 0), ("startup.sh", 1)])
def test_if_ego_s_programs_hang_and_ignore_signals_a_script_ends_by_itself(
    machine: Machine, metadata: MetadataServer, script: str, code: int
) -> None:
    machine.behave("never-leaves")
    process = machine.start(script, HF_MACHINE_NAME=NAME, GCE_METADATA_HOST=metadata.host, HF_LEAVE_SECONDS="1")
    ready(machine)
    if script == "startup.sh":
        assert metadata.waiting.wait(30 * PATIENCE)
        metadata.change("instance/preempted", "TRUE")
    else:
        process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30 * PATIENCE) == code
    assert machine.calls[-2:] == [f"egosh resource close {NAME}", "egosh ego shutdown -f"]
    assert f"EGO did not let {NAME} go within 1 s" in machine.log.read_text()


# --- what EGO says of it ----------------------------------------------------------------------------------------------


def looked(machine: Machine, times: int = 3) -> None:
    """Wait until the machine has asked EGO several more times."""
    before = len(machine.calls)
    until(lambda: len(machine.calls) > before + times, 30, what="EGO is asked again and again")


def test_why_ego_does_not_list_it_is_said_once_for_each_change(machine: Machine) -> None:
    machine.behave("slow")
    machine.tell("no-master", "1")
    machine.start("entry.sh", HF_MACHINE_NAME=NAME, HF_JOIN_SECONDS="120")
    looked(machine)
    (machine.ego / "no-master").unlink()
    looked(machine)
    machine.tell("name", "another")
    looked(machine)
    assert not machine.ready.exists()
    machine.behave("up")
    machine.tell("name", NAME)
    until(lambda: f"joined master1 as {NAME}" in log_lines(machine), 30, what="it joins")
    assert log_lines(machine) == [
        "egosh resource list -l ended with 1 and said: Cannot contact the master host.",
        f"EGO has {NAME}, and says that it is unavail",
        f"EGO does not have {NAME}",
        f"joined master1 as {NAME}",
    ]


DOMAIN = ": HF_MACHINE_DOMAIN has to be what follows the first dot"


@pytest.mark.parametrize(
    ("domain", "other", "why"),
    [
        pytest.param("", f"{NAME}0", "", id="a longer name"),
        pytest.param("", f"x{NAME}", "", id="one that ends so"),
        pytest.param("", NAME.replace("-", "."), "", id="a sign in the place of another"),
        pytest.param("", f"{NAME}.c.p.internal", f", but {NAME}.c.p.internal{DOMAIN}", id="with a domain"),
        pytest.param("grid", NAME, f", but {NAME}{DOMAIN}", id="without its domain"),
        pytest.param("grid", f"{NAME}.c.p", f", but {NAME}.c.p{DOMAIN}", id="with another domain"),
    ],
)
def test_a_machine_that_ego_has_by_another_name_logs_it_and_is_not_ready(
    machine: Machine, domain: str, other: str, why: str
) -> None:
    machine.tell("name", other)
    machine.start("entry.sh", HF_MACHINE_NAME=NAME, HF_MACHINE_DOMAIN=domain)
    looked(machine)
    assert log_lines(machine) == [f"EGO does not have {NAME}{'.' * bool(domain)}{domain}{why}"]
    assert not machine.ready.exists()


@pytest.mark.parametrize(
    ("code", "message"),
    [("0", "0 and said: Cannot contact the master host."), ("", "127 and said: timeout: ")],
    ids=["a list that is none, though egosh ends well", "no egosh"],
)
def test_output_that_is_no_list_is_reported(machine: Machine, code: str, message: str) -> None:
    if code:
        machine.tell("no-master", code)
    else:
        (machine.getent.parent / "egosh").unlink()
    machine.start("entry.sh", HF_MACHINE_NAME=NAME)
    words = f"egosh resource list -l ended with {message}"
    until(lambda: any(line.startswith(words) for line in log_lines(machine)), 30, what="it is logged")


@pytest.mark.parametrize("way", ["list-hangs", "dns-hangs"])
def test_a_signal_while_it_waits_for_an_answer_lets_it_leave(machine: Machine, way: str) -> None:
    """EGO may take 10 s to answer, and DNS may take any time. A signal must end both waits."""
    if way == "dns-hangs":
        machine.behave(way)
    pod = machine.start("entry.sh", HF_MACHINE_NAME=NAME)
    if way == "list-hangs":
        ready(machine)
        machine.behave(way)
    asking = asker(machine)
    hosts = machine.hosts.read_text()
    pod.send_signal(signal.SIGTERM)
    assert pod.wait(timeout=30 * PATIENCE) == 0
    until(lambda: not is_running(asking), 30, what="the program that asks has ended too")
    waited = machine.hosts.read_text() != hosts or "has not ended within" in machine.log.read_text()
    assert not waited, "it did not wait until there was no answer"


def asker(machine: Machine) -> int:
    """Wait until a program waits for an answer, and return its process id."""
    asking = machine.ego / "asks"
    return int(until(lambda: asking.exists() and asking.read_text().strip(), 30, what="it asks"))


def is_running(process: int) -> bool:
    """Return True if a process exists and has not ended."""
    return bool(re.search(r"(?m)^State:\t[^ZX]", text_of(Path(f"/proc/{process}/status"))))


def test_a_signal_while_ego_starts_leaves_no_start_behind(machine: Machine) -> None:
    """If the start continued after the shutdown, EGO's daemons would run on a machine that has left."""
    machine.behave("start-waits")
    pod = machine.start("entry.sh", HF_MACHINE_NAME=NAME)
    starting = asker(machine)
    pod.send_signal(signal.SIGTERM)
    until(lambda: "egosh ego shutdown -f" in machine.calls, 30, what="it leaves")
    assert not is_running(starting), "the start ends before EGO is shut down"
    assert pod.wait(timeout=30 * PATIENCE) == 0
    assert log_lines(machine)[-1] == "left EGO"
    assert not (machine.ego / "up").exists()


@pytest.mark.parametrize(
    "shadow",
    [
        'trap() { builtin trap "$@"; [[ $1 != *must_end* ]] || kill -TERM $$; }',
        'wait() { unset -f wait; kill -TERM $$; builtin wait "$@"; }',
    ],
    ids=["before the child begins", "before it waits for the child"],
)
def test_a_signal_in_the_moment_before_the_shell_waits_is_not_lost(
    machine: Machine, tmp_path: Path, shadow: str
) -> None:
    """A signal must end the shell even if it comes just before the shell waits for its child. Otherwise the shell would
    wait for ever, because the child does not end by itself."""
    before = tmp_path / "before"
    before.write_text(f"{shadow}\n")
    assert machine.start("entry.sh", HF_MACHINE_NAME=NAME, BASH_ENV=str(before)).wait(timeout=30 * PATIENCE) == 0
    assert "received a signal to end" in log_lines(machine)
    assert not machine.ready.exists()


@pytest.mark.parametrize("script", ["entry.sh", "startup.sh"])
def test_a_shell_that_hears_signals_expands_no_command(
    machine: Machine, metadata: MetadataServer, tmp_path: Path, script: str
) -> None:
    """A shell with a trap must not use ``$(...)``, because Bash 5.2 loses about one in three hundred signals that come
    while such a shell reads ``$(...)``.

    In the trace of commands, ``++`` at the start of a line marks a command in a ``$(...)`` of the shell itself.
    """
    before, trace, profile = tmp_path / "before", tmp_path / "trace", machine.ego / "profile"
    before.write_text(f"exec 9>>{trace}; BASH_XTRACEFD=9; PS4='+$$.$BASH_SUBSHELL '; set -x\n")
    profile.write_text("echo $$ >>$EGO/readers\n")
    given = {"BASH_ENV": str(before), "HF_EGO_PROFILE": str(profile), "GCE_METADATA_HOST": metadata.host}
    process = machine.start(script, HF_MACHINE_NAME=NAME, **given)
    ready(machine)
    if script == "startup.sh":
        assert metadata.waiting.wait(30 * PATIENCE)
    else:
        assert str(process.pid) not in (machine.ego / "readers").read_text().split(), "the profile has expansions, too"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30 * PATIENCE) == 0
    is_trapped = False
    expanded: dict[str, bool] = {}
    for line in trace.read_text().splitlines():
        if line.startswith(f"+{process.pid}.0 trap ") and line.endswith(" TERM INT"):
            is_trapped = " '' " not in line
        elif is_trapped:
            expanded[line] = re.match(rf"\+{{2,}}{process.pid}\.1 ", line) is not None
    assert expanded, "it heard signals for a time"
    assert [line for line, own in expanded.items() if own] == []


# --- it drains --------------------------------------------------------------------------------------------------------

PASSWORD = """-pa$$ w"o'rd \\"""


def account(machine: Machine, password: str = PASSWORD, *, known: str = PASSWORD) -> dict[str, str]:
    """Make EGO's administrator ``hf``. Return settings with its name, a password file, and time to log on."""
    (machine.ego / "account").write_text(f"hf {known}")
    file = machine.ego / "password"
    file.write_text(f"{password}\n")
    return {"HF_EGO_USER": "hf", "HF_EGO_PASSWORD_FILE": str(file), "HF_LEAVE_SECONDS": "12"}


def left(machine: Machine, **environment: str) -> None:
    """Check that a pod joins, and leaves at SIGTERM."""
    pod = machine.start("entry.sh", HF_MACHINE_NAME=NAME, **environment)
    ready(machine)
    until(lambda: f"joined master1 as {NAME}" in log_lines(machine), 30, what="it says that it has joined")
    pod.send_signal(signal.SIGTERM)
    assert pod.wait(timeout=30 * PATIENCE) == 0
    assert machine.calls[-1] == "egosh ego shutdown -f"


def closed(machine: Machine) -> bool:
    """Return True if EGO gives the machine no new work."""
    return (machine.ego / "closed").exists()


def test_it_closes_itself_as_the_administrator_it_is_given_and_logs_off(machine: Machine) -> None:
    """The password is exchanged while the machine runs. Expect that the machine logs on with the new password."""
    pod = machine.start("entry.sh", HF_MACHINE_NAME=NAME, **account(machine, "old"))
    ready(machine)
    (machine.ego / "password").write_text(PASSWORD)
    pod.send_signal(signal.SIGTERM)
    assert pod.wait(timeout=30 * PATIENCE) == 0
    assert (machine.ego / "closed").read_text() == f"{NAME}\n"
    assert machine.calls[-4:-2] == [f"egosh user logon -u hf -x {PASSWORD}", f"egosh resource close {NAME}"]
    assert not (machine.ego / "session").exists(), "it is logged off"
    assert log_lines(machine)[-1] == "left EGO"
    assert "undrained" not in machine.log.read_text()


def test_without_an_administrator_it_leaves_undrained_and_says_what_to_set(machine: Machine) -> None:
    left(machine)
    assert not closed(machine)
    assert (
        f"EGO does not close {NAME}, which leaves undrained: HF_EGO_USER is not set, so no account is logged on"
        in log_lines(machine)
    )


@pytest.mark.parametrize(
    ("password", "known", "why"),
    [
        pytest.param(PASSWORD, "another", "User name or password is not valid", id="a wrong one"),
        pytest.param("", PASSWORD, "User name or password is not valid", id="an empty one"),
        pytest.param(PASSWORD, PASSWORD, "Invalid option: (the password)", id="one that egosh says again"),
    ],
)
def test_with_a_password_that_ego_refuses_it_leaves_undrained(
    machine: Machine, password: str, known: str, why: str
) -> None:
    if "Invalid" in why:
        machine.behave("quotes-password")
    left(machine, **account(machine, password, known=known))
    assert f"{NAME} leaves undrained: EGO does not log hf on: {why}" in log_lines(machine)
    assert f"egosh resource close {NAME}" not in machine.calls
    assert PASSWORD not in machine.log.read_text()


@pytest.mark.parametrize("file", ["", "nowhere"], ids=["not named", "not there"])
def test_a_missing_password_file_is_logged_when_it_joins(machine: Machine, file: str) -> None:
    left(machine, HF_EGO_USER="hf", HF_EGO_PASSWORD_FILE=file)
    why = f"HF_EGO_USER is hf, and HF_EGO_PASSWORD_FILE ({file or 'not set'}) has no password to read"
    lines = log_lines(machine)
    assert lines.index(f"{NAME} will leave undrained: {why}") < lines.index(f"joined master1 as {NAME}")
    assert f"{NAME} leaves undrained: {why}" in lines


# --- its own name -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "names", "writable", "written", "is_logged"),
    [
        (f"10.1.2.3 {NAME}", {}, False, False, False),
        ("", {NAME: "10.1.2.3"}, False, False, False),
        (f"10.1.2.3 {NAME}.grid {NAME}0", {}, True, True, False),
        ("", {}, False, False, True),
    ],
    ids=[
        "the hosts file knows it",
        "DNS knows it",
        "it does not resolve, so it is written down",
        "it does not resolve and cannot be written down, so that is logged",
    ],
)
def test_a_machine_s_own_name_resolves(
    machine: Machine, hosts: str, names: dict[str, str], writable: bool, written: bool, is_logged: bool
) -> None:
    machine.getent.unlink()
    machine.hosts.write_text(f"127.0.0.1 localhost\n{hosts}\n")
    within = container(names=names, hosts=machine.hosts, writable=writable)
    machine.start("entry.sh", *within, HF_MACHINE_NAME=NAME, HF_HOSTS_FILE="")
    ready(machine)
    assert machine.hosts.read_text().split("\n")[2:] == ([f"10.1.2.3 {NAME}", ""] if written else [""])
    warning = f"EGO will not find {NAME}: it does not resolve, and /etc/hosts cannot be written"
    assert (warning in machine.log.read_text()) is is_logged


def test_a_name_without_an_address_is_not_written_down(machine: Machine) -> None:
    (machine.getent.parent / "hostname").symlink_to("/bin/false")
    machine.start("entry.sh", HF_MACHINE_NAME=NAME, HF_MACHINE_ADDRESS="")
    ready(machine)
    assert f"EGO will not find {NAME}: it does not resolve, and this host has no address" in machine.log.read_text()
    assert NAME not in machine.hosts.read_text()


def test_its_name_gets_a_line_of_its_own_though_the_hosts_file_s_last_line_has_no_end(machine: Machine) -> None:
    machine.hosts.write_text("127.0.0.1 localhost")
    machine.start("entry.sh", HF_MACHINE_NAME=NAME)
    ready(machine)
    assert machine.hosts.read_text() == f"127.0.0.1 localhost\n10.1.2.3 {NAME}\n"


# --- as PID 1 ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def first(machine: Machine) -> tuple[subprocess.Popen[bytes], int]:
    """Return a container whose entry point is ready, and the process id of its PID 1. A daemon that EGO's start left
    without a parent has ended, so PID 1 has to reap it."""
    machine.behave("leaves-daemon")
    within = container(names={NAME: "10.1.2.3"}, hosts=machine.hosts, writable=False)
    pod = machine.start("entry.sh", *within, HF_MACHINE_NAME=NAME)
    ready(machine)
    until((machine.ego / "daemon-ended").exists, 30, what="the daemon has lost its parent and ended")
    return pod, machine.inside(pod)


def test_as_pid_1_it_follows_sigterm_before_it_has_read_ego_s_profile(machine: Machine) -> None:
    """PID 1 must have a trap for SIGTERM before it reads the profile. Linux ignores a signal for which PID 1 has no
    trap, so a machine that has to end would join."""
    (machine.ego / "profile").write_text("touch $EGO/asks; sleep 1\n")
    within = container(names={NAME: "10.1.2.3"}, hosts=machine.hosts, writable=False)
    pod = machine.start("entry.sh", *within, HF_EGO_PROFILE=str(machine.ego / "profile"))
    until((machine.ego / "asks").exists, 30, what="it reads the profile")
    os.kill(machine.inside(pod), signal.SIGTERM)
    assert pod.wait(timeout=30 * PATIENCE) == 0
    assert machine.calls == []


def test_as_pid_1_it_reaps_ego_s_orphans_and_follows_sigterm(
    machine: Machine, first: tuple[subprocess.Popen[bytes], int]
) -> None:
    pod, process = first
    assert re.search(r"(?m)^NSpid:\t\d+\t1$", Path(f"/proc/{process}/status").read_text())
    until(lambda: children_of(process, "sh") == [], 30, every=0.3, what="nothing of the daemon is left")
    assert pod.poll() is None, "the entry point goes on"
    os.kill(process, signal.SIGTERM)
    assert pod.wait(timeout=30 * PATIENCE) == 0
    assert machine.calls[-1] == "egosh ego shutdown -f"


def test_as_pid_1_it_ends_with_1_when_ego_no_longer_has_it(
    machine: Machine, first: tuple[subprocess.Popen[bytes], int]
) -> None:
    pod, _ = first
    (machine.ego / "up").unlink()
    assert pod.wait(timeout=30 * PATIENCE) == 1
    assert not machine.ready.exists()


def children_of(parent: int, name: str) -> list[str]:
    """Return the parent's children of this name, running or ended, for which the parent has not waited."""
    texts = (text_of(path) for path in Path("/proc").glob("[0-9]*/stat"))
    return [text for text in texts if f"({name})" in text and text.rpartition(")")[2].split()[1] == str(parent)]


def text_of(path: Path) -> str:
    """Return the content of a process's file, if the process still exists."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


# --- an instance of a group -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", ["", "c.p.internal"], ids=["short name", "with domain, and a password of its image"])
def test_an_instance_joins_under_its_name_and_leaves_when_it_is_preempted(
    machine: Machine, metadata: MetadataServer, domain: str
) -> None:
    name = f"{NAME}.{domain}" if domain else NAME
    (machine.ego / "name").write_text(name)
    if domain:
        metadata.values["instance/attributes/hf-machine-domain"] = domain
        settings = account(machine)
        metadata.values["instance/attributes/hf-ego-user"] = settings["HF_EGO_USER"]
        metadata.values["instance/attributes/hf-ego-password-file"] = settings["HF_EGO_PASSWORD_FILE"]
    instance = machine.start("startup.sh", GCE_METADATA_HOST=metadata.host)
    ready(machine)
    assert machine.calls[0] == "egoconfig join master2 -f"
    assert machine.hosts.read_text().splitlines()[1].split()[:2] == ["10.9.8.7", name]
    assert metadata.waiting.wait(30 * PATIENCE)
    metadata.change("instance/preempted", "TRUE")
    assert instance.wait(timeout=30 * PATIENCE) == 0
    assert f"egosh resource close {name}" in machine.calls[-3:-1]
    assert machine.calls[-1] == "egosh ego shutdown -f"
    assert closed(machine) is bool(domain)
    asked = len(machine.calls)
    assert machine.start("shutdown.sh", GCE_METADATA_HOST=metadata.host).wait(timeout=30 * PATIENCE) == 0
    assert len(machine.calls) == asked, "it has left already"


def test_with_the_line_of_its_page_setup_makes_templates_whose_instances_join(
    machine: Machine, metadata: MetadataServer
) -> None:
    page = (ROOT / "docs" / "deploy-machine.md").read_text()
    (options,) = re.findall(r"\n( +--startup-script (?:.*\\\n)*.*)\n", page)
    setup = f"deploy/gcp/setup.sh --project=p --region=us-central1 --group=a:us-central1-a {options}"
    printed = subprocess.run(["bash", "-euc", setup], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in printed.splitlines() if "instance-templates create" in line]
    given = {name: pairs.split(",") for name, _, pairs in (word.partition("=") for word in shlex.split(line))}
    attributes = dict(pair.split("=") for pair in given["--metadata"])
    files = dict(pair.split("=") for pair in given["--metadata-from-file"])
    assert files["startup-script"] == "deploy/machine/startup.sh"
    assert files["shutdown-script"] == "deploy/machine/shutdown.sh"
    attributes |= {name: (ROOT / path).read_text() for name, path in files.items()}
    for name in ("hf-machine-lib", "hf-ego-master"):
        del metadata.values[f"instance/attributes/{name}"]
    metadata.values |= {f"instance/attributes/{name}": value for name, value in attributes.items()}
    machine.start("startup.sh", GCE_METADATA_HOST=metadata.host)
    ready(machine)
    assert machine.calls[0] == "egoconfig join master1.bank.example -f"


@pytest.mark.parametrize("when", ["before anybody listened", "between two observations"])
def test_a_preemption_before_the_wait_is_noticed(machine: Machine, metadata: MetadataServer, when: str) -> None:
    (metadata.values if when == "before anybody listened" else metadata.then)["instance/preempted"] = "TRUE"
    assert machine.start("startup.sh", GCE_METADATA_HOST=metadata.host).wait(timeout=30 * PATIENCE) == 0
    assert machine.calls[-1] == "egosh ego shutdown -f"


def test_the_shutdown_script_leaves_even_if_its_log_is_not_read(machine: Machine, metadata: MetadataServer) -> None:
    assert machine.start("shutdown.sh", GCE_METADATA_HOST=metadata.host).wait(timeout=30 * PATIENCE) == 0
    assert machine.calls == [], "it never joined"
    machine.start("startup.sh", GCE_METADATA_HOST=metadata.host)
    ready(machine)
    script, log = machine.start_heard("shutdown.sh", GCE_METADATA_HOST=metadata.host)
    log.close()
    assert script.wait(timeout=30 * PATIENCE) == 0
    assert machine.calls[-2:] == [f"egosh resource close {NAME}", "egosh ego shutdown -f"]
    assert not (machine.ego / "up").exists(), "EGO's daemons have ended"


def test_the_shutdown_script_waits_while_the_start_up_script_leaves(machine: Machine, metadata: MetadataServer) -> None:
    """The shutdown script has to wait for the start-up script. When the shutdown script ends, the instance ends all
    other processes."""
    machine.behave("never-leaves")
    machine.start("startup.sh", GCE_METADATA_HOST=metadata.host, HF_LEAVE_SECONDS="1")
    ready(machine)
    assert metadata.waiting.wait(30 * PATIENCE)
    metadata.change("instance/preempted", "TRUE")
    until(lambda: f"egosh resource close {NAME}" in machine.calls, 30, what="it leaves")
    waits = {"GCE_METADATA_HOST": metadata.host, "HF_LEAVE_SECONDS": "20"}
    assert machine.start("shutdown.sh", **waits).wait(timeout=30 * PATIENCE) == 0
    assert f"EGO did not let {NAME} go" in machine.log.read_text()
    assert machine.calls.count(f"egosh resource close {NAME}") == 1


@pytest.mark.parametrize("when", ["before it joins", "before it leaves"])
def test_the_start_up_script_leaves_even_if_its_log_is_not_read(
    machine: Machine, metadata: MetadataServer, when: str
) -> None:
    """Google's script runner reads the log of the start-up script, and ends when the shutdown begins. From then on,
    each write to the log fails."""
    instance, log = machine.start_heard("startup.sh", GCE_METADATA_HOST=metadata.host)
    if when == "before it joins":
        log.close()
    ready(machine)
    assert metadata.waiting.wait(30 * PATIENCE)
    log.close()
    metadata.change("instance/preempted", "TRUE")
    assert instance.wait(timeout=30 * PATIENCE) == 0
    assert not (machine.ego / "up").exists(), "EGO's daemons have ended"


def test_who_reads_the_start_up_script_s_log_need_not_wait_for_ego_s_daemons(
    machine: Machine, metadata: MetadataServer
) -> None:
    machine.behave("keeps-output")
    metadata.values["instance/preempted"] = "TRUE"
    instance, log = machine.start_heard("startup.sh", GCE_METADATA_HOST=metadata.host)
    assert instance.wait(timeout=30 * PATIENCE) == 0
    os.set_blocking(log.fileno(), False)
    assert b"left EGO\n" in log.read()
    assert log.read() == b"", "no other process has the pipe"


def test_an_instance_that_gets_a_signal_leaves(machine: Machine, metadata: MetadataServer) -> None:
    instance = machine.start("startup.sh", GCE_METADATA_HOST=metadata.host)
    ready(machine)
    assert metadata.waiting.wait(30 * PATIENCE)
    instance.send_signal(signal.SIGTERM)
    assert instance.wait(timeout=30 * PATIENCE) == 0
    assert machine.calls[-2:] == [f"egosh resource close {NAME}", "egosh ego shutdown -f"]


def test_of_an_instance_s_scripts_one_alone_leaves(machine: Machine, metadata: MetadataServer) -> None:
    """All scripts of an instance notice its end at once, but only one of them shuts EGO down."""
    instance = machine.start("startup.sh", GCE_METADATA_HOST=metadata.host)
    ready(machine)
    assert metadata.waiting.wait(30 * PATIENCE)
    shutdown = machine.start("shutdown.sh", GCE_METADATA_HOST=metadata.host)
    metadata.change("instance/preempted", "TRUE")
    instance.send_signal(signal.SIGTERM)
    assert (instance.wait(timeout=30 * PATIENCE), shutdown.wait(timeout=30 * PATIENCE)) == (0, 0)
    assert machine.calls.count("egosh ego shutdown -f") == 1


def test_a_metadata_server_without_etags_is_not_asked_all_the_time(machine: Machine, metadata: MetadataServer) -> None:
    metadata.etags = False
    sleep = machine.getent.with_name("sleep")
    sleep.write_text(f'#!/bin/sh\ntouch "$EGO/sleeps-$1"\nexec {shutil.which("sleep")} "$1"\n')
    sleep.chmod(0o755)
    machine.start("startup.sh", GCE_METADATA_HOST=metadata.host, HF_POLL_SECONDS="1000")
    until((machine.ego / "sleeps-1000").exists, 30, what="it pauses for as long as the server asks")
    assert metadata.asked.count("instance/preempted") == 1


def test_an_instance_whose_template_lacks_its_settings_says_which(machine: Machine, metadata: MetadataServer) -> None:
    for name in ("hf-ego-master", "hf-machine-lib"):
        del metadata.values[f"instance/attributes/{name}"]
        assert machine.start("startup.sh", GCE_METADATA_HOST=metadata.host).wait(timeout=30 * PATIENCE) == 1
        assert f"the instance template lacks {name}" in machine.log.read_text()


def test_a_value_that_a_late_metadata_server_lacks_is_requested_again(
    machine: Machine, metadata: MetadataServer
) -> None:
    metadata.values["instance/attributes/hf-machine-domain"] = "grid"
    machine.tell("name", f"{NAME}.grid")
    asked = ("attributes/hf-machine-lib", "attributes/hf-ego-master", "attributes/hf-machine-domain", "name")
    metadata.away |= {f"instance/{one}": 3 for one in asked}
    machine.start("startup.sh", GCE_METADATA_HOST=metadata.host)
    until(lambda: f"joined master2 as {NAME}.grid" in log_lines(machine), 30, what="it joins")
    assert {metadata.away[f"instance/{one}"] for one in asked} == {0}
    assert "poweroff " not in machine.calls


@pytest.mark.parametrize("asked", ["attributes/hf-ego-master", "attributes/hf-machine-domain", "name"])
def test_an_instance_without_an_answer_about_a_setting_does_not_join_without_it(
    machine: Machine, metadata: MetadataServer, asked: str
) -> None:
    metadata.away[f"instance/{asked}"] = 1000
    assert machine.start("startup.sh", GCE_METADATA_HOST=metadata.host).wait(timeout=30 * PATIENCE) == 1
    log = machine.log.read_text()
    assert f"the metadata server does not answer {asked}: curl ended with 22, HTTP status 503" in log
    assert "lacks" not in log
    assert machine.calls == ["poweroff "]


def test_where_no_metadata_server_answers_an_instance_says_so_and_powers_off(machine: Machine) -> None:
    assert machine.start("startup.sh").wait(timeout=30 * PATIENCE) == 1
    log = machine.log.read_text()
    assert "the metadata server does not answer attributes/hf-machine-lib: curl ended with 7, HTTP status 000" in log
    assert machine.calls == ["poweroff "]


SECRET = "projects/p/secrets/hf-ego-password"


def start_with_secret(machine: Machine, metadata: MetadataServer, server: str = "", secret: str = SECRET) -> None:
    """Run the start-up script of an instance whose template names a secret."""
    metadata.values["instance/attributes/hf-ego-user"] = "hf"
    metadata.values["instance/attributes/hf-ego-password-secret"] = secret
    given = {"HF_SECRETS_SERVER": f"http://{server or metadata.host}", "no_proxy": "127.0.0.1"}
    machine.start("startup.sh", GCE_METADATA_HOST=metadata.host, **given)


def test_the_shutdown_script_closes_it_with_a_password_from_secret_manager(
    machine: Machine, metadata: MetadataServer
) -> None:
    """Expect that the shutdown script calls no server, because the instance's network may be gone by then."""
    account(machine)
    metadata.secrets[SECRET] = PASSWORD
    metadata.away["instance/service-accounts/default/token"] = metadata.away[SECRET] = 1  # asked for again
    start_with_secret(machine, metadata)
    ready(machine)
    assert metadata.away == {"instance/service-accounts/default/token": 0, SECRET: 0}
    file = machine.library.with_name("ego-password")
    assert (file.read_text(), file.stat().st_mode & 0o777) == (PASSWORD, 0o600)
    machine.start("shutdown.sh").wait(timeout=30 * PATIENCE)
    assert (machine.ego / "closed").read_text() == f"{NAME}\n"
    assert PASSWORD not in machine.library.read_text() + machine.log.read_text()


def test_a_secret_whose_server_is_not_reached_yet_is_requested_until_it_is_there(
    machine: Machine, metadata: MetadataServer
) -> None:
    (port,) = free_ports(1)
    start_with_secret(machine, metadata, f"127.0.0.1:{port}")
    message = f"{SECRET} cannot be read: curl: (7)"
    until(lambda: machine.log.exists() and message in machine.log.read_text(), 30, what="it has asked in vain")
    assert not machine.ready.exists()
    with MetadataServer({}, port) as secrets:
        secrets.secrets[SECRET] = PASSWORD
        ready(machine)
    assert machine.library.with_name("ego-password").read_text() == PASSWORD
    assert machine.log.read_text().count(message) == 1, "it is said once"


def test_a_secret_that_its_account_may_not_read_is_reported(machine: Machine, metadata: MetadataServer) -> None:
    start_with_secret(machine, metadata, secret="projects/p/secrets/another")
    ready(machine)
    log = machine.log.read_text()
    assert "curl: (22) The requested URL returned error: 404" in log
    assert f"{NAME} will leave undrained: HF_EGO_USER is hf, and HF_EGO_PASSWORD_FILE" in log


@pytest.mark.parametrize("stays", [False, True], ids=["and powers off", "and stays where its template says so"])
def test_an_instance_that_never_joins_says_so(machine: Machine, metadata: MetadataServer, stays: bool) -> None:
    machine.behave("never-joins")
    metadata.values["instance/attributes/hf-join-seconds"] = "1"
    if stays:
        metadata.values["instance/attributes/hf-join-failed"] = "stay"
    assert machine.start("startup.sh", GCE_METADATA_HOST=metadata.host).wait(timeout=30 * PATIENCE) == 1
    assert not machine.ready.exists()
    left_then = ["egosh ego shutdown -f"] if stays else ["egosh ego shutdown -f", "poweroff "]
    assert machine.calls[-len(left_then) :] == left_then, "EGO is left first"
    assert f"did not join master2 as {NAME} within 1 s" in machine.log.read_text()


# --- with its own times -----------------------------------------------------------------------------------------------

POD, INSTANCE = 15, 30
"""Seconds that a Spot node of GKE leaves its pods, and Compute Engine a preempted instance: then they are cut off."""
OWN_TIMES = {"HF_LEAVE_SECONDS": ""}
"""The default holds."""
LIMITED = """#!/bin/sh
echo "$2 $3 $4 $5" >>"$EGO/limits"
exec {timeout} "$@"
"""
"""Notes what a step may take, before it does."""
KILL = 1
"""A step that follows no signal goes on for so many seconds after its limit."""


HANGING = {
    "user logon": f"{NAME} leaves undrained: EGO has not logged hf on in time",
    "resource close": f"EGO does not close {NAME}, which leaves undrained",
    "user logoff": "EGO does not log hf off",
}
"""The log lines about a step of draining that hangs."""


class Leaver:
    """A machine whose EGO hangs while the machine leaves. ``hangs``: the egosh commands that hang."""

    def __init__(self, opened: ExitStack, directory: Path, *hangs: str) -> None:
        directory.mkdir()
        self.machine = Machine(directory)
        opened.callback(self.machine.end)
        self.machine.behave("never-leaves", *(f"{step.split()[-1]}-hangs" for step in hangs))
        timeout = self.machine.getent.with_name("timeout")
        timeout.write_text(LIMITED.format(timeout=shutil.which("timeout")))
        timeout.chmod(0o755)
        self.hanging = hangs
        self._hanging = [*hangs, "ego shutdown"]
        self._scripts: list[subprocess.Popen[bytes]] = []

    def start(self, script: str, **environment: str) -> subprocess.Popen[bytes]:
        self._scripts.append(self.machine.start(script, **environment | OWN_TIMES))
        return self._scripts[-1]

    def seconds(self) -> int:
        """Wait until every script has ended. Return the longest time that the hanging steps may take: the sum of their
        time limits. This sum does not depend on the load of the host."""
        for script in self._scripts:
            script.wait(timeout=120 * PATIENCE)
        noted = (line.split(maxsplit=2) for line in (self.machine.ego / "limits").read_text().splitlines())
        taken = {asked: int(limit) + KILL for limit, _, asked in noted}
        return sum(taken[step] for step in self._hanging)


def leaving_pod(opened: ExitStack, directory: Path, *hangs: str) -> Leaver:
    leaver = Leaver(opened, directory, *hangs)
    pod = leaver.start("entry.sh", HF_MACHINE_NAME=NAME, **account(leaver.machine))
    ready(leaver.machine)
    pod.send_signal(signal.SIGTERM)
    return leaver


def preempted_instance(opened: ExitStack, directory: Path, *hangs: str) -> Leaver:
    """Return a preempted instance, whose shutdown script begins once its start-up script notices the preemption."""
    leaver = Leaver(opened, directory, *hangs)
    server = opened.enter_context(MetadataServer(of_an_instance()))
    settings = account(leaver.machine)
    server.values["instance/attributes/hf-ego-user"] = settings["HF_EGO_USER"]
    server.values["instance/attributes/hf-ego-password-file"] = settings["HF_EGO_PASSWORD_FILE"]
    leaver.start("startup.sh", GCE_METADATA_HOST=server.host)
    ready(leaver.machine)
    assert server.waiting.wait(30 * PATIENCE)
    server.change("instance/preempted", "TRUE")
    leaver.start("shutdown.sh", GCE_METADATA_HOST=server.host)
    return leaver


@pytest.mark.slow
def test_where_every_step_hangs_a_machine_has_left_before_the_cloud_cuts_it_off(tmp_path: Path) -> None:
    with ExitStack() as opened:
        bounds = {
            leaving_pod(opened, tmp_path / "a", "user logon"): POD,
            leaving_pod(opened, tmp_path / "b", "resource close", "user logoff"): POD,
            preempted_instance(opened, tmp_path / "c", "user logon"): INSTANCE,
            preempted_instance(opened, tmp_path / "d", "resource close", "user logoff"): INSTANCE,
        }
        late = [f"{took} s" for leaver, bound in bounds.items() if (took := leaver.seconds()) >= bound]
        assert late == []
        for leaver in bounds:
            assert leaver.machine.calls[-1] == "egosh ego shutdown -f"
            log = leaver.machine.log.read_text()
            assert f"EGO did not let {NAME} go within 12 s" in log
            assert all(HANGING[step] in log for step in leaver.hanging)
