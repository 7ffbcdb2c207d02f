"""The five scripts as processes: which Python they choose, where they look, what they cost.

What the interface says of them is in tests/conformance.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.hostfactory.answer import Answer, Loss
from tests.support.hostfactory.provider import COMMANDS, ROOT, SCRIPTS, HostFactory
from tests.support.hostfactory.schemas import check_output

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
    """A machine's entry in an answer."""
    entry = {"machineId": name, "name": name, "result": "succeed", "status": "running", "message": ""}
    return entry | {"privateIpAddress": "10.0.0.7", "publicIpAddress": "", "launchtime": 1_734_619_942} | fields


def answer(request: str, status: str, *machines: dict[str, object]) -> Answer:
    """What the loop publishes for a request."""
    entry = {"requestId": request, "status": status, "message": "", "machines": list(machines)}
    return Answer(json.dumps(entry), ended=status != "running")


# --- how they are called ----------------------------------------------------------------------------------------------


def test_python_s_own_variables_and_locale_change_nothing(hf: HostFactory, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('a stray module was imported')")
    environment = hf.environment | {
        "PYTHONPATH": str(tmp_path),
        "PYTHONHOME": "/nowhere",
        "PYTHONWARNINGS": "always",
        "PYTHONVERBOSE": "1",
        "LC_ALL": "C",
        "HF_LOGLEVEL": "LOG_TRACE",
    }
    (hf.conf / "demoinstprov_config.json").write_text('{"LOG_LEVEL": "DEBUG"}')
    for name in COMMANDS:
        check_output(name, hf.run(hf.command(name, INPUTS[name]), environment=environment).document)
    assert {line["command"] for line in hf.log} == set(COMMANDS)
    assert [path.name for path in hf.logs.iterdir()] == ["demoinst-provider.master1.log"]


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


@pytest.mark.parametrize("name", ["requestMachines", "requestReturnMachines", "getRequestStatus", "getReturnRequests"])
def test_a_relative_state_directory_below_one_that_is_gone_is_refused(
    hf: HostFactory, tmp_path: Path, name: str
) -> None:
    command = ["/bin/sh", "-c", 'mkdir "$0" && cd "$0" && rmdir "$0" && exec "$@"', str(tmp_path / "gone")]
    environment = hf.environment | {"HF_PROVIDER_WORKDIR": "work"}
    done = hf.run([*command, *hf.command(name, INPUTS[name])], environment=environment)
    assert (done.code, done.out.count("\n")) == (1, 1)
    assert done.out.startswith("work: no such directory: the working directory is gone. Give HF_PROVIDER_WORKDIR")
    assert "Traceback" not in done.err, "the shell alone complains"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_script_is_three_lines_in_both_worlds(name: str) -> None:
    shell, windows = SCRIPTS / f"{name}.sh", SCRIPTS / f"{name}.bat"
    assert os.access(shell, os.X_OK)
    for script, end in ((shell, b"\n"), (windows, b"\r\n")):
        content = script.read_bytes()
        assert content.endswith(end)
        assert len(content.split(end)) == 4
        assert f" {name} ".encode() in content
    assert windows.read_bytes().count(b"\n") == windows.read_bytes().count(b"\r\n")


# --- which Python -----------------------------------------------------------------------------------------------------


def copied(directory: Path) -> Path:
    """The scripts without the package, where only the choice of Python is looked at."""
    directory.mkdir(parents=True)
    for name in ("python", "requestMachines.sh"):
        shutil.copy(SCRIPTS / name, directory / name)
    return directory / "requestMachines.sh"


def named(path: Path) -> Path:
    """A Python that says which one it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('#!/bin/sh\necho "$0"\n')
    path.chmod(0o755)
    return path


def chosen(script: Path, **environment: str) -> str:
    done = subprocess.run([script, "{}"], env=environment, capture_output=True, text=True, check=False, timeout=30)
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
@pytest.mark.parametrize("relative", [False, True], ids=["absolute", "relative"])
def test_links_to_directories_lead_to_the_same_python(
    tmp_path: Path, monkeypatch, link: str, target: str, called: str, relative: bool
) -> None:
    packages = "env/lib/python3.11/site-packages"
    copied(tmp_path / packages / "hf_scripts")
    python = named(tmp_path / "env" / "bin" / "python")
    (tmp_path / link).symlink_to(target)
    script = Path(called.format(packages=packages), "requestMachines.sh")
    monkeypatch.chdir(tmp_path)
    assert chosen(script if relative else tmp_path / script) == str(python)


def test_a_relative_path_from_beside_the_packages_leads_to_the_same_python(tmp_path: Path, monkeypatch) -> None:
    copied(tmp_path / "lib" / "python3.11" / "site-packages" / "hf_scripts")
    python = named(tmp_path / "bin" / "python")
    monkeypatch.chdir(tmp_path / "lib" / "python3.11")
    assert chosen(Path("site-packages", "hf_scripts", "requestMachines.sh")) == str(python)


def test_a_path_that_looks_like_an_option_is_a_path(tmp_path: Path, monkeypatch) -> None:
    copied(tmp_path / "-x" / "hf_scripts")
    python = named(tmp_path / "-x" / ".venv" / "bin" / "python")
    monkeypatch.chdir(tmp_path)
    command = ["sh", "--", "-x/hf_scripts/requestMachines.sh", "{}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
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


@pytest.mark.parametrize("name", COMMANDS)
def test_a_python_that_cannot_serve_is_named_on_stdout(hf: HostFactory, tmp_path: Path, name: str) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    for python, words in (
        ("/no/such/python", "is no program"),
        ("no-such-python", "is no program"),
        (str(tmp_path / "bare" / "bin" / "python"), "No module named 'tinydb'"),
    ):
        refusal = hf.run(hf.command(name, INPUTS[name]), environment=hf.environment | {"HF_PYTHON": python}).refusal
        advice = "set HF_PYTHON to the Python that hostfactory-provisioner is installed for"
        assert refusal == f"{python}: {words}: {advice}"


# --- where they look --------------------------------------------------------------------------------------------------


def test_hf_s_common_directories_serve_where_the_instance_s_own_are_not_set(tmp_path: Path) -> None:
    hf = HostFactory(tmp_path / "unused")
    for kind, source in (("conf", hf.conf), ("work", hf.work)):
        place = tmp_path / kind / "providers" / "demoinst"
        shutil.copytree(source, place)
    common = {
        "HF_PROVIDER_NAME": "demoinst",
        "HF_CONFDIR": str(tmp_path / "conf"),
        "HF_WORKDIR": str(tmp_path / "work"),
    }
    for name in COMMANDS:
        check_output(name, hf.run(hf.command(name, INPUTS[name]), environment=common).document)
    assert (tmp_path / "work" / "providers" / "demoinst" / "intent.json").exists()


def test_lsf_s_variables_serve_too(tmp_path: Path) -> None:
    hf = HostFactory(tmp_path)
    (hf.work / "demoinst").mkdir()
    lsf = {"PROVIDER_NAME": "demoinst", "PRO_CONF_DIR": str(hf.conf), "PRO_DATA_DIR": str(hf.work)}
    lsf["PRO_LSF_LOGDIR"] = str(hf.logs)
    answers = {name: hf.run(hf.command(name, INPUTS[name]), environment=lsf).document for name in COMMANDS}
    for name, answer in answers.items():
        check_output(name, answer)
    assert answers["getAvailableTemplates"]["templates"][0]["attributes"]["mem"] == ["Numeric", "8192"]
    assert {line["command"] for line in hf.log} == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_missing_variable_is_named(hf: HostFactory, name: str) -> None:
    variable = {"getAvailableTemplates": "HF_PROVIDER_CONFDIR", "requestMachines": "HF_PROVIDER_CONFDIR"}
    assert hf.run(hf.command(name, INPUTS[name]), environment={"HF_PROVIDER_NAME": "demoinst"}).refusal.startswith(
        variable.get(name, "HF_PROVIDER_WORKDIR")
    )


def test_a_log_directory_that_is_missing_stops_nothing(hf: HostFactory) -> None:
    hf.logs.rmdir()
    assert hf.request()
    assert not hf.logs.exists()


# --- the way of a request ---------------------------------------------------------------------------------------------


def test_a_request_its_machines_a_loss_and_the_return_as_hf_sees_them(hf: HostFactory) -> None:
    request = hf.request("T1", 2)
    assert [(entry["status"], entry["machines"]) for entry in hf.status(request)] == [("running", [])]
    good, bad = f"hf-{request}-000000", f"hf-{request}-000001"
    hf.state.status.write({request: answer(request, "complete", machine(good), machine(bad))}, {bad: Loss(0)})
    hf.state.heartbeat.touch()
    first, again = hf.status(request), hf.status(request)
    assert first == again
    assert [(one["name"], one["result"]) for one in first[0]["machines"]] == [(good, "succeed"), (bad, "succeed")]
    hosts = {"machines": [{"name": f"{name}.c.p.internal", "machineId": name} for name in (good, bad)]}
    lost = hf.call("getReturnRequests", hosts)["requests"]
    assert lost == [{"machine": f"{bad}.c.p.internal", "machineId": bad, "gracePeriod": 0}]
    back = hf.give_back(lost[0]["machine"])
    assert hf.call("getReturnRequests", hosts)["requests"] == []
    assert hf.state.intent.read().returns[back].names == (bad,)
    assert [entry["status"] for entry in hf.status(request, back)] == ["complete", "running"]


@pytest.mark.slow
def test_ten_thousand_machines_are_printed_whole_and_compared(hf: HostFactory) -> None:
    request = hf.request("T2", 10_000)
    names = [f"hf-{request}-{number:06d}" for number in range(10_000)]
    hf.state.status.write(
        {request: answer(request, "complete", *(machine(name) for name in names))},
        {name: Loss(0) for name in names[::2]},
    )
    assert [entry["name"] for entry in hf.status(request)[0]["machines"]] == names
    lost = hf.call("getReturnRequests", {"machines": [{"name": name} for name in names]})["requests"]
    assert [entry["machine"] for entry in lost] == names[::2]


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_nobody_reads_the_answer(hf: HostFactory) -> None:
    """The call fails without a traceback; the recorded request is never polled, so the loop cancels it."""
    reader, writer = os.pipe()
    os.close(reader)
    command = hf.command("requestMachines", INPUTS["requestMachines"])
    done = subprocess.run(command, env=hf.environment, stdout=writer, stderr=subprocess.PIPE, check=False, timeout=30)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")
    assert hf.log[-1]["severity"] == "ERROR"


def test_an_answer_comes_whole_through_a_pipe_that_refuses_to_wait_for_its_reader(hf: HostFactory) -> None:
    request = hf.request("T2", 1)
    hf.state.status.write({request: answer(request, "complete", *(machine(f"m{n}") for n in range(2000)))}, {})
    command = hf.command("getRequestStatus", {"requests": [{"requestId": request}]})
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with subprocess.Popen(command, env=hf.environment, stdout=writer, stderr=subprocess.PIPE) as script:
        os.close(writer)
        with pytest.raises(subprocess.TimeoutExpired):  # the pipe is full
            script.wait(1)
        with open(reader, "rb") as pipe:
            document = json.loads(pipe.read())
    assert script.returncode == 0
    assert len(document["requests"][0]["machines"]) == 2000


def pipe_without_ends(path: Path) -> None:
    """A FIFO that nobody reads and nobody writes."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def a_device(path: Path) -> None:
    """Make a device that gives bytes for ever."""
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


NO_FILES = pytest.mark.parametrize("make", [pipe_without_ends, a_device])


@NO_FILES
@pytest.mark.parametrize("name", COMMANDS)
def test_an_input_that_is_no_regular_file_is_refused_at_once(
    hf: HostFactory, name: str, make: Callable[[Path], None]
) -> None:
    make(hf.input)
    called = hf.run([str(SCRIPTS / f"{name}.sh"), "-f", str(hf.input)], seconds=30)
    assert called.refusal == f"{hf.input}: is no regular file"
    assert list(hf.work.iterdir()) == []


@NO_FILES
def test_a_log_or_a_trace_that_is_no_regular_file_stops_nothing(hf: HostFactory, make: Callable[[Path], None]) -> None:
    log, trace = hf.logs / "demoinst-provider.master1.log", hf.input.with_name("trace")
    make(log)
    make(trace)
    for name in COMMANDS:
        command = [*hf.command(name, INPUTS[name]), "--record", str(trace)]
        check_output(name, hf.run(command, seconds=30).document)


def test_a_log_that_is_the_answer_s_own_pipe_is_not_written(hf: HostFactory) -> None:
    (hf.conf / "demoinstprov_config.json").write_text('{"LOGFILE": "/dev/stdout"}')
    check_output("getAvailableTemplates", hf.run(hf.command("getAvailableTemplates", {})).document)


def test_a_site_that_keeps_every_log_waits_for_no_rotation(hf: HostFactory) -> None:
    (hf.conf / "demoinstprov_config.json").write_text('{"LOG_MAX_FILE_SIZE": 0.0001, "LOG_MAX_ROTATE": 999999999999}')
    for _ in range(3):
        hf.run(hf.command("getReturnRequests", {}), seconds=30)
    assert len(list(hf.logs.iterdir())) == 3


@NO_FILES
def test_configuration_that_is_no_regular_file_is_named(hf: HostFactory, make: Callable[[Path], None]) -> None:
    make(hf.templates_file)
    called = hf.run(hf.command("requestMachines", INPUTS["requestMachines"]), seconds=30)
    assert called.refusal == f"{hf.templates_file}: is no regular file"


# --- what they cost ---------------------------------------------------------------------------------------------------

HEAVY = {"yaml", "pydantic", "kubernetes", "google", "requests", "aiohttp", "rich", "prometheus_client", "hypothesis"}
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
        *("additions", "atomic", "condition", "config_marks", "database", "directory", "errors", "group_commit"),
        *("hf_signals", "intent", "locks", "loop_signals", "marks", "state_file", "status", "terminal_answers"),
    )
    assert {module for module in modules if module.startswith("provisioner.")} <= {
        *("provisioner.files", "provisioner.files.problem", "provisioner.files.regular", "provisioner.names"),
        "provisioner.state",
        *("provisioner.hostfactory", *(f"provisioner.hostfactory.{name}" for name in ("answer", "digest"))),
        *("provisioner.hostfactory.environment", "provisioner.hostfactory.templates"),
        *(f"provisioner.state.{name}" for name in state),
    }
