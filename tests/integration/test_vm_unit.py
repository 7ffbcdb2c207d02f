"""The systemd units of the loop as a service on HostFactory's host. systemd's own tool checks them here."""

from __future__ import annotations

import configparser
import grp
import os
import pwd
import re
import shlex
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml

from provisioner.commands.loop_service import END_SECONDS
from tests.support.checks.shell import faults_of
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
VM = ROOT / "deploy" / "vm"
UNIT = VM / "provisioner.service"
BACKUP = VM / "provisioner-backup.service"
DEMAND = VM / "provisioner-demand.service"
UNITS = (UNIT.name, BACKUP.name, DEMAND.name, "provisioner-backup.timer")
EGO_SERVICE = ROOT / "deploy" / "symphony" / "hostfactory-provisioner.xml"


def needs(tool: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"needs {tool} (Debian package {package})")


SYSTEMD = needs("systemd-analyze", "systemd")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60 * PATIENCE)


# --- the service ------------------------------------------------------------------------------------------------------


def verified(tree: Path, name: str, text: str) -> str:
    """Return the findings of ``systemd-analyze verify`` about the unit ``name`` with the content ``text``.

    ``tree`` is a file system in which stand-ins replace the programs that the unit starts.
    """
    for program in ("opt/provisioner/bin/provisioner", "bin/kill", "bin/sh"):
        file = tree / program
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/true", file)
    shutil.copytree("/usr/lib/systemd/system", tree / "usr" / "lib" / "systemd" / "system", symlinks=True)
    units = tree / "etc" / "systemd" / "system"
    units.mkdir(parents=True)
    for unit in UNITS:
        shutil.copy(VM / unit, units)
    (units / name).write_text(text)
    return run("systemd-analyze", "verify", f"--root={tree}", name).stderr


@SYSTEMD
@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_no_fault_with_a_unit(tmp_path: Path, name: str) -> None:
    assert verified(tmp_path / "good", name, (VM / name).read_text()) == ""


@SYSTEMD
@pytest.mark.parametrize("unit", [UNIT, BACKUP, DEMAND], ids=lambda unit: unit.name)
def test_the_services_are_hardly_exposed(unit: Path) -> None:
    done = run("systemd-analyze", "security", "--offline=true", unit)
    exposure = re.search(rf"Overall exposure level for {unit.name}: ([\d.]+)", done.stdout)

    assert exposure is not None, done.stdout
    assert float(exposure[1]) <= 2.5


def service(file: Path = UNIT) -> dict[str, str]:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(file)
    return dict(unit["Service"])


@pytest.mark.parametrize("unit", [UNIT, BACKUP, DEMAND], ids=lambda unit: unit.name)
def test_a_service_that_dies_leaves_no_core_in_which_tokens_stand(unit: Path) -> None:
    assert service(unit)["LimitCORE"] == "0"


def test_the_service_runs_as_its_own_user_and_writes_its_state_alone() -> None:
    text = UNIT.read_text()

    assert service()["User"] not in ("", "root", "nobody")
    assert service()["ProtectSystem"] == "strict"
    assert re.findall(r"(?m)^ReadWritePaths=(.*)$", text) == re.findall(r"HF_PROVIDER_WORKDIR=(.*)", text)
    assert service()["StateDirectory"] == service()["RuntimeDirectory"], "docs/deploy-host.md renames both for another"


def test_there_is_one_place() -> None:
    """install.sh installs everything into the directory that README, unit and EGO's service name."""
    texts = [ROOT / "README.md", ROOT / "docs" / "deploy-host.md"]
    files = (path for name in ("deploy", "config") for path in (ROOT / name).rglob("*") if path.is_file())
    texts += [path for path in files if path.suffix != ".pyc"]  # another test may import the dashboards
    named = {
        place for path in texts for place in re.findall(r"(/opt/[^/\s]+)/(?:bin|lib|hf_scripts)\b", path.read_text())
    }
    installer = (ROOT / "deploy" / "bundle" / "install.sh").read_text()
    (prefix,) = re.findall(r"(?m)^command=install prefix=(\S+) ", installer)

    assert named - {"/opt/symphony", "/opt/lsf"} == {prefix}  # the others are the machines' and a scheduler's own
    assert service()["ExecStart"] == f"{prefix}/bin/provisioner run"


