"""The image of a machine: its profile, its EGO and its library, as an installation of Symphony leaves them.

EGO's programs are stand-ins, as in ``test_machine_side.py``.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.support.broken_libraries import broken_libraries
from tests.support.machine import MACHINE, NAME, Machine, log_lines, ready
from tests.support.metadata_server import MetadataServer
from tests.support.waiting import PATIENCE, until

MASTER, ADDRESS = "master1.bank.example", "10.0.0.9"


def profile(machine: Machine, *lines: str) -> str:
    """Write these lines as EGO's profile. Return its path."""
    file = machine.ego / "profile.platform"
    file.write_text("".join(f"{line}\n" for line in lines))
    return str(file)


def ego_conf(machine: Machine, *lines: str) -> str:
    """Write these lines as EGO's ego.conf, and a profile that leads to it. Return the path of the profile."""
    place = machine.ego / "kernel" / "conf"
    place.mkdir(parents=True)
    (place / "ego.conf").write_text("".join(f"{line}\n" for line in lines))
    return profile(machine, f"export EGO_TOP={machine.ego}")


def joins(machine: Machine, **environment: str) -> list[str]:
    """Start a pod, let it join, and end it by SIGTERM. Return the lines that it logged before it joined."""
    pod = machine.start("entry.sh", HF_MACHINE_NAME=NAME, **environment)
    joined = f"joined {environment.get('HF_EGO_MASTER', 'master1')} as {NAME}"
    until(lambda: machine.log.exists() and joined in log_lines(machine), 30, what="it has joined")
    pod.send_signal(signal.SIGTERM)
    assert pod.wait(timeout=30 * PATIENCE) == 0
    lines = log_lines(machine)
    return lines[: lines.index(joined)]


GUARD = """#!/bin/sh
[ -z "${{LD_LIBRARY_PATH-}}" ] || echo {program} >>"$EGO/misled"
exec {program} "$@"
"""


def guard(machine: Machine, *names: str) -> None:
    """Replace these programs by stand-ins that record a start with EGO's libraries. On this host the programs would
    start anyway, but elsewhere they may fail."""
    for name in names:
        file = machine.getent.with_name(name)
        file.write_text(GUARD.format(program=shutil.which(name)))
        file.chmod(0o755)


# --- the profile ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", ["entry.sh", "startup.sh"])
def test_ego_s_programs_alone_start_with_ego_s_libraries(
    script: str, machine: Machine, metadata: MetadataServer, tmp_path: Path
) -> None:
    """Only EGO's own programs may start with EGO's libraries. All programs of the system, such as curl, getent and
    runuser, would fail with these libraries, so each step of the script must start them without."""
    libraries = broken_libraries(tmp_path / "broken")
    (machine.ego / "account").write_text("hf secret")
    password = machine.ego / "password"
    password.write_text("secret")
    metadata.values["instance/attributes/hf-ego-user"] = "hf"
    metadata.values["instance/attributes/hf-ego-password-file"] = str(password)
    metadata.values["instance/attributes/hf-ego-attributes"] = "[resource corehoursaudit]"
    given = {
        "HF_EGO_PROFILE": profile(machine, f"export LD_LIBRARY_PATH={libraries} PYTHONPATH=/opt/ibm/lib64"),
        "HF_EGO_ADMIN": "root" if os.geteuid() == 0 else "",
        "HF_MACHINE_ADDRESS": "",
        "HF_LEAVE_SECONDS": "12",
        "LD_LIBRARY_PATH": libraries,
    }
    if script == "entry.sh":
        given |= {"HF_MACHINE_NAME": NAME, "HF_EGO_USER": "hf", "HF_EGO_PASSWORD_FILE": str(password)}
        given["HF_EGO_ATTRIBUTES"] = "[resource corehoursaudit]"
    guard(machine, "base64", "cat", "cut", "date", "dirname", "env", "id", "mkdir", "mv", "rm", "sleep", "tail")
    process = machine.start(script, GCE_METADATA_HOST=metadata.host, **given)
    ready(machine)
    if script == "entry.sh":
        process.send_signal(signal.SIGTERM)
    else:
        assert metadata.waiting.wait(30 * PATIENCE)
        metadata.change("instance/preempted", "TRUE")
    assert process.wait(timeout=30 * PATIENCE) == 0
    assert {" ".join(call.split()[:3]) for call in machine.calls} >= {
        "egoconfig addresourceattr [resource",
        "egosh ego start",
        "egosh user logon",
        "egosh resource close",
        "egosh ego shutdown",
    }
    assert set((machine.ego / "library-paths").read_text().splitlines()) == {libraries}
    assert not (machine.ego / "misled").exists(), "a program of the system has started with EGO's libraries"
    assert "error while loading shared libraries" not in machine.log.read_text()
    assert log_lines(machine)[-1] == "left EGO"
    assert not list(machine.ready.parent.glob(f"{machine.ready.name}*"))


