"""The deployment kit: each file is read by the tool that will read it, and asks for no more than it may."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.loop.loop import Pace
from provisioner.loop.observers import LOOK_ENDS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"


def needs(tool: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"needs {tool} ({package})")


PROMTOOL = needs("promtool", "Debian package prometheus")
PROMETHEUS = needs("prometheus", "Debian package prometheus")
SYSTEMD = needs("systemd-analyze", "Debian package systemd")


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=60)


# --- a VM -------------------------------------------------------------------------------------------------------------


def verified(tree: Path, unit: str) -> str:
    """What systemd says about a unit, in a tree where the program that it starts exists."""
    program = tree / "opt" / "provisioner" / "bin" / "provisioner"
    for file in (program, tree / "bin" / "kill"):
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/true", file)
    shutil.copytree("/usr/lib/systemd/system", tree / "usr" / "lib" / "systemd" / "system", symlinks=True)
    units = tree / "etc" / "systemd" / "system"
    units.mkdir(parents=True)
    (units / "provisioner.service").write_text(unit)
    return run("systemd-analyze", "verify", f"--root={tree}", "provisioner.service").stderr


@SYSTEMD
def test_systemd_finds_no_fault_with_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "vm" / "provisioner.service").read_text()
    misspelt = unit.replace("ReadWritePaths", "ReadWritePath")

    assert verified(tmp_path / "good", unit) == ""
    assert "Unknown key 'ReadWritePath'" in verified(tmp_path / "bad", misspelt)


@SYSTEMD
def test_the_service_is_hardly_exposed() -> None:
    done = run("systemd-analyze", "security", "--offline=true", "--threshold=20", DEPLOY / "vm" / "provisioner.service")

    assert done.returncode == 0, done.stdout


def test_the_service_runs_as_its_own_user_and_writes_its_state_alone() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "vm" / "provisioner.service")
    service = dict(unit["Service"])
    text = (DEPLOY / "vm" / "provisioner.service").read_text()

    assert service["User"] not in ("", "root", "nobody")
    assert service["ProtectSystem"] == "strict"
    assert re.findall(r"(?m)^ReadWritePaths=(.*)$", text) == re.findall(r"HF_PROVIDER_WORKDIR=(.*)", text)


def test_there_is_one_way_to_install_and_one_place() -> None:
    """README, unit and image say the same; what starts the loop and what HostFactory starts are found there."""
    texts = [ROOT / "README.md", *(path for name in ("deploy", "config") for path in (ROOT / name).rglob("*"))]
    lines = [line for path in texts if path.is_file() for line in path.read_text().splitlines()]
    unit = (DEPLOY / "vm" / "provisioner.service").read_text()
    place = re.findall(r"(?m)^ExecStart=(\S+)/bin/provisioner run$", unit)[0]
    installs = [line for line in lines if "pip install" in line]
    assert len(installs) == 3
    for line in installs:
        assert f"{place}/bin/pip install '.[all]'" in line
    assert {made for line in lines for made in re.findall(r"-m venv (\S+)", line)} == {place}
    assert {directory for line in lines for directory in re.findall(r"(/opt/[^/\s]+)/(?:bin|lib)\b", line)} - {
        "/opt/symphony"  # the machines' own
    } == {place}


def test_calls_in_hand_end_before_the_process_is_killed() -> None:
    deployment = yaml.safe_load((DEPLOY / "kustomize" / "base" / "deployment.yaml").read_text())
    (stop,) = re.findall(r"(?m)^TimeoutStopSec=(.*)$", (DEPLOY / "vm" / "provisioner.service").read_text())
    needed = Pace().longest_cycle + LOOK_ENDS

    assert needed < deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert needed < float(stop)


# --- Prometheus -------------------------------------------------------------------------------------------------------


@PROMTOOL
@pytest.mark.parametrize(
    "arguments",
    [("check", "config", "prometheus.yml"), ("check", "rules", "rules.yml"), ("test", "rules", "rules_test.yml")],
    ids=" ".join,
)
def test_promtool(arguments: tuple[str, ...]) -> None:
    done = run("promtool", *arguments, cwd=DEPLOY / "prometheus")

    assert done.returncode == 0, done.stdout + done.stderr


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_every_alert_says_what_to_do_and_is_tested() -> None:
    names = {alert["alert"] for alert in alerts()}
    tested = set(re.findall(r"alertname: (\w+)", (DEPLOY / "prometheus" / "rules_test.yml").read_text()))

    assert {"NotReconciling", "PoolBlind", "MachinesLate", "BrakeEngaged", "CapacityRefused", "LossSpike"} <= names
    assert tested == names
    for alert in alerts():
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert {"summary", "description", "runbook_url"} == alert["annotations"].keys()


# --- the container ----------------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, continuation lines joined."""
    text = (DEPLOY / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name.upper(), " ".join(rest.split())) for name, _, rest in (line.partition(" ") for line in lines)]


def copied() -> set[str]:
    """What the build takes from the source tree."""
    sources: set[str] = set()
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from"):
            sources |= set(rest.split()[:-1])
    return sources


def setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_the_image_is_built_in_two_stages_and_runs_without_rights() -> None:
    names = [name for name, _ in instructions()]
    last = dict(instructions()[max(number for number, name in enumerate(names) if name == "FROM") :])

    assert names.count("FROM") == 2
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"])
    assert "compileall" in dict(instructions()[: len(names) - names[::-1].index("FROM")])["RUN"]
    assert "PYTHONDONTWRITEBYTECODE=1" in last["ENV"]
    assert json.loads(last["ENTRYPOINT"]) == ["provisioner"]
    assert json.loads(last["CMD"])[0] == "run"


def test_the_image_runs_a_python_that_the_package_takes() -> None:
    least = tuple(int(part) for part in setup()["options"]["python_requires"].removeprefix(">=").split("."))
    images = {rest.split()[0] for name, rest in instructions() if name == "FROM"}

    assert len(images) == 1
    base = re.fullmatch(r"python:(\d+)\.(\d+)-slim-\w+", images.pop())
    assert base is not None
    assert (int(base[1]), int(base[2])) >= least


def test_the_build_copies_all_that_the_package_is_made_of() -> None:
    parser = setup()
    packages = {name.split(".")[0] for name in parser["options.packages.find"]["include"].replace("*", "").split()}
    texts = {parser["metadata"]["long_description"].removeprefix("file: "), parser["metadata"]["license_files"]}

    assert copied() == {"setup.cfg", "pyproject.toml", *packages, *texts}
    ignored = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().split()
    assert {line[1:] for line in ignored if line.startswith("!")} == copied()


def test_the_health_check_asks_the_port_that_is_listened_on() -> None:
    image = dict(instructions())
    command = json.loads(image["HEALTHCHECK"].partition("CMD ")[2])

    compile(command[-1], "HEALTHCHECK", "exec")
    assert f"127.0.0.1:{image['EXPOSE']}/healthz" in command[-1]
    assert json.loads(image["CMD"])[-1].endswith(f":{image['EXPOSE']}")


def test_the_image_s_user_is_the_pod_s_user() -> None:
    deployment = yaml.safe_load((DEPLOY / "kustomize" / "base" / "deployment.yaml").read_text())
    security = deployment["spec"]["template"]["spec"]["securityContext"]

    assert dict(instructions())["USER"] == f"{security['runAsUser']}:{security['runAsGroup']}"
