"""HostFactory's scripts by one mount of the guest's export; loops by either, each as a host and a user of its own."""

from __future__ import annotations

import json
import shlex
from typing import Any

from tests.vm.build import TESTS
from tests.vm.guest import Guest
from tests.vm.shared import EXPORT, ONE

HF_USER, LOOP_USER = "egoadmin", 10001
"""The loop's is that of the image: a number which the host gives no name."""

DIRECTORY = "/var/tmp/sides"
CLOUD = "http://127.0.0.1:8002/control/state"
POOL = {"kind": "gke", "namespace": "symphony", "pod_spec": "pod.yaml", "kubeconfig": f"{DIRECTORY}/kubeconfig"}
SETTINGS = {"id": "demo", "loop": {"interval_seconds": 1, "floor_seconds": 0.1}, "pools": {"gke-main": POOL}}
ATTRIBUTES = {
    "type": ["String", "X86_64"],
    "ncpus": ["Numeric", "1"],
    "ncores": ["Numeric", "1"],
    "nram": ["Numeric", "1024"],
}
TEMPLATE = {"templateId": "T", "maxNumber": 50, "pools": ["gke-main"], "attributes": ATTRIBUTES}


class Sides:
    """One cloud, the five scripts, and loops."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self._loops: list[str] = []
        self._since = guest.run("date '+%F %T'")
        guest.run(f"rm -rf {DIRECTORY} && mkdir -p {DIRECTORY} && chmod 777 {DIRECTORY}")
        guest.write(f"{DIRECTORY}/provisioner.yaml", json.dumps(SETTINGS))
        guest.write(f"{DIRECTORY}/pod.yaml", "containers: [{name: main, image: busybox}]\n")
        guest.write(f"{DIRECTORY}/demoprov_templates.json", json.dumps([TEMPLATE]))
        self._unit(
            "sides-cloud",
            f"{TESTS}/bin/python -m provisioner simulator --config {DIRECTORY}/provisioner.yaml --port 8002 "
            f"--kubeconfig {DIRECTORY}/kubeconfig",
        )
        guest.until(lambda: guest.call(f"test -s {DIRECTORY}/kubeconfig").code == 0, what="the cloud runs")
        guest.run(f"chmod 644 {DIRECTORY}/kubeconfig")

    def _unit(self, name: str, command: str, *options: str) -> None:
        self.guest.run(
            f"systemd-run --quiet --unit {name} --working-directory /opt/repo --setenv PYTHONDONTWRITEBYTECODE=1 "
            f"{' '.join(options)} {command}"
        )

    def start(self, host: str, place: str) -> None:
        """A loop on a host of that name, which has the state directory at ``place``."""
        command = f"hostname {host}; exec {self._as_loop()} {TESTS}/bin/python -m provisioner run --listen 127.0.0.1:0"
        self._loops.append(host)
        variables = (f"--setenv {one}" for one in shlex.split(self._variables(place)))
        restart = "--property Restart=on-failure --property RestartSec=1"
        self._unit(host, f"unshare --uts sh -c {shlex.quote(command)}", restart, *variables)

    def end(self) -> None:
        """Stop cloud and loops."""
        units = " ".join([*self._loops, "sides-cloud"])
        self.guest.call(f"systemctl kill --signal KILL {units}; systemctl stop {units}; systemctl reset-failed {units}")

    def told(self, host: str, words: str, seconds: float = 120.0) -> None:
        """Waits until a loop's log has said it."""
        journal = f"journalctl --unit {host} --since '{self._since}' --output cat --no-pager"
        self.guest.until(lambda: words in self.guest.run(journal), seconds, what=f"{host} says {words!r}")

    def _as_loop(self) -> str:
        """What precedes a command of the loop's user, who is in HostFactory's group beside his own."""
        group = self.guest.run(f"id -g {HF_USER}")
        return f"setpriv --reuid={LOOP_USER} --regid={LOOP_USER} --groups={group}"

    def call(self, name: str, document: object = None) -> tuple[int, str]:
        """How a script ends that HostFactory calls, and what it prints."""
        given = "" if document is None else shlex.quote(json.dumps(document))
        ended = self.guest.call(f"env {self._calling(name)} {given}", user=HF_USER)
        return ended.code, ended.text

    def checked_by_loop(self) -> str:
        """What the check of the installation says to the loop's user."""
        return self.guest.call(f"{self._as_loop()} env {self._calling('check_install')}").text

    def _calling(self, script: str) -> str:
        variables = f"{self._variables(ONE)} HF_PYTHON={TESTS}/bin/python PYTHONDONTWRITEBYTECODE=1"
        return f"{variables} /opt/repo/hf_scripts/{script}.sh"

    def asked(self, name: str, document: object) -> Any:
        """What HostFactory gets of a script."""
        code, text = self.call(name, document)
        assert code == 0, text
        return json.loads(text)

    def request(self, count: int) -> str:
        return str(self.asked("requestMachines", {"template": {"templateId": "T", "machineCount": count}})["requestId"])

    def give_back(self, name: str) -> str:
        return str(self.asked("requestReturnMachines", {"machines": [{"name": name, "machineId": name}]})["requestId"])

    def complete(self, id_: str) -> list[str]:
        """The machines of a request or return once it is complete."""

        def entry() -> Any:
            return self.asked("getRequestStatus", {"requests": [{"requestId": id_}]})["requests"][0]

        self.guest.until(lambda: entry()["status"] == "complete", 240, what=f"{id_} is complete")
        return [machine["name"] for machine in entry()["machines"]]

    def cloud(self) -> set[str]:
        """The names of the machines that the cloud holds."""
        program = f"import urllib.request as u; print(u.urlopen('{CLOUD}').read().decode())"
        said = json.loads(self.guest.run(f'{TESTS}/bin/python -c "{program}"'))
        return {machine["name"] for machine in said["machines"]}

    def locked(self) -> bool:
        """The server knows of a lock on the loop's file. Not tried: whoever gets it ends the loop."""
        return self.guest.call(f'grep -q "POSIX .*:$(stat --format %i {EXPORT}/loop.lock) " /proc/locks').code == 0

    def owners(self) -> set[str]:
        """Of all files of the state directory: user, group, and what both may do."""
        return {*self.guest.run(f"find {EXPORT} -type f -printf '%U:%g %m\\n'").splitlines()}

    def _variables(self, place: str) -> str:
        return (
            f"HF_PROVIDER_NAME=demo HF_PROVIDER_CONFDIR={DIRECTORY} HF_PROVIDER_WORKDIR={place} "
            f"HF_PROVIDER_LOGDIR={DIRECTORY}"
        )
