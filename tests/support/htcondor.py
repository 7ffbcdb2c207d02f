"""Stand-ins for HTCondor's commands ``condor_q`` and ``condor_status``, and for its pool.

They follow the manual pages and the sources of the versions 23.0, 24.0 and 25.0. No test has used a real pool. For the
options used here, the three versions print the same output.

* Without ``-allusers`` only the caller's jobs are printed. Universe and user are not printed by ``-autoformat``.
* ``-autoformat`` prints the values of attributes and of expressions such as ``real(RequestCpus)``. It prints
  ``undefined`` or ``error`` for a missing value. The output is empty if no job or slot matches.
* ``condor_q -name`` ends with 1 if the schedd is unknown or does not answer. Both commands end with 1 if the central
  manager does not answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

DEFAULT_MEMORY = {"expr": "ifthenelse(MemoryUsage =!= undefined,MemoryUsage,(ImageSize + 1023) / 1024)", "value": 1}
"""RequestMemory of a job whose user has not set it: (expression in the job, value)."""

COMMAND = """#!{python}
import json, pathlib, re, sys

pool = json.loads(pathlib.Path({file!r}).read_text())
name, options = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
with open({file!r} + ".calls", "a") as calls:
    calls.write(json.dumps(sys.argv[:1] + options) + "\\n")
asked = {{"-autoformat": [], "-constraint": "True"}}
while options:
    option = options.pop(0)
    if option in ("-allusers", "-startd", "-schedd"):
        asked[option] = True
    elif option in ("-pool", "-name", "-constraint"):
        asked[option] = options.pop(0)
    elif option == "-autoformat":
        while options and not options[0].startswith("-"):
            asked[option].append(options.pop(0))
    else:
        sys.exit("Error: unrecognized argument " + option)
if pool["is_silent"]:
    sys.exit("Error: Couldn't contact the condor_collector on cm.example.")


def value(ad, attribute):
    if attribute.startswith("real("):
        found = value(ad, attribute[5:-1])
        try:
            return None if found is None else float(found)
        except ValueError:
            return "error"
    found = ad.get(attribute)
    return found["value"] if isinstance(found, dict) else found


def holds(ad):
    text = asked["-constraint"].replace("undefined", "None").replace("=!=", "!=")
    text = text.replace("&&", " and ").replace("||", " or ")
    for attribute in set(re.findall(r"[A-Z][A-Za-z0-9]+", text)) - {{"None", "True"}}:
        text = re.sub(rf"\\b{{attribute}}\\b", f"value(ad, {{attribute!r}})", text)
    return eval(text)


def show(ads):
    for ad in filter(holds, ads):
        shown = [value(ad, attribute) for attribute in asked["-autoformat"]]
        print(*("undefined" if one is None else one for one in shown))


if name == "condor_status":
    show([{{"Name": schedd}} for schedd in pool["schedds"]] if "-schedd" in asked else pool["slots"])
elif asked["-name"] not in pool["schedds"]:
    sys.exit("Error: Collector has no record of schedd/submitter")
elif asked["-name"] in pool["down"]:
    sys.exit("\\n-- Failed to fetch ads from: <192.0.2.1:9618> : " + asked["-name"] + "\\nSECMAN:2007\\n")
else:
    show([job for job in pool["schedds"][asked["-name"]] if "-allusers" in asked or job["Owner"] == pool["me"]])
"""


def job(cpus: int = 1, memory: Any = 1024, *, gpus: int | None = None, status: int = 1, **other: Any) -> dict[str, Any]:
    """Return a job, by default an idle one of universe vanilla (5)."""
    ad = {"Owner": "ana", "JobStatus": status, "JobUniverse": 5, "RequestCpus": cpus, "RequestMemory": memory}
    return ad | ({} if gpus is None else {"RequestGPUs": gpus}) | other


def slot(machine: str, *, cpus: float = 4, memory: int = 8192, **other: Any) -> dict[str, Any]:
    """Return a slot of a machine of ours, by default unclaimed."""
    state = {"State": "Unclaimed", "Activity": "Idle"}
    return {"Name": f"slot1@{machine}", "HFMachine": machine, "Cpus": cpus, "Memory": memory, **state, **other}


def claimed(machine: str, *, cpus: float = 4, memory: int = 8192, activity: str = "Busy") -> dict[str, Any]:
    """Return a slot that a schedd has claimed."""
    return slot(machine, cpus=cpus, memory=memory, State="Claimed", Activity=activity)


class CondorPool:
    """A pool whose jobs and slots the stand-ins print. PATH is changed so that the stand-ins are found first."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Write the commands into ``directory``."""
        self._file = directory / "pool.json"
        self._pool: dict[str, Any] = {"schedds": {}, "slots": [], "down": [], "is_silent": False, "me": "demand"}
        commands = directory / "bin"
        commands.mkdir(parents=True)
        for name in ("condor_q", "condor_status"):
            (commands / name).write_text(COMMAND.format(python=sys.executable, file=str(self._file)))
            (commands / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(commands), prepend=":")
        self.has()

    def has(self, slots: Sequence[Mapping[str, Any]] = (), **schedds: Sequence[Mapping[str, Any]]) -> None:
        """Replace all slots, and the jobs of all schedds."""
        self._set(slots=slots, schedds=schedds)

    def fails(self, *schedds: str, is_silent: bool = False) -> None:
        """From now on, let these schedds not respond, and all others respond. If ``is_silent``, the central manager
        does not respond either."""
        self._set(down=schedds, is_silent=is_silent)

    def calls(self) -> list[list[str]]:
        """Return the arguments of each call of the commands, oldest first."""
        return [json.loads(line) for line in Path(f"{self._file}.calls").read_text().splitlines()]

    def _set(self, **parts: Any) -> None:
        self._pool |= parts
        self._file.write_text(json.dumps(self._pool))
