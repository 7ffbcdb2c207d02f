"""HostFactory's scripts on one host, loops on any host, and the cloud that scripts and loops use."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection
from typing import Any

from tests.support.hostfactory.sites import template
from tests.vm.build import TESTS
from tests.vm.guest import Guest
from tests.vm.shared import EXPORT, ONE, Host, machines_at, until_ended

HF_USER, LOOP_USER = "egoadmin", 10001
"""HostFactory's user and the loop's user. The loop's user is the image's: a number without a name on the host."""

DIRECTORY = "/var/tmp/sides"
PORT = 8002
TIMINGS = {"gke": {"schedule": 0.05, "start": 0.05, "ready": 0.05, "stop": 0.1, "confirm": 0.05}}
POOL = {"kind": "gke", "namespace": "symphony", "pod_spec": "pod.yaml", "kubeconfig": f"{DIRECTORY}/kubeconfig"}
SETTINGS = {"id": "demo", "loop": {"interval_seconds": 1, "floor_seconds": 0.1}, "pools": {"gke-main": POOL}}
TEMPLATE = template("T", maxNumber=50, pools=["gke-main"])


def wanted(count: int) -> object:
    """Return HostFactory's input of requestMachines."""
    return {"template": {"templateId": "T", "machineCount": count}}


