"""The runners for Cluster Toolkit. root runs them as the toolkit's module startup-script does, and runs the image's
runners first.

The host is this machine with file systems of its own mounted over it. Symphony's tree is as Google's blueprint leaves
it before EGO starts. Symphony's profile would end a shell that runs with ``set -eu``. dnf, gcloud, curl and systemctl
are stand-ins.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.bundles import shared
from tests.support.clients.toolkit import PROVISIONER, outputs
from tests.support.hostfactory.symphony import SERVICE
from tests.support.hosts import PYTHON, python_version
from tests.support.scratch_host import ScratchHost

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: users are made"),
    pytest.mark.skipif(shutil.which("terraform") is None, reason="needs terraform"),
]

EGO_TOP = "/opt/ibm/spectrumcomputing"
HF_TOP = "/opt/ibm/shared/hostfactory"
"""Not the default, so that the profile has to be read."""
STATE, CONF = "/var/lib/hostfactory", "/etc/hostfactory"
OURS = f"/etc/hostfactory /etc/default/provisioner {HF_TOP} /opt/provisioner/current/bundle.sha256"
PROFILE = f"""export EGO_TOP="$UNSET_IN_MANY_A_SHELL{EGO_TOP}"
set -e
false
export HF_TOP={HF_TOP} HF_VERSION=1.2
export LD_LIBRARY_PATH=/opt/ibm/broken PYTHONPATH=/opt/ibm/broken
false
"""
"""A profile that a strict shell does not survive, and whose library path breaks what it does not belong to."""
BROKEN = ("libz.so.1", "libcrypto.so.3", "libselinux.so.1", "libpcre2-8.so.0")
"""Libraries of the programs that a runner calls."""
STAND_INS = {
    "dnf": 'mv /usr/bin/away "/usr/bin/${@: -1}"',
    "gcloud": 'cp /var/bucket/bundle.tar.gz "${@: -1}"',
    "curl": 'cp /var/bucket/bundle.tar.gz "${@: -2:1}"',
    "systemctl": """case "$1" in
        is-active) test -e /var/loop ;;
        enable) touch /var/loop ;;
    esac""",
}
"""Actions of the stand-ins besides recording their calls."""
REGISTERED: Mapping[str, Any] = {
    "requestors/hostRequestors.json": {
        "version": 2,
        "requestors": [
            {"name": "symAinst", "enabled": 0, "plugin": "symA", "providers": ["awsinst"], "requestMode": "POLL"},
            {"name": "admin", "enabled": 1, "providers": ["awsinst"], "requestMode": "REST_MANUAL"},
        ],
    },
    "providers/hostProviders.json": {"version": 2, "providers": [{"name": "awsinst", "enabled": 0, "plugin": "aws"}]},
    "providerplugins/hostProviderPlugins.json": {"version": 2, "providerplugins": [{"name": "aws", "enabled": 0}]},
}
"""HostFactory's registration files as they are shipped."""


def given(archive: Path, **changes: Any) -> dict[str, Any]:
    """Return the variables of the module for a master of Compute Engine."""
    return {
        "project_id": "grid-project",
        "deployment_name": "symphony-gcp",
        "region": "us-central1",
        "zone": "us-central1-a",
        "labels": {},
        "service_account_email": "master@grid-project.iam.gserviceaccount.com",
        "bundle": {"uri": "gs://bucket/bundle.tar.gz", "sha256": hashlib.sha256(archive.read_bytes()).hexdigest()},
        "python_package": f"python{python_version()}",
        "instance": "gcpgceinst",
        "ego_master": {"name": "symphony-gcp-master-0"},
        "groups": {"c2": {"max_machines": 10}},
        "templates": {"sym-mig-c2-4": {"pools": ["c2"], "ncpus": 4, "nram": 15360, "max_number": 10}},
        **changes,
    }


SERVICE_FILE = "eservice/esc/conf/services/hostfactory.xml"


