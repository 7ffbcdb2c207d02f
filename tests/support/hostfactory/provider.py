"""HostFactory's part, as tests play it: the directories of a provider instance, and calls of the five scripts like HF's
calls."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from provisioner.state.directory import StateDir
from tests.support.hostfactory.schemas import check_output, parsed
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "hf_scripts"
GOLDEN = ROOT / "tests" / "golden"
COMMANDS = (
    "getAvailableTemplates",
    "requestMachines",
    "getRequestStatus",
    "requestReturnMachines",
    "getReturnRequests",
)

INSTANCE = "demoinst"

TEMPLATES: dict[str, Any] = {
    "templates": [
        {
            "templateId": name,
            "maxNumber": most,
            "attributes": {"type": ["String", "X86_64"], "ncpus": ["Numeric", "4"], "nram": ["Numeric", "8192"]},
            "pools": ["gke-main"],
        }
        for name, most in (("T1", 10), ("T2", -1), ("T0", 0))
    ]
}
"""Templates for tests: one with a maxNumber of ten, one without a limit, and one with maxNumber 0."""


class Called(NamedTuple):
    """The result of a script."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Return the one JSON document that the script has printed."""
        assert self.code == 0, self
        assert self.err == ""
        assert self.out.endswith("\n")
        return parsed(self.out)

    @property
    def refusal(self) -> str:
        """Return the one short line that a script prints if it refuses the call."""
        assert self.code == 1, self
        assert self.err == ""
        assert self.out.endswith("\n")
        assert self.out.count("\n") == 1
        assert "Traceback" not in self.out
        return self.out.rstrip("\n")


class HostFactory:
    """A provider instance below ``directory``."""

    def __init__(self, directory: Path, *, templates: object = TEMPLATES, instance: str = INSTANCE) -> None:
        self.conf, self.work, self.logs = (directory / name for name in ("conf", "work", "log"))
        for place in (self.conf, self.work, self.logs):
            place.mkdir(parents=True, exist_ok=True)
        self.instance = instance
        self.templates_file = self.conf / f"{instance}prov_templates.json"
        self.templates_file.write_text(json.dumps(templates))
        self.input = directory / "hf_in_a1B2c3"
        self.scripts = SCRIPTS

    @property
    def state(self) -> StateDir:
        """Return the state directory as the loop opens it."""
        return StateDir(self.work)

    @property
    def log(self) -> list[dict[str, Any]]:
        """Return the lines of the scripts' log, oldest first."""
        return [json.loads(line) for file in self.logs.iterdir() for line in file.read_text().splitlines()]

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment that HF gives a script. It has neither HOME nor PATH."""
        return {
            "HF_PROVIDER_NAME": self.instance,
            "HF_PROVIDER_CONFDIR": str(self.conf),
            "HF_PROVIDER_WORKDIR": str(self.work),
            "HF_PROVIDER_LOGDIR": str(self.logs),
            "EGOSC_INSTANCE_HOST": "master1",
        }

    def command(self, name: str, document: object) -> list[str]:
        """Write a call's input file in HF's form, and return the call's command line."""
        self.input.write_text(json.dumps(document, indent="\t"))
        return [str(self.scripts / f"{name}.sh"), "-f", str(self.input)]

    def run(self, command: list[str], *, environment: Mapping[str, str] | None = None, seconds: float = 60) -> Called:
        """Run a command line in the directory ``/`` and without stdin. Raises subprocess.TimeoutExpired."""
        done = subprocess.run(
            command,
            env=self.environment if environment is None else dict(environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds * PATIENCE,
            check=False,
        )
        return Called(done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8"))

    def call(self, name: str, document: object, *, seconds: float = 60) -> Any:
        """Call a script, and return the document that it prints, after a check against its schema. Raises
        AssertionError if the script refuses the call."""
        answer = self.run(self.command(name, document), seconds=seconds).document
        check_output(name, answer)
        return answer

    def request(self, template: str = "T1", machines: int = 3) -> str:
        """Call requestMachines, and return the id of the new request."""
        document = {"template": {"templateId": template, "machineCount": machines}}
        return str(self.call("requestMachines", document)["requestId"])

    def return_machines(self, *names: str) -> str:
        """Call requestReturnMachines, and return the id of the new return request."""
        document = {"machines": [{"name": name, "machineId": name} for name in names]}
        return str(self.call("requestReturnMachines", document)["requestId"])

    def status(self, *requests: str) -> list[dict[str, Any]]:
        """Return the entries of getRequestStatus."""
        document = {"requests": [{"requestId": request} for request in requests]}
        entries: list[dict[str, Any]] = self.call("getRequestStatus", document)["requests"]
        return entries


def golden(name: str) -> Any:
    """Return a document that HostFactory's reference shows as an example."""
    return json.loads((GOLDEN / f"{name}.json").read_text())


def requesting(template: object = "T1", machines: object = 3) -> dict[str, object]:
    """Return the input of requestMachines."""
    return {"template": {"templateId": template, "machineCount": machines}}