def test_the_process_ends_before_it_is_killed() -> None:
    deployment = yaml.safe_load((ROOT / "deploy" / "kustomize" / "base" / "deployment.yaml").read_text())
    needed = END_SECONDS

    assert needed < deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert needed < float(service()["TimeoutStopSec"])


# --- its backup -------------------------------------------------------------------------------------------------------


def backup_program(directory: Path, dump: str) -> list[str]:
    """Return the command of the backup's service.

    A shell script whose body is ``dump`` replaces ``provisioner`` in this command.
    """
    stub = directory / "provisioner"
    stub.write_text(f"#!/bin/sh\n{dump}\n")
    stub.chmod(0o755)
    line = service(BACKUP)["ExecStart"].replace("\\\n", "")
    assert not {"%", "$"} & {*line.replace("%%", "").replace("$$", "")}, "systemd takes a single one for its own"
    words = shlex.split(line.replace("%%", "%").replace("$$", "$"))
    assert words[:2] == ["/bin/sh", "-euc"]
    assert faults_of(words[2]) == ""
    assert "/opt/provisioner/bin/provisioner" in words[2]
    return [*words[:2], words[2].replace("/opt/provisioner/bin/provisioner", str(stub))]


OLD = [f"state-20260{month}01T000000Z.tar.gz{left}" for month, left in ((1, ""), (2, ".7-1f.new"), (3, ""))]
"""Three dumps, of which the second was left by a dump that was killed."""


@pytest.mark.parametrize(
    ("dump", "kept", "made"),
    [
        pytest.param('touch "$2"', OLD[2:], 1, id="one that is written"),
        pytest.param("exit 1", OLD, 0, id="one that fails"),
    ],
)
def test_a_backup_keeps_the_newest_and_one_that_fails_takes_none_away(
    tmp_path: Path, dump: str, kept: list[str], made: int
) -> None:
    (backups := tmp_path / "backups").mkdir()
    for name in (*OLD, "mine.tar.gz"):
        (backups / name).touch()
    environment = os.environ | {"BACKUPS_KEPT": "2"}
    subprocess.run(backup_program(tmp_path, dump), cwd=backups, env=environment, check=False, timeout=30 * PATIENCE)
    left = {file.name for file in backups.iterdir()}

    assert left & {*OLD} == {*kept}
    assert "mine.tar.gz" in left
    assert len([name for name in left - {*OLD} if re.fullmatch(r"state-\d{8}T\d{6}Z\.tar\.gz", name)]) == made


def test_the_backup_is_of_the_instance_that_the_service_runs_and_writes_beside_it_alone() -> None:
    """The backup's service must have the same instance and user as the loop's service, and may write only to the state
    and the backups. It must keep as many backups as two weeks have quarter hours, as the page says."""
    units = [dict(re.findall(r"(?m)^Environment=(HF_\w+)=(.*)$", file.read_text())) for file in (UNIT, BACKUP)]
    (kept,) = re.findall(r"(?m)^Environment=BACKUPS_KEPT=(\d+)$", BACKUP.read_text())
    made = re.findall(r"(?m)^d (\S+) 0700 hostfactory hostfactory -$", (VM / "tmpfiles.conf").read_text())

    assert units[0] == units[1]
    for key in ("User", "Group", "UMask", "EnvironmentFile"):
        assert service()[key] == service(BACKUP)[key]
    assert service(BACKUP)["ReadWritePaths"].split() == [units[0]["HF_PROVIDER_WORKDIR"], *made]
    assert service(BACKUP)["WorkingDirectory"] == made[0]
    assert int(kept) == 14 * 24 * 4
    assert f"{int(kept):,}" in (ROOT / "docs" / "backup.md").read_text()