def test_the_shutdown_script_starts_ego_s_programs_alone_with_its_libraries(
    machine: Machine, metadata: MetadataServer, tmp_path: Path
) -> None:
    libraries = broken_libraries(tmp_path / "broken")
    given = {"HF_EGO_PROFILE": profile(machine, f"export LD_LIBRARY_PATH={libraries}")}
    machine.start("startup.sh", GCE_METADATA_HOST=metadata.host, **given)
    ready(machine)
    asked = len(machine.calls)
    shutdown = machine.start("shutdown.sh", LD_LIBRARY_PATH=libraries, **given)
    assert shutdown.wait(timeout=30 * PATIENCE) == 0
    assert "egosh ego shutdown -f" in machine.calls[asked:]
    assert set((machine.ego / "library-paths").read_text().splitlines()) == {libraries}


@pytest.mark.parametrize("options", [":", "set -u", "set -e", "set -o pipefail", "set -euo pipefail"])
def test_no_profile_ends_the_script_that_reads_it(machine: Machine, options: str) -> None:
    """A command of the profile may fail, and the profile may set options of the shell. The script must continue with
    its own options."""
    lines = ("OLD=$EGO_UNSET", "false", "false | true", "set -e", "test -d /no/such/directory")
    show = "$-:$(shopt -o pipefail || :)"
    line = f'{options}; before="{show}"; . {MACHINE}/lib.sh; [ "$before" = "{show}" ] && touch $EGO/same'
    machine.environment["HF_EGO_PROFILE"] = profile(machine, *lines)
    assert machine.start_line(line).wait(timeout=30 * PATIENCE) == 0
    assert (machine.ego / "same").exists()


@pytest.mark.parametrize(
    ("line", "fails"),
    [
        ("export BINARY_TYPE=fail", True),
        ("export PATH=$PATH:/opt/soam/7.3.2/fail/bin", True),
        ("export BINARY_TYPE=linux-x86_64 PATH=$PATH:/opt/failover/bin", False),
    ],
    ids=["all of it", "one of its parts", "one that does"],
)
def test_a_profile_that_does_not_support_the_kernel_is_said(machine: Machine, line: str, fails: bool) -> None:
    lines = joins(machine, HF_EGO_PROFILE=profile(machine, line))
    kernel = Path("/proc/sys/kernel/osrelease").read_text().strip()
    words = (
        f"{machine.ego}/profile.platform has none for kernel {kernel}, so EGO's programs are missing: correct the image"
    )
    assert lines == ([f"BINARY_TYPE is fail: {words}"] if fails else [])


