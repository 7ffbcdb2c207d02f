"""The cost of each script: wall and CPU time and peak memory, compared with ``python -c "import tinydb"``.

    python tests/bench/bench_scripts.py [--rounds N]

Goals, as multiples of the time of the bare import: twice for up to 100 machines, three times for up to 10,000, and four
times for 50,000, which is five times the largest expected grid. The goal of memory is 40 MB. Exits 1 if a goal is
missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from provisioner.hostfactory import Answer, Loss
from provisioner.names import machine_name
from tests.support.hostfactory.provider import COMMANDS, HostFactory
from tests.support.stores import add_request

SIZES = (0, 100, 1_000, 10_000, 50_000)
GOALS = {0: 2.0, 100: 2.0, 1_000: 3.0, 10_000: 3.0, 50_000: 4.0}
"""Goals by number of machines in the state: the largest ratio of a script's wall time to that of the bare import."""
GOAL_MEGABYTES = 40.0
"""Goal: the largest peak memory."""
BATCH = 100
"""Number of machines in a request. HF itself sends no larger batches."""
LOSSES = 5
"""Number of lost machines, because getReturnRequests reads intent only if it has machines to report."""

# A process inherits the peak memory of the one that started it, so a small one starts and measures them all.
STARTER = """
import json, os, sys, time
task = json.load(sys.stdin)
null = os.open(os.devnull, os.O_RDWR)
for _ in range(task["rounds"]):
    for name, command in task["commands"].items():
        began = time.perf_counter()
        actions = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
        pid = os.posix_spawn(command[0], command, task["environment"], file_actions=actions)
        _, status, usage = os.wait4(pid, 0)
        seconds = time.perf_counter() - began
        if status:
            sys.exit(f"{name}: ended with {os.waitstatus_to_exitcode(status)}")
        task.setdefault("results", {}).setdefault(name, []).append(
            (seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
        )
print(json.dumps(task["results"]))
"""

BASE = "import tinydb"


class Cost(NamedTuple):
    """The cost of one command: medians over the rounds."""

    seconds: float
    cpu: float
    """Seconds of processor time, of the shell and of Python."""
    megabytes: float


def prepare(hf: HostFactory, machines: int) -> dict[str, list[str]]:
    """Write a state with ``machines`` running machines, in requests of ``BATCH``. Return a command line for each script
    that uses this state."""
    names = []
    answers = {}
    hf.state.intent.create(hf.instance)
    for _ in range(max(machines // BATCH, 1)):
        request = add_request(hf.state, "T2", min(machines, BATCH), created_wall=0.0)
        entries = [entry(machine_name("hf", request, number)) for number in range(min(machines, BATCH))]
        text = {"requestId": request, "status": "complete", "message": "", "machines": entries}
        answers[request] = Answer(json.dumps(text), ended=True)
        names += [each["name"] for each in entries]
    hf.state.status.write(answers, {str(name): Loss(0) for name in names[:LOSSES]})
    hf.state.heartbeat.touch()
    hosts = [{"name": f"{name}.c.demo.internal", "machineId": name} for name in names]
    return {
        "getAvailableTemplates": call(hf, "getAvailableTemplates", {}),
        "requestMachines": call(hf, "requestMachines", {"template": {"templateId": "T2", "machineCount": BATCH}}),
        "getRequestStatus": call(hf, "getRequestStatus", {"requests": [{"requestId": request}]}),
        "requestReturnMachines": call(hf, "requestReturnMachines", {"machines": hosts[-BATCH:] or [{"name": "a"}]}),
        "getReturnRequests": call(hf, "getReturnRequests", {"machines": hosts}),
    }


def entry(name: str) -> dict[str, object]:
    """Return a running machine as getRequestStatus shows it."""
    return {
        "machineId": name,
        "name": name,
        "result": "succeed",
        "status": "running",
        "privateIpAddress": "10.128.15.200",
        "publicIpAddress": "",
        "launchtime": 1_734_619_942,
        "message": "",
    }


def call(hf: HostFactory, name: str, document: object) -> list[str]:
    """Return the command line that calls the script ``name``. Write ``document`` to an input file of this script."""
    hf.input = hf.input.with_name(f"{name}.json")
    return hf.command(name, document)


def measure(hf: HostFactory, commands: dict[str, list[str]], rounds: int) -> dict[str, Cost]:
    """Return the costs of all commands. Each round runs every command once, so that a change of the host's speed
    affects all commands alike."""
    task = {"rounds": rounds, "commands": commands, "environment": hf.environment}
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", STARTER], input=json.dumps(task), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    results: dict[str, list[list[float]]] = json.loads(done.stdout)
    return {name: Cost(*map(statistics.median, zip(*runs, strict=True))) for name, runs in results.items()}


def table(machines: int, costs: dict[str, Cost]) -> list[str]:
    """Return a line for ``import tinydb`` alone, and a line for each script."""
    return [line(machines, name, costs[name], costs[BASE]) for name in (BASE, *COMMANDS)]


def line(machines: int, name: str, cost: Cost, base: Cost) -> str:
    """Return a line with the cost of a command. The line has a mark if the cost misses a goal."""
    start = f"{machines:>8,}  {name:<22} {1000 * cost.seconds:>7.1f} ms {1000 * cost.cpu:>7.1f} ms"
    end = f" {cost.megabytes:>7.1f} MB"
    if name == BASE:
        return f"{start} {'':>18}{end}"
    ratio, goal = cost.seconds / base.seconds, GOALS[machines]
    beside = f"{ratio:>6.2f} x (goal {goal:.0f} x)"
    missed = ratio > goal or cost.megabytes > GOAL_MEGABYTES
    return f"{start} {beside:<18}{end}" + ("  MISSED" if missed else "")


def main() -> int:
    """Print the table, and return 1 if a goal is missed."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=15, help="runs of each command, default 15")
    rounds = arguments.parse_args().rounds
    print(f"machines  {'command':<22} {'wall':>10} {'CPU':>10} {'beside the import':<18} {'peak memory':>10}")
    missed = False
    for machines in SIZES:
        with tempfile.TemporaryDirectory() as directory:
            hf = HostFactory(Path(directory))
            commands = {BASE: [sys.executable, "-c", BASE], **prepare(hf, machines)}
            lines = table(machines, measure(hf, commands, rounds))
        print("\n".join(lines), flush=True)
        missed = missed or any("MISSED" in line for line in lines)
    print(f"medians of {rounds} runs; goal for memory {GOAL_MEGABYTES:.0f} MB")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
