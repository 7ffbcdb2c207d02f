"""The five scripts as processes: which Python they choose, in which directories they search, and what they cost.
tests/conformance tests HostFactory's interface."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from hf_scripts.slurm_programs import PROGRAMS
from provisioner.hostfactory import Answer, Loss
from provisioner.hostfactory.slurm_file import FILE
from tests.support.hostfactory.provider import COMMANDS, ROOT, SCRIPTS, HostFactory
from tests.support.hostfactory.schemas import check_output
from tests.support.waiting import PATIENCE, until

INPUTS: dict[str, object] = {
    "getAvailableTemplates": {},
    "requestMachines": {"template": {"templateId": "T1", "machineCount": 3}},
    "getRequestStatus": {"requests": [{"requestId": "r-unknown"}]},
    "requestReturnMachines": {"machines": [{"name": "a.x", "machineId": "a"}]},
    "getReturnRequests": {"machines": [{"name": "a.x", "machineId": "a"}]},
}


@pytest.fixture
def hf(tmp_path: Path) -> HostFactory:
    return HostFactory(tmp_path)


def machine(name: str, **fields: object) -> dict[str, object]:
    """Return a machine's entry in an answer."""
    entry = {"machineId": name, "name": name, "result": "succeed", "status": "running", "message": ""}
    return entry | {"privateIpAddress": "10.0.0.7", "publicIpAddress": "", "launchtime": 1_734_619_942} | fields


def answer(request: str, status: str, *machines: dict[str, object]) -> Answer:
    """Return the answer that the loop publishes for a request."""
    entry = {"requestId": request, "status": status, "message": "", "machines": list(machines)}
    return Answer(json.dumps(entry), ended=status != "running")


# --- how they are called ----------------------------------------------------------------------------------------------


def test_links_to_the_scripts_are_followed(hf: HostFactory, tmp_path: Path) -> None:
    scripts = tmp_path / "provider plugins" / "it's scripts"
    scripts.mkdir(parents=True)
    (scripts / "requestMachines.sh").symlink_to(SCRIPTS / "requestMachines.sh")
    (tmp_path / "second.sh").symlink_to(scripts / "requestMachines.sh")
    (tmp_path / "directory").symlink_to(SCRIPTS)
    argument = json.dumps(INPUTS["requestMachines"])
    for script in (
        scripts / "requestMachines.sh",
        tmp_path / "second.sh",
        tmp_path / "directory" / "requestMachines.sh",
    ):
        assert hf.run([str(script), argument]).document["requestId"]


def test_a_relative_path_works_from_its_directory(hf: HostFactory) -> None:
    argument = json.dumps(INPUTS["requestMachines"])
    command = [
        "/bin/sh",
        "-c",
        f'cd "{SCRIPTS}" && ./requestMachines.sh "$1" && sh requestMachines.sh "$1"',
        "sh",
        argument,
    ]
    done = hf.run(command)
    assert (done.code, done.out.count("requestId")) == (0, 2), done


def test_a_relative_state_directory_below_one_that_is_gone_is_refused(hf: HostFactory, tmp_path: Path) -> None:
    command = ["/bin/sh", "-c", 'mkdir "$0" && cd "$0" && rmdir "$0" && exec "$@"', str(tmp_path / "gone")]
    environment = hf.environment | {"HF_PROVIDER_WORKDIR": "work"}
    done = hf.run([*command, *hf.command("getRequestStatus", INPUTS["getRequestStatus"])], environment=environment)
    assert (done.code, done.out.count("\n")) == (1, 1)
    assert done.out.startswith("work: no such directory: the working directory is gone. Give HF_PROVIDER_WORKDIR")
    assert "Traceback" not in done.err, "the shell alone complains"


def test_the_scripts_are_the_same_lines_but_for_the_name() -> None:
    for end in (".sh", ".bat"):
        contents = {name: (SCRIPTS / f"{name}{end}").read_bytes() for name in COMMANDS}
        assert len({content.replace(name.encode(), b"NAME") for name, content in contents.items()}) == 1
        assert all(os.access(SCRIPTS / f"{name}.sh", os.X_OK) for name in COMMANDS)
    assert contents["requestMachines"].count(b"\r\n") == contents["requestMachines"].count(b"\n") == 3