# --- how long EGO waits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "least"),
    [
        ("EGO_DYNAMIC_HOST_WAIT_TIME=140", 0),
        ("EGO_DYNAMIC_HOST_WAIT_TIME=141", 201),
        ('EGO_DYNAMIC_HOST_WAIT_TIME="10,600"', 660),
        ("EGO_DYNAMIC_HOST_WAIT_TIME=600,10", 660),
        ("EGO_DYNAMIC_HOST_WAIT_TIME = 600 ", 660),
        ("EGO_DYNAMIC_HOST_WAIT_TIME=10m # large grid", 660),
        ("EGO_DYNAMIC_HOST_WAIT_TIME=1H", 3660),
        ("EGO_DYNAMIC_HOST_WAIT_TIME=5\nEGO_DYNAMIC_HOST_WAIT_TIME=0280s", 340),
        ("EGO_DYNAMIC_HOST_WAIT_TIME=600\nEGO_DYNAMIC_HOST_WAIT_TIME=1", 0),
        ("#EGO_DYNAMIC_HOST_WAIT_TIME=600", 0),
        ("EGO_TOP=/opt", 0),
    ],
)
def test_an_ego_that_waits_too_long_for_the_machine_is_said(machine: Machine, line: str, least: int) -> None:
    """EGO may wait before it asks to join. If too little of HF_JOIN_SECONDS is then left, the machine must log the
    least value that HF_JOIN_SECONDS needs: the wait, and 60 s for the other steps."""
    lines = joins(machine, HF_EGO_PROFILE=ego_conf(machine, line), HF_JOIN_SECONDS="200")
    expected_line = (
        f"EGO may wait {least - 60} s until it asks to join, and HF_JOIN_SECONDS is 200: set at least {least}, "
        f"or lower EGO_DYNAMIC_HOST_WAIT_TIME in {machine.ego}/kernel/conf/ego.conf"
    )
    assert lines == ([expected_line] if least else [])


@pytest.mark.parametrize("page_s", [("60", "120"), ("600", "660")])
def test_the_page_s_least_times_to_join_are_long_enough(machine: Machine, page_s: tuple[str, str]) -> None:
    wait, least = page_s
    page = (MACHINE.parents[1] / "docs" / "deploy-machine.md").read_text()
    assert f"at least {least} with {wait}" in page
    conf = ego_conf(machine, f"EGO_DYNAMIC_HOST_WAIT_TIME={wait}")
    assert joins(machine, HF_EGO_PROFILE=conf, HF_JOIN_SECONDS=least) == []


def test_a_wait_of_an_unknown_form_is_said(machine: Machine) -> None:
    lines = joins(machine, HF_EGO_PROFILE=ego_conf(machine, "EGO_DYNAMIC_HOST_WAIT_TIME=soon"))
    assert lines == [f"EGO_DYNAMIC_HOST_WAIT_TIME is soon in {machine.ego}/kernel/conf/ego.conf: unknown form"]


# --- attributes -------------------------------------------------------------------------------------------------------

ATTRIBUTES = "[resourcemap gcp*cloudprovider] [resource corehoursaudit]"
SET = f"egoconfig addresourceattr {ATTRIBUTES}"


@pytest.mark.parametrize("refused", [False, True], ids=["at once", "once EGO takes them"])
def test_a_machine_s_attributes_are_set_before_ego_starts(machine: Machine, refused: bool) -> None:
    if refused:
        machine.behave("refuses-attributes")
    lines = joins(machine, HF_EGO_ATTRIBUTES=ATTRIBUTES)
    sets = [SET] * (1 + refused)
    assert machine.calls[: len(sets) + 2] == ["egoconfig join master1 -f", *sets, "egosh ego start"]
    expected_line = f'egoconfig addresourceattr "{ATTRIBUTES}" ended with 1 and said: Cannot write ego.conf'
    assert lines == ([expected_line] if refused else [])


def test_attributes_that_ego_does_not_have_are_said_and_ego_does_not_start(machine: Machine) -> None:
    machine.behave("unknown-attributes")
    pod = machine.start("entry.sh", HF_MACHINE_NAME=NAME, HF_EGO_ATTRIBUTES=ATTRIBUTES, HF_JOIN_SECONDS="1")
    assert pod.wait(timeout=30 * PATIENCE) == 1
    assert log_lines(machine)[0] == f'egoconfig addresourceattr "{ATTRIBUTES}" ended with 1 and said: Unknown resource'
    assert log_lines(machine)[1].startswith(f"did not join master1 as {NAME} within 1 s")
    assert "egosh ego start" not in machine.calls