class Master(ScratchHost):
    """Symphony's master, before EGO starts."""

    def prepare(self, archive: Path) -> None:
        """Make Symphony's directory tree. Stand-ins replace the programs that use the network or systemd."""
        self.run(
            f"useradd egoadmin; mkdir -p /var/bucket {EGO_TOP} {HF_TOP}/conf /opt/ibm/broken\n"
            f"cp {archive} /var/bucket/bundle.tar.gz"
        )
        for name in BROKEN:
            self.path(f"/opt/ibm/broken/{name}").write_text("broken")
        self.path(f"{EGO_TOP}/profile.platform").write_text(PROFILE)
        for name, document in REGISTERED.items():
            file = self.path(f"{HF_TOP}/conf/{name}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(document, indent=4))
        service = self.path(f"{EGO_TOP}/{SERVICE_FILE}")
        service.parent.mkdir(parents=True)
        service.write_text(SERVICE)
        self.run(f"chown -R egoadmin {EGO_TOP} {HF_TOP}; mv $(readlink -f {PYTHON}) /usr/bin/away")
        for name, text in STAND_INS.items():
            program = self.path(f"/usr/local/bin/{name}")
            program.write_text(f'#!/bin/bash\necho "{name} $*" >>/var/calls\n{text}\n')
            program.chmod(0o755)
        self.path("/var/calls").touch()

    def run_all(self, runners: list[dict[str, str]], ends: int = 0) -> str:
        """Run the runners as the toolkit does, and return the output. Like the toolkit, make at most one missing
        directory for a data file, and let the shell split the arguments of a script. ``ends``: the exit code that a
        script may have besides 0."""
        lines = ["PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "aside=$(mktemp -d)"]
        for runner in runners:
            path = runner["destination"] if runner["type"] == "data" else f"$aside/{runner['destination']}"
            lines.append(f'[ -d "$(dirname "{path}")" ] || mkdir "$(dirname "{path}")"')
            lines.append(f'printf %s {shlex.quote(runner["content"])} >"{path}"')
            if runner["type"] == "shell":
                lines.append(f'chmod u+x "{path}"; args="{runner.get("args", "")}"; "{path}" $args || test $? = {ends}')
        return self.run("\n".join(lines))

    def calls(self) -> list[str]:
        """Return the calls of the stand-ins since the last call of this method."""
        file = self.path("/var/calls")
        lines = file.read_text().splitlines()
        file.write_text("")
        return lines

    def placed(self) -> str:
        """Return each of our files with its owner, its target and its content."""
        found = self.run(
            f"find {OURS} -printf '%p %u:%g %m %l\\n' | sort; find {OURS} -type f -exec sha256sum {{}} + | sort"
        )
        return "\n".join(line for line in found.splitlines() if "before-render-hf" not in line)

    def json(self, path: str) -> Any:
        """Return the content of one of HostFactory's configuration files."""
        return json.loads(self.path(f"{HF_TOP}/conf/{path}").read_text())


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared(tmp_path_factory)


@pytest.fixture
def master(archive: Path) -> Iterator[Master]:
    with Master() as made:
        made.prepare(archive)
        yield made


def test_an_image_is_installed_and_its_master_registers_the_instance(
    master: Master, archive: Path, tmp_path: Path
) -> None:
    made = outputs(PROVISIONER, given(archive), tmp_path)
    master.run_all(made["packer_runners"])
    (dnf, gcloud) = master.calls()
    assert dnf == f"dnf --assumeyes install python{python_version()}"
    assert gcloud.startswith("gcloud storage cp --no-user-output-enabled gs://bucket/bundle.tar.gz /tmp/")
    output = master.run_all(made["master_runners"])
    assert "+++" in output, "the log shows the difference"
    assert master.calls() == [
        "systemctl is-active --quiet provisioner",
        "systemctl enable --now provisioner provisioner-backup.timer",
    ]

    symphony, admin = master.json("requestors/hostRequestors.json")["requestors"]
    assert (symphony["enabled"], "gcpgceinst" in symphony["providers"]) == (1, True)
    assert admin["requestMode"] == "REST_MANUAL"
    assert [one["name"] for one in master.json("providers/hostProviders.json")["providers"]] == [
        "awsinst",
        "gcpgceinst",
    ]
    owners = master.run(f"stat -c %U {CONF}/gcpgceinstprov_templates.json {CONF}; stat -c %U:%G:%a {STATE}")
    assert owners.split() == ["egoadmin", "egoadmin", "hostfactory:hostfactory:2770"]
    assert master.run(f"readlink {HF_TOP}/conf/providers/gcpgceinst {HF_TOP}/work/providers/gcpgceinst").split() == [
        CONF,
        STATE,
    ]
    assert master.run("cat /etc/default/provisioner; stat -c %U:%G:%a /etc/default/provisioner").split() == [
        "HF_PROVIDER_NAME='gcpgceinst'",
        "root:hostfactory:640",
    ]
    check = f"HF_PROVIDER_NAME=gcpgceinst HF_PROVIDER_CONFDIR={CONF} /opt/provisioner/bin/provisioner check"
    assert "Fine:" in master.run(check, "runuser", "-u", "egoadmin", "--")

    before = master.placed()
    assert "installed already" in master.run_all(made["packer_runners"])
    assert "No file would change." in master.run_all(made["master_runners"])
    assert master.placed() == before
    assert master.calls() == ["systemctl enable --now provisioner provisioner-backup.timer"]

    grown = outputs(PROVISIONER, given(archive, groups={"c2": {"max_machines": 20}}), tmp_path / "grown")
    master.run("echo \"HTTPS_PROXY='http://proxy.bank.example:3128'\" >>/etc/default/provisioner")
    master.run("sed -i s/gcpgceinst/other/ /etc/default/provisioner")
    master.run_all(grown["master_runners"])
    assert "<sc:StartType>AUTOMATIC<" in master.path(f"{EGO_TOP}/{SERVICE_FILE}").read_text()
    assert "systemctl restart provisioner" in master.calls(), "a loop that runs reads its new configuration"
    assert master.path("/etc/default/provisioner").read_text().splitlines() == [
        "HTTPS_PROXY='http://proxy.bank.example:3128'",
        "HF_PROVIDER_NAME='gcpgceinst'",
    ], "what a site has written stays"


def test_another_archive_is_refused_before_anything_is_unpacked(master: Master, archive: Path, tmp_path: Path) -> None:
    bundle = {"uri": "https://example.com/bundle.tar.gz", "sha256": "0" * 64}
    made = outputs(PROVISIONER, given(archive, bundle=bundle), tmp_path)
    output = master.run_all(made["packer_runners"], ends=1)
    assert f"has sha256 {hashlib.sha256(archive.read_bytes()).hexdigest()}, expected {'0' * 64}" in output
    (call,) = (call for call in master.calls() if call.startswith("curl "))
    assert call.endswith(" https://example.com/bundle.tar.gz")
    assert "--proto =https" in call
    assert not master.path("/opt/provisioner").exists()


def test_a_dry_run_shows_the_difference_and_changes_nothing(master: Master, archive: Path, tmp_path: Path) -> None:
    made = outputs(PROVISIONER, given(archive, dry_run=True), tmp_path)
    master.run_all(made["packer_runners"])
    master.calls()
    before = master.run(f"find {HF_TOP} /etc -printf '%p %T@ %s\\n' | sort")
    output = master.run_all(made["master_runners"])
    assert re.search(r'(?m)^\+ +"name": "gcpgceinst"', output)
    assert output.rstrip().endswith("dry run: no file was changed, and no loop was started")
    assert master.run(f"find {HF_TOP} /etc -printf '%p %T@ %s\\n' | sort") == before
    assert master.calls() == []


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(
            f"rm -r {HF_TOP}/conf", "HostFactory's own configuration comes before this runner", id="no HostFactory"
        ),
        pytest.param("rm -r /opt/provisioner", "the image lacks the installation of packer_runners", id="no program"),
        pytest.param(
            f"mkdir -p {HF_TOP}/work/providers/gcpgceinst",
            "move its content to /var/lib/hostfactory",
            id="a directory",
        ),
    ],
)
def test_the_master_s_runner_says_what_is_missing(
    master: Master, archive: Path, tmp_path: Path, spoil: str, words: str
) -> None:
    made = outputs(PROVISIONER, given(archive), tmp_path)
    master.run_all(made["packer_runners"])
    master.calls()
    master.run(spoil)
    assert words in master.run_all(made["master_runners"], ends=1)
    assert master.calls() == []
