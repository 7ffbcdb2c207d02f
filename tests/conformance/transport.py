"""Cases 1 to 22 of the conformance checklist: HostFactory's calls of the scripts, and disturbances that must not
matter."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from hf_scripts.input_documents import USAGE
from tests.conformance.stage import Cases, Grid
from tests.support.hostfactory.provider import COMMANDS, SCRIPTS, HostFactory, requesting
from tests.support.hostfactory.schemas import check_output
from tests.support.waiting import PATIENCE

CASES = Cases()
case = CASES.case

INPUTS: dict[str, object] = {
    "getAvailableTemplates": {},
    "requestMachines": requesting(),
    "getRequestStatus": {"requests": [{"requestId": "abcdefghij"}]},
    "requestReturnMachines": {"machines": [{"name": "a.x", "machineId": "a"}]},
    "getReturnRequests": {"machines": [{"name": "a.x", "machineId": "a"}]},
}


@case(1, "X.sh -f file → one JSON document, exit 0", loop=False, processes=True)
def answers(hf: Grid) -> None:
    for name in COMMANDS:
        hf.call(name, INPUTS[name])


@case(2, "X.bat -f file on Windows → the same bytes, the exit code propagated", loop=False)
def windows(hf: Grid) -> None:
    for name in COMMANDS:
        text = (SCRIPTS / f"{name}.bat").read_bytes()
        assert text.count(b"\n") == text.count(b"\r\n") == 3
        last = text.decode("ascii").splitlines()[-1]
        assert last.startswith('"%HF_PYTHON%" '), "the last command's exit code is the script's"
        assert last.endswith(f" {name} %*"), "every argument is handed on"
    if os.name != "nt":
        pytest.skip("Windows only; the text of the .bat files was checked")
    for name in COMMANDS:
        file = hf.command(name, INPUTS[name])[-1]
        check_output(name, hf.run([str(SCRIPTS / f"{name}.bat"), "-f", file]).document)
        assert hf.run([str(SCRIPTS / f"{name}.bat"), "-f", file + ".missing"]).code == 1


@case(3, "absolute path, cwd /, HF_* alone in the environment → works", loop=False, processes=True)
def bare(hf: Grid) -> None:
    assert all(name.startswith(("HF_", "EGOSC_")) for name in hf.environment)
    for name in COMMANDS:
        check_output(name, hf.run(["/usr/bin/env", "-C", "/", *hf.command(name, INPUTS[name])]).document)


@case(4, "stdin closed or /dev/null → works, does not wait", loop=False, processes=True)
def no_stdin(hf: Grid) -> None:
    for name in COMMANDS:
        command = hf.command(name, INPUTS[name])
        check_output(name, hf.run(command).document)
        check_output(name, hf.run(["/bin/sh", "-c", 'exec "$@" <&-', "sh", *command]).document)


@case(
    5,
    "warnings and DEBUG logging on → stdout is one document, the log is in HF_PROVIDER_LOGDIR",
    loop=False,
    processes=True,
)
def noisy(hf: Grid) -> None:
    (hf.conf / "demoinstprov_config.json").write_text('{"LOG_LEVEL": "DEBUG"}')
    (hf.input.parent / "json.py").write_text("raise SystemExit('a stray module was imported')")
    noisy = {"PYTHONWARNINGS": "always", "PYTHONVERBOSE": "1", "PYTHONDEVMODE": "1", "HF_LOGLEVEL": "LOG_TRACE"}
    noisy |= {"PYTHONPATH": str(hf.input.parent), "PYTHONHOME": "/nowhere", "LC_ALL": "C"}
    for name in COMMANDS:
        called = hf.run(hf.command(name, INPUTS[name]), environment=hf.environment | noisy)
        check_output(name, called.document)
    assert {line["command"] for line in hf.log} == set(COMMANDS)


@case(6, "the file is missing → exit 1, a short message, no traceback", loop=False)
def missing_file(hf: Grid) -> None:
    for name in COMMANDS:
        called = hf.run([str(SCRIPTS / f"{name}.sh"), "-f", "/no/such/file"])
        assert called.refusal == "/no/such/file: No such file or directory"
    assert hf.recorded() == 0


@case(7, "the file is empty → getAvailableTemplates answers, the others exit 1", loop=False)
def empty_file(hf: Grid) -> None:
    hf.input.write_bytes(b"")
    for name in COMMANDS:
        called = hf.run([str(SCRIPTS / f"{name}.sh"), "-f", str(hf.input)])
        if name == "getAvailableTemplates":
            assert len(called.document["templates"]) == 3
        else:
            assert called.refusal == f"{hf.input}: the file is empty"


@case(8, "truncated JSON → exit 1, nothing created", loop=False)
def truncated(hf: Grid) -> None:
    _refused_by_all(hf, b'{"template":{', "not JSON")


@case(9, "the root is a list, a text or null → exit 1", loop=False)
def wrong_root(hf: Grid) -> None:
    for content in (b"[]", b'"T1"', b"null"):
        _refused_by_all(hf, content, "expected a JSON object, got " + content.decode())


def _refused_by_all(hf: Grid, content: bytes, words: str) -> None:
    hf.input.write_bytes(content)
    for name in COMMANDS:
        refusal = hf.run([str(SCRIPTS / f"{name}.sh"), "-f", str(hf.input)]).refusal
        assert refusal.startswith(f"{hf.input}: {words}")
    assert hf.recorded() == 0


@case(10, "byte order mark, CRLF, tabs as cJSON prints them → accepted", loop=False)
def ways_of_writing(hf: Grid) -> None:
    text = json.dumps(requesting(), indent="\t", separators=(",", ":\t"))
    for content in (b"\xef\xbb\xbf" + text.encode(), text.replace("\n", "\r\n").encode(), text.encode()):
        hf.input.write_bytes(content)
        assert hf.run([str(SCRIPTS / "requestMachines.sh"), "-f", str(hf.input)]).document["requestId"]
    assert hf.recorded() == 3


@case(11, "unknown keys anywhere → ignored", loop=False)
def unknown_keys(hf: Grid) -> None:
    request = hf.call("requestMachines", {"template": {"templateId": "T1", "machineCount": 1, "x": [1]}, "y": {"z": 1}})
    asked = {"requests": [{"requestId": request["requestId"], "x": None}], "y": 1}
    assert hf.call("getRequestStatus", asked)["requests"][0]["status"] == "running"
    hf.call("requestReturnMachines", {"machines": [{"name": "a", "x": {}}], "y": []})
    hf.call("getReturnRequests", {"machines": [{"name": "a", "x": 1}], "y": "z"})
    hf.call("getAvailableTemplates", {"x": {"y": []}})


@case(12, "a key twice → the last wins, nothing breaks", loop=False)
def doubled_keys(hf: Grid) -> None:
    """The last value of a repeated key counts. This is a deliberate choice: see "documents" in docs/hostfactory.md."""
    hf.input.write_text('{"template": {"templateId": "T1", "machineCount": 9, "machineCount": 2}}')
    request = hf.run([str(SCRIPTS / "requestMachines.sh"), "-f", str(hf.input)]).document["requestId"]
    assert hf.state.intent.read().requests[request].count == 2


@case(13, "no input, or an unknown option → exit 1 with usage, nothing done", loop=False)
def wrong_arguments(hf: Grid) -> None:
    for name in COMMANDS:
        file = hf.command(name, INPUTS[name])[-1]
        for arguments in ([], ["-f"], ["--help"], ["-f", file, "-x"]):
            called = hf.run([str(SCRIPTS / f"{name}.sh"), *arguments])
            if (name, arguments) == ("getAvailableTemplates", []):
                assert called.document["templates"], "it needs no input"
            else:
                assert called.refusal == USAGE.format(command=name)
    assert hf.recorded() == 0


@case(14, "spaces and quotes in the file's name → works", loop=False, processes=True)
def file_names(hf: Grid) -> None:
    hf.input = hf.input.with_name("hf in 'a\" $(x) é\n")
    hf.call("requestMachines", requesting())


@case(15, "HF_PROVIDER_CONFDIR unset → $HF_CONFDIR/providers/$HF_PROVIDER_NAME; none → exit 1 naming it", loop=False)
def fallbacks(hf: Grid) -> None:
    common = hf.input.parent / "common"
    shutil.copytree(hf.conf, common / "providers" / hf.instance)
    environment = {name: value for name, value in hf.environment.items() if name != "HF_PROVIDER_CONFDIR"}
    command = hf.command("getAvailableTemplates", {})
    called = hf.run(command, environment=environment | {"HF_CONFDIR": str(common)})
    assert len(called.document["templates"]) == 3
    assert hf.run(command, environment=environment).refusal.startswith("HF_PROVIDER_CONFDIR: is not set")


@case(16, "work directory read-only or disk full → requestMachines exits 1, no machine is made", processes=True)
def no_room(hf: Grid) -> None:
    hf.complete(1)
    for command, limit, mode in ((_full_disk, 0, 0o770), (_full_disk, 256, 0o770), (_plain_user, 0, 0o550)):
        hf.work.chmod(mode)
        try:
            called = command(hf, "requestMachines", limit)
        finally:
            hf.work.chmod(0o770)
        assert called.returncode == 1
        assert called.stdout.startswith(str(hf.work).encode())
        assert called.stdout.count(b"\n") == 1
    hf.cycles()
    assert hf.recorded() == 1
    assert len(hf.cloud()) == 1


def _full_disk(hf: Grid, name: str, limit: int) -> subprocess.CompletedProcess[bytes]:
    """Run a script with a limit of file sizes, which stands for a full disk.

    The script must write no bytecode, because the limit would truncate it. The scripts' Python ignores
    PYTHONDONTWRITEBYTECODE, so use the flag ``-B``.
    """
    python = hf.input.with_name("python")
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -B "$@"\n')
    python.chmod(0o755)
    return subprocess.run(
        hf.command(name, INPUTS[name]),
        env=hf.environment | {"HF_PYTHON": str(python)},
        capture_output=True,
        check=False,
        timeout=30 * PATIENCE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )


def _plain_user(hf: Grid, name: str, _: int) -> subprocess.CompletedProcess[bytes]:
    """Run a script as a user without root's privilege to override file modes."""
    drop = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
    command = [*drop, *hf.command(name, INPUTS[name])]
    return subprocess.run(command, env=hf.environment, capture_output=True, check=False, timeout=30 * PATIENCE)