def test_attributes_that_a_boot_before_has_set_are_not_set_again(machine: Machine) -> None:
    joins(
        machine,
        HF_EGO_ATTRIBUTES=ATTRIBUTES,
        HF_EGO_PROFILE=ego_conf(machine, f'EGO_LOCAL_RESOURCES="{ATTRIBUTES} [resource other]"'),
    )
    assert machine.calls[:2] == ["egoconfig join master1 -f", "egosh ego start"]


@pytest.mark.parametrize(
    "attributes", ["cloudprovider", "[resource a] b", "[resourcemap cloudprovider]", "[resource a b]", "[a*b]", " "]
)
def test_attributes_of_a_wrong_form_are_said_and_it_does_not_join(machine: Machine, attributes: str) -> None:
    pod = machine.start("entry.sh", HF_MACHINE_NAME=NAME, HF_EGO_ATTRIBUTES=attributes)
    assert pod.wait(timeout=30 * PATIENCE) == 1
    form = "expected [resource NAME] or [resourcemap VALUE*NAME], or several"
    assert log_lines(machine) == [f"HF_EGO_ATTRIBUTES is {attributes}: {form}"]
    assert machine.calls == []


# --- the master by address --------------------------------------------------------------------------------------------

LINE = f"{ADDRESS} {MASTER} master1"


@pytest.mark.parametrize("place", ["EGO_CONFDIR", "EGO_TOP"])
def test_a_master_s_address_is_written_once_for_system_and_ego(machine: Machine, place: str) -> None:
    """The second boot of an instance must find the line and not write it again."""
    given = {"HF_EGO_PROFILE": ego_conf(machine), "HF_EGO_MASTER": MASTER, "HF_EGO_MASTER_ADDRESS": ADDRESS}
    conf = machine.ego / "kernel" / "conf"
    if place == "EGO_CONFDIR":
        conf = machine.ego / "shared"
        conf.mkdir()
        profile(machine, f"export EGO_TOP={machine.ego} EGO_CONFDIR={conf}")
    for _ in range(2):
        assert joins(machine, **given) == []
        machine.log.write_text("")
    assert (conf / "hosts").read_text() == f"{LINE}\n"
    assert [line for line in machine.hosts.read_text().splitlines() if MASTER in line] == [LINE]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("127.0.0.1 localhost", f"127.0.0.1 localhost\n{LINE}\n", id="a last line without its end"),
        pytest.param(f"10.7.7.7\t{MASTER}\n", f"{LINE}\n10.7.7.7\t{MASTER}\n", id="another address comes below"),
        pytest.param(
            f"10.7.7.7 {MASTER}\n{LINE}\n", f"{LINE}\n10.7.7.7 {MASTER}\n", id="the line is there, but below another"
        ),
        pytest.param(f"#{ADDRESS} {MASTER}\n", f"#{ADDRESS} {MASTER}\n{LINE}\n", id="a comment"),
        pytest.param(f"{ADDRESS} x # {MASTER}\n", f"{ADDRESS} x # {MASTER}\n{LINE}\n", id="a comment behind a line"),
        pytest.param(f"{ADDRESS} x{MASTER}\n", f"{ADDRESS} x{MASTER}\n{LINE}\n", id="a longer name"),
        pytest.param(f"{ADDRESS}\tm1\t{MASTER}", f"{ADDRESS}\tm1\t{MASTER}", id="as hostAliases write it"),
    ],
)
def test_a_hosts_file_leads_to_the_master_s_address(machine: Machine, before: str, after: str) -> None:
    own = f"10.1.2.3 {NAME}\n"
    machine.hosts.write_text(f"{own}{before}")
    joins(machine, HF_EGO_MASTER=MASTER, HF_EGO_MASTER_ADDRESS=ADDRESS)
    assert machine.hosts.read_text().replace(own, "") == after


def test_a_hosts_file_that_cannot_be_written_is_said_and_it_tries_to_join(machine: Machine) -> None:
    given = {"HF_EGO_PROFILE": profile(machine, "EGO_CONFDIR=/proc/nowhere")}
    lines = joins(machine, HF_EGO_MASTER=MASTER, HF_EGO_MASTER_ADDRESS=ADDRESS, **given)
    words = "which cannot be written: use hostAliases, or run as root"
    assert lines == [f"{MASTER} is not {ADDRESS} in /proc/nowhere/hosts, {words}"]