@pytest.mark.parametrize("program", PROGRAMS)
def test_slurms_programs_are_called_by_scripts_of_the_same_lines(hf: HostFactory, program: str) -> None:
    (hf.conf / FILE).write_text('{"nodes": {"c1": "T1"}}')
    called = hf.run([str(SCRIPTS / f"{program}.sh"), "c1"])
    assert (called.code, called.err) == (0, "")
    call = f"exec {SCRIPTS / program}.sh"
    assert hf.run(["sh", "-c", f"{call} c1 0<&- 1>&- 2>&-"]).code == 0, "as slurmctld calls its programs"
    assert hf.run(["sh", "-c", f"{call} 0<&- 1>&- 2>&-"]).code == 1
    assert "expected one argument" in hf.log[-1]["problem"]
    assert hf.state.intent.exists() is (program == "slurm_resume")
    assert hf.log[-1]["command"] == program
    lines = (SCRIPTS / f"{program}.sh").read_bytes()
    assert lines == (SCRIPTS / "requestMachines.sh").read_bytes().replace(b"requestMachines", program.encode())


# --- which Python -----------------------------------------------------------------------------------------------------


def copied(directory: Path) -> Path:
    """Copy the scripts without the package, because only the choice of Python is tested. Return the path of one
    script."""
    directory.mkdir(parents=True)
    for name in ("python", "requestMachines.sh"):
        shutil.copy(SCRIPTS / name, directory / name)
    return directory / "requestMachines.sh"


