"""An instance's start-up and shutdown scripts under a real systemd. Services like Google's start them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.ego import EGO
from tests.support.machine import MACHINE, NAME
from tests.vm.build import TESTS
from tests.vm.guest import Guest

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1200)]

PLACE = "/var/lib/ego"
PROFILE = f"export EGO={PLACE} PATH={PLACE}/bin:$PATH\n"
PREEMPTED = "/run/preempted"
METADATA = f"""
import json, pathlib, time
from tests.support.metadata_server import MetadataServer
path = "instance/preempted"
with MetadataServer(json.loads(pathlib.Path("/run/metadata.json").read_text()), 80) as server:
    while True:
        now = pathlib.Path("{PREEMPTED}").read_text()
        if now != server.values[path]:
            server.change(path, now)
        time.sleep(0.2)
"""
RUNNER = """#!/usr/bin/python3
import pathlib, subprocess, sys, tempfile, urllib.request
address = f"http://metadata.google.internal/computeMetadata/v1/instance/attributes/{sys.argv[1]}-script"
text = urllib.request.urlopen(urllib.request.Request(address, headers={"Metadata-Flavor": "Google"})).read()
with tempfile.TemporaryDirectory() as directory:
    file = pathlib.Path(directory, "script")
    file.write_bytes(text)
    file.chmod(0o755)
    script = subprocess.Popen(["/bin/bash", "-c", file], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    for line in script.stdout:
        print(line.decode(), end="", flush=True)
    sys.exit(script.wait())
"""
"""Program that acts as google_metadata_script_runner. It has a temporary file, reads its pipe to the end, and does not
react to SIGTERM."""
STARTUP = """[Service]
Type=oneshot
ExecStart=/usr/local/bin/runner startup
KillMode=process
"""
SHUTDOWN = """[Service]
Type=oneshot
ExecStart=/bin/true
RemainAfterExit=true
ExecStop=/usr/local/bin/runner shutdown
TimeoutStopSec=0
KillMode=process
"""


class Instance:
    """A guest as an instance of a group."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest

    def boot(self) -> None:
        """Start Google's services, and return after the end of the start-up script."""
        self.guest.write(f"{PLACE}/calls", "")
        self.guest.run(f"printf FALSE >{PREEMPTED}; chmod 666 {PLACE}/calls; rm -f {PLACE}/up")
        self.guest.run("systemctl start google-startup-scripts google-shutdown-scripts")

    def calls(self) -> list[str]:
        return self.guest.run(f"cat {PLACE}/calls").splitlines()

    def stays(self) -> bool:
        return self.guest.call("systemctl is-active hf-machine").text.strip() == "active"

    def log(self) -> str:
        return self.guest.run("journalctl --unit hf-machine --boot --output cat --no-pager")


@pytest.fixture(scope="module")
def instance(guest: Guest) -> Iterator[Instance]:
    values = {"startup-script": "startup.sh", "shutdown-script": "shutdown.sh", "hf-machine-lib": "lib.sh"}
    attributes = {name: (MACHINE / file).read_text() for name, file in values.items()} | {"hf-ego-master": "master1"}
    metadata = {f"instance/attributes/{name}": value for name, value in attributes.items()}
    metadata |= {"instance/name": NAME, "instance/network-interfaces/0/ip": "10.9.8.7", "instance/preempted": "FALSE"}
    guest.run(f"printf FALSE >{PREEMPTED}; echo 127.0.0.1 metadata.google.internal >>/etc/hosts")
    guest.run(f"mkdir -p {PLACE}/bin /opt/ibm/spectrumcomputing && chmod 777 {PLACE}")
    for program in ("egosh", "egoconfig"):
        guest.write(f"{PLACE}/bin/{program}", EGO)
    guest.write(f"{PLACE}/name", NAME)
    guest.write("/opt/ibm/spectrumcomputing/profile.platform", PROFILE)
    guest.write("/run/metadata.json", json.dumps(metadata))
    guest.write("/run/metadata.py", METADATA)
    guest.write("/usr/local/bin/runner", RUNNER)
    guest.run(f"chmod 755 {PLACE}/bin/* /usr/local/bin/runner")
    for when, unit in (("startup", STARTUP), ("shutdown", SHUTDOWN)):
        guest.write(f"/run/systemd/system/google-{when}-scripts.service", unit)
    guest.run(
        "systemctl daemon-reload; systemd-run --quiet --unit metadata --setenv PYTHONPATH=/opt/repo "
        f"--setenv PYTHONDONTWRITEBYTECODE=1 {TESTS}/bin/python /run/metadata.py"
    )
    guest.until(lambda: guest.call("curl -s http://metadata.google.internal").code == 0, what="it is answered")
    yield Instance(guest)
    guest.run("systemctl stop metadata google-startup-scripts google-shutdown-scripts; systemctl stop hf-machine || :")


def test_the_start_up_script_ends_once_it_has_joined_and_a_service_hears_of_the_preemption(instance: Instance) -> None:
    instance.boot()

    assert instance.guest.run("systemctl show google-startup-scripts --property Result --value") == "success"
    assert instance.calls()[:2] == ["egoconfig join master1 -f", "egosh ego start"]
    assert instance.guest.run(f"cat {PLACE}/joined-by") == "egoadmin"
    assert instance.stays()
    instance.guest.run(f"printf TRUE >{PREEMPTED}")
    instance.guest.until(lambda: not instance.stays(), what="it has left")
    assert instance.calls()[-2:] == [f"egosh resource close {NAME}", "egosh ego shutdown -f"]
    assert "is preempted" in instance.log()
    assert "left EGO" in instance.log()
    instance.guest.run("systemctl stop google-shutdown-scripts")
    assert instance.calls().count("egosh ego shutdown -f") == 1, "the shutdown script has found nothing to do"


def test_where_all_services_are_stopped_at_once_it_leaves_once(instance: Instance) -> None:
    """Stop all services at once, as systemd does at the end of an instance. The machine must leave EGO only once."""
    instance.boot()
    instance.guest.run("systemctl stop hf-machine google-startup-scripts google-shutdown-scripts")

    assert not instance.stays()
    assert instance.calls()[-1] == "egosh ego shutdown -f"
    assert instance.calls().count("egosh ego shutdown -f") == 1
    assert instance.guest.call("ls /run/hf/ready*").code != 0