@case(17, "a state file is corrupt → exit 1, left as it is, nothing planned until it reads cleanly")
def corrupt(hf: Grid) -> None:
    machines = hf.complete(2)
    file = hf.work / "intent.json"
    good = file.read_bytes()
    bad = good[: len(good) // 2]
    aside = hf.work / "bad"
    aside.write_bytes(bad)
    aside.replace(file)
    for name in ("requestMachines", "requestReturnMachines", "getRequestStatus"):
        assert hf.run(hf.command(name, INPUTS[name])).refusal.startswith(f"{file}: not valid JSON")
    hf.cycles()
    assert hf.reclaimed(*machines) == {}
    assert (file.read_bytes(), hf.cloud()) == (bad, sorted(machines))
    aside.write_bytes(good)
    aside.replace(file)
    assert len(hf.complete(1)) == 1


@case(18, "two provider instances share the plug-in → their states are apart", loop=False)
def two_instances(hf: Grid) -> None:
    other = HostFactory(hf.input.parent / "other", instance="otherinst")
    request = hf.request()
    other.request()
    assert request not in other.state.intent.read().requests
    assert other.status(request)[0]["status"] == "complete_with_error"
    assert hf.status(request)[0]["status"] == "running"


@case(19, "SIGTERM in the middle of each command → consistent state, no lost machine", processes=True)
def terminated(hf: Grid) -> None:
    machines = hf.complete(1)
    inputs = INPUTS | {
        "requestReturnMachines": {"machines": {"name": machines[0]}},
        "requestMachines": requesting("T2", 1),
    }
    printed = []
    for name in COMMANDS:
        for pause in (0.0, 0.02, 0.04):
            process = subprocess.Popen(
                hf.command(name, inputs[name]), env=hf.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            try:
                process.wait(pause)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=30 * PATIENCE)
            assert (err, process.returncode in (0, -signal.SIGTERM)) == (b"", True)
            printed += [json.loads(out)["requestId"]] if out and name.startswith("request") else []
    intent = hf.state.intent.read()
    assert set(printed) <= {*intent.requests, *intent.returns}
    for request in [*intent.requests, *intent.returns]:
        hf.ended(request)
    alive = len(intent.requests) - len({name for record in intent.returns.values() for name in record.names})
    assert len(hf.cloud()) == alive


@case(20, "the cloud's API hangs → every command answers")
def hanging_cloud(hf: Grid) -> None:
    request = hf.request("T2", 1)
    hf.fault("hang", params={"seconds": 1})
    inputs = INPUTS | {"getRequestStatus": {"requests": {"requestId": request}}}
    for name in COMMANDS:
        hf.call(name, inputs[name], seconds=30)
    hf.simulator.impose()


@case(21, "50 mixed commands at once → none lost, no name twice, all exit 0", slow=True, processes=True)
def at_once(hf: Grid) -> None:
    request = hf.request("T2", 1)
    inputs = INPUTS | {"getRequestStatus": {"requests": {"requestId": request}}, "requestMachines": requesting("T2", 1)}
    files = {name: hf.input.with_name(name) for name in COMMANDS}
    for name, file in files.items():
        file.write_text(json.dumps(inputs[name]))

    def call(number: int) -> str:
        name = COMMANDS[number % len(COMMANDS)]
        document = hf.run([str(SCRIPTS / f"{name}.sh"), "-f", str(files[name])]).document
        check_output(name, document)
        return str(document["requestId"]) if name.startswith("request") else ""

    with ThreadPoolExecutor(50) as pool:
        printed = [id_ for id_ in pool.map(call, range(50)) if id_]
    intent = hf.state.intent.read()
    assert len(set(printed)) == len(printed) == 20
    assert {*printed, request} == {*intent.requests, *intent.returns}
    machines = [machine["name"] for id_ in intent.requests for machine in hf.ended(id_)["machines"]]
    assert len(set(machines)) == len(machines) == 11
    assert hf.cloud() == sorted(machines)


@case(22, "the input file has mode 0600 and is the caller's → readable", loop=False)
def private_file(hf: Grid) -> None:
    command = hf.command("requestMachines", requesting())
    hf.input.chmod(0o600)
    assert hf.run(command).document["requestId"]