class Sides:
    """The simulated cloud, the calls of the five scripts, and the loops."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self._loops: list[str] = []
        guest.run(f"rm -rf {DIRECTORY} && mkdir -p {DIRECTORY} && chmod 777 {DIRECTORY}")
        guest.write(f"{DIRECTORY}/provisioner.yaml", json.dumps(SETTINGS))
        guest.write(f"{DIRECTORY}/pod.yaml", "containers: [{name: main, image: busybox}]\n")
        guest.write(f"{DIRECTORY}/demoprov_templates.json", json.dumps([TEMPLATE]))
        guest.write(f"{DIRECTORY}/timings.json", json.dumps({"timings": TIMINGS}))
        self._unit(
            "sides-cloud",
            f"{TESTS}/bin/python -m provisioner simulator --config {DIRECTORY}/provisioner.yaml --port {PORT} "
            f"--kubeconfig {DIRECTORY}/kubeconfig --faults {DIRECTORY}/timings.json",
        )
        guest.until(lambda: guest.call(f"test -s {DIRECTORY}/kubeconfig").code == 0, what="the cloud runs")
        guest.run(f"chmod 644 {DIRECTORY}/kubeconfig")

    def _unit(self, name: str, command: str, *options: str) -> None:
        self.guest.run(
            f"systemd-run --quiet --unit {name} --working-directory /opt/repo --setenv PYTHONDONTWRITEBYTECODE=1 "
            f"{' '.join(options)} {command}"
        )

    def end(self) -> None:
        """Stop the cloud."""
        self.guest.call("systemctl stop sides-cloud; systemctl reset-failed")

    # --- loops ----------------------------------------------------------------------------------------------------

    def start(self, host: Host) -> str:
        """Start a loop on that host, and return the name of its unit.

        Like an installed loop, the unit starts again after a problem.
        """
        unit = f"loop-{len(self._loops)}"
        self._loops.append(unit)
        group = self.guest.run(f"id -g {HF_USER}")
        as_loop = f"setpriv --reuid={LOOP_USER} --regid={LOOP_USER} --groups={group}"  # in HostFactory's group as well
        run = f"exec {as_loop} {TESTS}/bin/python -m provisioner run --listen 127.0.0.1:0"
        variables = (f"--setenv {one}" for one in shlex.split(self._variables(host.place)))
        again = "--property Restart=on-failure --property RestartSec=5"
        self._unit(unit, f"unshare --uts sh -c {shlex.quote(f'hostname {host.name}; {run}')}", again, *variables)
        return unit

    def stop(self, *units: str) -> None:
        """Stop these loops, or all, as systemd does."""
        self.guest.call(f"systemctl stop {' '.join(units or self._loops)}")

    def kill(self, unit: str) -> None:
        """Kill a loop, and stop systemd from starting it again. The loop cannot sign off or release a lock."""
        self.guest.run(f"systemctl kill --signal KILL {unit}; systemctl stop {unit}")

    def log(self, unit: str) -> str:
        """Return the log of a loop."""
        return self.guest.run(f"journalctl --unit {unit} --output cat --no-pager")

    def wait_for_log(self, unit: str, *words: str, seconds: float = 120.0) -> None:
        """Wait until a loop's log has these words, one after the other."""

        def has_logged() -> bool:
            rest = self.log(unit)
            for each in words:
                _, found, rest = rest.partition(each)
                if not found:
                    return False
            return True

        try:
            self.guest.until(has_logged, seconds, what=f"{unit} says {words}")
        except AssertionError as error:
            error.add_note(f"The end of its log:\n{self.log(unit)[-4000:]}")
            raise

    def signed(self) -> dict[str, Any]:
        """Return the signature of the present loop, as the file on the server's disk has it."""
        return dict(json.loads(self.guest.run(f"cat {EXPORT}/loop.lock")))

    def locked(self) -> bool:
        """Return True if the server has a lock on the loop's file.

        Only read the server's list of locks, because the loop would end if another process took its lock.
        """
        return self.guest.call(f'grep -q "POSIX .*:$(stat --format %i {EXPORT}/loop.lock) " /proc/locks').code == 0

    # --- scripts --------------------------------------------------------------------------------------------------

    def call(self, name: str, document: object = None) -> tuple[int, str]:
        """Call a script as HostFactory does, and return its exit code and output."""
        ended = self.guest.call(self._line(name, document), user=HF_USER, seconds=200)
        return ended.code, ended.text

    def call_in_parallel(self, name: str, documents: Collection[object]) -> None:
        """Start calls of a script in parallel, without waiting for their end."""
        lines = " ".join(
            f"({self._line(name, document)}; echo $? >code.{number}) >said.{number} 2>&1 &"
            for number, document in enumerate(documents)
        )
        self.guest.run(f"rm -f {DIRECTORY}/code.* {DIRECTORY}/said.*")
        command = f"sh -c {shlex.quote(f'cd {DIRECTORY}; {lines} wait')}"
        self._unit("sides-calls", command, "--uid", HF_USER)

    def collect_parallel(self, count: int) -> list[Any]:
        """Wait for this number of parallel calls, check that each succeeded, and return their documents."""
        number = f"find {DIRECTORY} -name 'code.*' -size +0 | wc -l"
        self.guest.until(lambda: self.guest.call(number).text.strip() == str(count), what=f"{count} calls end")
        outputs = [self.guest.run(f"cd {DIRECTORY}; cat said.{each} code.{each}") for each in range(count)]
        assert all(text.endswith("\n0") for text in outputs), outputs
        return [json.loads(text.removesuffix("\n0")) for text in outputs]

    def asked(self, name: str, document: object) -> Any:
        """Return the document that HostFactory gets from a script."""
        code, text = self.call(name, document)
        assert code == 0, text
        return json.loads(text)

    def request(self, count: int) -> str:
        return str(self.asked("requestMachines", wanted(count))["requestId"])

    def return_machines(self, name: str) -> str:
        return str(self.asked("requestReturnMachines", {"machines": [{"name": name, "machineId": name}]})["requestId"])

    def complete(self, id_: str) -> set[str]:
        """Wait until a request or a return request is complete, and return its machines."""
        until_ended(self.guest, EXPORT, id_)
        (entry,) = self.asked("getRequestStatus", {"requests": [{"requestId": id_}]})["requests"]
        assert entry["status"] == "complete", entry
        return {machine["name"] for machine in entry["machines"]}

    def holds(self, names: set[str]) -> None:
        """Wait until the cloud has exactly these machines."""
        self.guest.until(lambda: self.cloud() == names, what=f"exactly {names} are left")

    def cloud(self) -> set[str]:
        """Return the names of the machines that the cloud holds."""
        return machines_at(self.guest, PORT)

    def owners(self) -> set[str]:
        """Return user, group and permissions of all files of the state directory, except unfinished files."""
        files = f"find {EXPORT} -ignore_readdir_race -type f ! -name '*.new' -printf '%U:%g %m\\n'"
        return {*self.guest.run(files).splitlines()}

    def _line(self, script: str, document: object) -> str:
        variables = f"{self._variables(ONE)} HF_PYTHON={TESTS}/bin/python PYTHONDONTWRITEBYTECODE=1"
        given = "" if document is None else shlex.quote(json.dumps(document))
        return f"env {variables} /opt/repo/hf_scripts/{script}.sh {given}"

    def _variables(self, place: str) -> str:
        return (
            f"HF_PROVIDER_NAME=demo HF_PROVIDER_CONFDIR={DIRECTORY} HF_PROVIDER_WORKDIR={place} "
            f"HF_PROVIDER_LOGDIR={DIRECTORY}"
        )