def named(path: Path) -> Path:
    """Make a stand-in for Python that prints its own path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('#!/bin/sh\necho "$0"\n')
    path.chmod(0o755)
    return path


def chosen(script: Path, **environment: str) -> str:
    done = subprocess.run(
        [script, "{}"], env=environment, capture_output=True, text=True, check=False, timeout=30 * PATIENCE
    )
    return os.path.realpath(done.stdout.strip())


def test_the_clone_s_virtual_environment_is_chosen(tmp_path: Path) -> None:
    script = copied(tmp_path / "a clone" / "hf_scripts")
    python = named(tmp_path / "a clone" / ".venv" / "bin" / "python")
    assert chosen(script) == str(python)


def test_the_virtual_environment_that_holds_the_package_is_chosen(tmp_path: Path) -> None:
    script = copied(tmp_path / "an env" / "lib" / "python3.11" / "site-packages" / "hf_scripts")
    python = named(tmp_path / "an env" / "bin" / "python")
    assert chosen(script) == str(python)


LINKS = {
    "the directory of packages": ("packages", "env/lib/python3.11/site-packages", "packages/hf_scripts"),
    "a name beside the scripts": ("env/lib/python3.11/site-packages/scripts", "hf_scripts", "{packages}/scripts"),
    "the scripts": ("scripts", "env/lib/python3.11/site-packages/hf_scripts", "scripts"),
    "the environment": ("link", "env", "link/lib/python3.11/site-packages/hf_scripts"),
    "lib64": ("env/lib64", "lib", "env/lib64/python3.11/site-packages/hf_scripts"),
    "no link, but a detour": ("unused", "env", "{packages}/hf_scripts/../hf_scripts"),
}


@pytest.mark.parametrize(("link", "target", "called"), LINKS.values(), ids=LINKS)
def test_links_to_directories_lead_to_the_same_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str, target: str, called: str
) -> None:
    packages = "env/lib/python3.11/site-packages"
    copied(tmp_path / packages / "hf_scripts")
    python = named(tmp_path / "env" / "bin" / "python")
    (tmp_path / link).symlink_to(target)
    script = Path(called.format(packages=packages), "requestMachines.sh")
    monkeypatch.chdir(tmp_path)
    assert {chosen(tmp_path / script), chosen(script)} == {str(python)}


def test_a_relative_path_from_beside_the_packages_leads_to_the_same_python(tmp_path: Path, monkeypatch) -> None:
    copied(tmp_path / "lib" / "python3.11" / "site-packages" / "hf_scripts")
    python = named(tmp_path / "bin" / "python")
    monkeypatch.chdir(tmp_path / "lib" / "python3.11")
    assert chosen(Path("site-packages", "hf_scripts", "requestMachines.sh")) == str(python)


def test_a_path_that_begins_like_an_option_is_a_path(tmp_path: Path, monkeypatch) -> None:
    copied(tmp_path / "-x" / "hf_scripts")
    python = named(tmp_path / "-x" / ".venv" / "bin" / "python")
    monkeypatch.chdir(tmp_path)
    command = ["sh", "--", "-x/hf_scripts/requestMachines.sh", "{}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30 * PATIENCE)
    assert (os.path.realpath(done.stdout.strip()), done.stderr) == (str(python), "")


def test_a_python_four_levels_up_is_left_alone_where_nothing_is_installed(tmp_path: Path) -> None:
    script = copied(tmp_path / "a" / "b" / "c" / "hf_scripts")
    named(tmp_path / "bin" / "python")
    path = named(tmp_path / "path" / "python3").parent
    assert chosen(script, PATH=f"{path}:/usr/bin:/bin") == str(path / "python3")


def test_hf_python_is_chosen_before_all_others(tmp_path: Path) -> None:
    script = copied(tmp_path / "clone" / "hf_scripts")
    named(tmp_path / "clone" / ".venv" / "bin" / "python")
    mine = named(tmp_path / "my python")
    assert chosen(script, HF_PYTHON=str(mine)) == str(mine)


def test_a_python_that_cannot_serve_is_named_on_stdout(hf: HostFactory, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    for python, words in (
        ("/no/such/python", "is no program"),
        ("no-such-python", "is no program"),
        (str(tmp_path / "bare" / "bin" / "python"), "No module named 'tinydb'"),
    ):
        environment = hf.environment | {"HF_PYTHON": python}
        refusal = hf.run(hf.command("getReturnRequests", {}), environment=environment).refusal
        advice = "set HF_PYTHON to the Python that hostfactory-provisioner is installed for"
        assert refusal == f"{python}: {words}: {advice}"


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_the_answer_is_not_read(hf: HostFactory) -> None:
    """If HostFactory has closed the pipe before the script prints, the call fails without a traceback. Its request is
    recorded, but never polled, so the loop will cancel it."""
    reader, writer = os.pipe()
    os.close(reader)
    command = hf.command("requestMachines", INPUTS["requestMachines"])
    done = subprocess.run(
        command, env=hf.environment, stdout=writer, stderr=subprocess.PIPE, check=False, timeout=30 * PATIENCE
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")
    assert hf.log[-1]["severity"] == "ERROR"


PIPE_BYTES = 65536


def waiting(pipe: int) -> int:
    """Return the number of bytes in a pipe that the reader has not read."""
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0]  # type: ignore[no-any-return]


def test_an_answer_comes_whole_through_a_pipe_that_refuses_to_wait_for_its_reader(hf: HostFactory) -> None:
    request = hf.request("T2", 1)
    hf.state.status.write({request: answer(request, "complete", *(machine(f"m{n}") for n in range(2000)))}, {})
    command = hf.command("getRequestStatus", {"requests": [{"requestId": request}]})
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with subprocess.Popen(command, env=hf.environment, stdout=writer, stderr=subprocess.PIPE) as script:
        os.close(writer)
        until(lambda: waiting(reader) > PIPE_BYTES - 4096, 30, what="the pipe is full")
        assert script.poll() is None
        with open(reader, "rb") as pipe:
            document = json.loads(pipe.read())
    assert script.returncode == 0
    assert len(document["requests"][0]["machines"]) == 2000


def test_a_log_that_is_the_answer_s_own_pipe_is_not_written(hf: HostFactory) -> None:
    (hf.conf / "demoinstprov_config.json").write_text('{"LOGFILE": "/dev/stdout"}')
    check_output("getAvailableTemplates", hf.run(hf.command("getAvailableTemplates", {})).document)


# --- what they cost ---------------------------------------------------------------------------------------------------

HEAVY = {"yaml", "pydantic", "kubernetes", "google", "requests", "aiohttp", "rich", "prometheus_client"}
HEAVY |= {"hypothesis", "tornado"}
SLOW = {"asyncio", "dataclasses", "inspect", "logging", "socket", "ssl", "subprocess", "urllib", "datetime", "random"}


def test_no_command_imports_a_cloud_client_nor_anything_slow(hf: HostFactory) -> None:
    request = hf.request()
    hf.state.status.write({request: answer(request, "running")}, {"a": Loss(0)})
    calls = {name: json.dumps(document) for name, document in INPUTS.items()}
    calls["getRequestStatus"] = json.dumps({"requests": [{"requestId": request}]})
    program = (
        "import sys; before = set(sys.modules); import json, os; sys.path.insert(0, sys.argv[1])\n"
        "from hf_scripts import commands\n"
        "codes = [commands.run(name, [text], os.environ) for name, text in json.loads(sys.argv[2]).items()]\n"
        "print(json.dumps([codes, sorted(set(sys.modules) - before)]))"
    )
    done = hf.run([sys.executable, "-I", "-c", program, str(ROOT), json.dumps(calls)])
    codes, modules = json.loads(done.out.splitlines()[-1])
    assert codes == [0] * 5
    roots = {module.partition(".")[0] for module in modules}
    assert roots & (HEAVY | SLOW) == set()
    assert "tinydb" in roots
    state = (
        *("atomic", "batched_writes", "database", "directory", "errors", "poll_markers", "intent_file"),
        *("locks", "marker_files", "new_ids", "opening", "settled_answers", "state_file", "status_file"),
    )
    assert {module for module in modules if module.startswith("provisioner.")} <= {
        *("provisioner.files", "provisioner.files.config_error", "provisioner.files.safe_open"),
        *("provisioner.names", "provisioner.utc"),
        "provisioner.state",
        *("provisioner.hostfactory", "provisioner.hostfactory.provider_config", "provisioner.hostfactory.templates"),
        *(f"provisioner.state.{name}" for name in state),
    }