# --- users, directories, log ------------------------------------------------------------------------------------------


@needs("logrotate", "logrotate")
def test_logrotate_takes_its_file_and_rotates_the_scripts_log_and_that_of_ego_s_loop(tmp_path: Path) -> None:
    user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(os.getegid()).gr_name
    log = tmp_path / "gcpinst-provider.master1.log"
    log.write_text("{}\n")
    kept_open = tmp_path / "loop.out"
    kept_open.write_text("{}\n")
    config = tmp_path / "provisioner"
    text = (VM / "logrotate.conf").read_text().replace("/var/log/hostfactory", str(tmp_path))
    config.write_text(text.replace("su egoadmin hostfactory", f"su {user} {group}"))
    config.chmod(0o644)
    dry = run("/usr/sbin/logrotate", "--debug", "--state", tmp_path / "dry", config)
    with kept_open.open("a") as loop:
        done = run("/usr/sbin/logrotate", "--force", "--state", tmp_path / "status", config)
        loop.write("after\n")

    assert "error" not in dry.stderr
    assert f"considering log {log}" in dry.stderr
    assert (done.returncode, done.stderr) == (0, "")
    assert not log.exists()
    for name in (log.name, kept_open.name):
        assert [path.suffix for path in tmp_path.glob(f"{name}-*")] == [".gz"]
    assert kept_open.read_text() == "after\n", "the loop keeps its file open"


# --- EGO's service ----------------------------------------------------------------------------------------------------

EGO = {
    "sc": "http://www.platform.com/ego/2005/05/schema/sc",
    "ego": "http://www.platform.com/ego/2005/05/schema",
}


def ego(path: str) -> str:
    """Return the text of one element of the EGO service's definition."""
    (element,) = ElementTree.parse(EGO_SERVICE).getroot().iterfind(path, EGO)
    return element.text or ""


def test_ego_keeps_one_loop_on_a_management_host() -> None:
    root = ElementTree.parse(EGO_SERVICE).getroot()

    assert root.tag == f"{{{EGO['sc']}}}ServiceDefinition"
    assert (ego("sc:MinInstances"), ego("sc:MaxInstances")) == ("1", "1")
    assert ego("sc:ControlPolicy/sc:StartType") == "AUTOMATIC"
    assert int(ego("sc:ControlPolicy/sc:MaxRestarts")) >= 10**6, "it ends for good after them"
    assert re.fullmatch(r"PT(\d+H)?(\d+M)?(\d+S)?", ego("sc:ControlPolicy/sc:HostFailoverInterval"))
    assert ego(".//ego:ResourceGroupName") == "ManagementHosts"


def test_ego_starts_the_same_program_with_the_same_variables_as_systemd() -> None:
    variables = {
        element.get("name"): element.text or ""
        for element in ElementTree.parse(EGO_SERVICE).getroot().iterfind(".//ego:EnvironmentVariable", EGO)
    }
    given = dict(re.findall(r"(?m)^Environment=(\w+)=(.*)$", UNIT.read_text()))

    place = "/opt/provisioner/share/symphony/"
    command = ego(".//ego:Command")
    assert command.startswith(place), "install.sh puts it there"
    assert (EGO_SERVICE.parent / command.removeprefix(place)).read_text().endswith(f"\nexec {service()['ExecStart']}\n")
    assert ego(".//ego:Umask") == service()["UMask"]
    assert variables.keys() == given.keys() - {"HOME"}, "EGO starts it as a user who has one"
    assert variables["HF_PROVIDER_NAME"] == given["HF_PROVIDER_NAME"]
    for name in ("HF_PROVIDER_CONFDIR", "HF_PROVIDER_WORKDIR"):  # where all management hosts find them
        assert variables[name].startswith("@HF_TOP@/")
        assert variables[name].endswith(f"/providers/{given['HF_PROVIDER_NAME']}")