def test_a_master_s_address_that_is_none_is_said_and_it_does_not_join(machine: Machine) -> None:
    pod = machine.start("entry.sh", HF_MACHINE_NAME=NAME, HF_EGO_MASTER_ADDRESS="master1.bank")
    assert pod.wait(timeout=30 * PATIENCE) == 1
    assert log_lines(machine) == ["HF_EGO_MASTER_ADDRESS is master1.bank: expected an IP address"]
    assert machine.calls == []


def test_an_instance_has_address_and_attributes_from_its_template(machine: Machine, metadata: MetadataServer) -> None:
    metadata.values["instance/attributes/hf-ego-master-address"] = ADDRESS
    metadata.values["instance/attributes/hf-ego-attributes"] = ATTRIBUTES
    machine.start("startup.sh", GCE_METADATA_HOST=metadata.host)
    ready(machine)
    assert f"{ADDRESS} master2" in machine.hosts.read_text().splitlines()
    assert SET in machine.calls


# --- a library from a file --------------------------------------------------------------------------------------------

SYSTEMD_RUN = """#!/bin/sh
while [ "$1" != bash ]; do shift; done
exec setsid "$@" >"$EGO/service" 2>&1 </dev/null &
"""
"""A stand-in of systemd-run. The service that it starts is no child of the process that calls it."""


@pytest.mark.parametrize("systemd", [True, False], ids=["with systemd", "without"])
def test_with_a_library_of_its_image_a_start_up_script_ends_after_joining(
    machine: Machine, metadata: MetadataServer, tmp_path: Path, systemd: bool
) -> None:
    """Run the script as a step of another start-up script, which then continues. The settings still come from the
    instance's attributes."""
    del metadata.values["instance/attributes/hf-machine-lib"]
    library = Path(shutil.copy(MACHINE / "lib.sh", tmp_path / "lib.sh"))
    command = machine.getent.with_name("systemd-run")
    command.write_text(SYSTEMD_RUN)
    command.chmod(0o755)
    machine.environment["HF_EGO_PROFILE"] = profile(machine, 'echo $# >>"$EGO/arguments"')
    machine.environment |= {"GCE_METADATA_HOST": metadata.host, "HF_SYSTEMD": str(tmp_path) if systemd else "/nowhere"}
    assert machine.start_line(f"bash {MACHINE}/startup.sh {library}").wait(timeout=30 * PATIENCE) == 0
    assert machine.ready.exists()
    assert machine.calls[0] == "egoconfig join master2 -f"
    assert (machine.ego / "arguments").read_text()[0] == "0", (
        "the profile does not take the library for its own argument"
    )
    if systemd:
        assert metadata.waiting.wait(30 * PATIENCE)
        metadata.change("instance/preempted", "TRUE")
        until(lambda: machine.calls[-1] == "egosh ego shutdown -f", 30, what="the service leaves")
    else:
        assert log_lines(machine)[-1].endswith("that waits for a preemption: the shutdown script alone leaves EGO")
        assert machine.start("shutdown.sh").wait(timeout=30 * PATIENCE) == 0
        assert machine.calls[-1] == "egosh ego shutdown -f"


@pytest.mark.parametrize("content", [None, ""], ids=["missing", "empty"])
def test_a_library_that_cannot_be_read_is_said_and_it_powers_off(
    machine: Machine, metadata: MetadataServer, content: str | None
) -> None:
    library = machine.ego / "lib.sh"
    if content is not None:
        library.write_text(content)
    machine.environment["GCE_METADATA_HOST"] = metadata.host
    assert machine.start_line(f"bash {MACHINE}/startup.sh {library}").wait(timeout=30 * PATIENCE) == 1
    assert f"hf-machine: {library} is no library to read: name a copy of lib.sh" in machine.log.read_text()
    assert machine.calls == ["poweroff "]
