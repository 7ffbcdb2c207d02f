"""The speed of the slurm backend on a real slurmrestd of Debian, compared with a plain loop of calls in the same run.

    make bench-slurm        or        python -m tests.bench.bench_slurm [--rounds N] [--jobs N]

Goals of the backend for 1,000 jobs:

* it creates them in at most 4 s, and in no more seconds than the plain loop;
* it deletes them in at most 4 s, and in at most 0.4 of the seconds of the plain loop;
* it observes them in at most 0.8 s, and in at most 1.5 times the seconds of a list call of the plain loop;
* in a quiet cycle it makes one list call and no other call.

The plain loop makes one call after the other, each on a connection of its own. It knows the ids of its jobs. Exits 1 if
a goal is missed. Cluster and clients share the machine. Therefore the ratios are medians over the rounds, and the
seconds come from the quickest round.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from provisioner.backends.slurm.backend import SlurmBackend
from provisioner.backends.slurm.cluster import Cluster
from provisioner.backends.slurm.settings import SlurmPool
from provisioner.backends.slurm.submission import Identity, submission
from provisioner.loop.loop import relax_collector
from provisioner.model import Create, Delete, DeleteReason, Phase
from provisioner.testing.fault_proxy import FaultProxy
from provisioner.testing.place import always
from provisioner.testing.waiting import until
from tests.support.schedulers.slurm import NO_SLURM, SlurmCluster, is_installed

GOALS = {"create": 4.0, "observe": 0.8, "delete": 4.0}
"""Goals for 1,000 jobs: the largest number of seconds."""
MOST_OF_PLAIN = {"create": 1.0, "observe": 1.5, "delete": 0.4}
"""Goals: the largest ratio of our seconds to those of the plain loop."""
QUIET_CYCLES = 5
REQUEST, PREFIX, SCRIPT = "abcdefghij", "hf", "#!/bin/sh\nexec sleep 1000\n"
VERSION = 38

Seconds = dict[str, list[float]]
"""The seconds of all rounds, by step."""

console = Console(width=110)


def say(text: str) -> None:
    """Print progress to stderr."""
    print(f"bench-slurm: {text}", file=sys.stderr, flush=True)


class Plain:
    """A loop that makes one call after the other, each on a connection of its own."""

    def __init__(self, url: str, pool: SlurmPool) -> None:
        self.pool = pool
        self._host = urlsplit(url).netloc
        token = pool.token_file.read_text()
        self._headers = {"X-SLURM-USER-NAME": pool.user, "X-SLURM-USER-TOKEN": token}

    def create(self, creates: Sequence[Create]) -> list[int]:
        """Submit jobs. Return their ids."""
        owner = Identity("plain", "plain", REQUEST, "small")
        bodies = (submission(self.pool, create, owner, SCRIPT, VERSION) for create in creates)
        return [int(self.call("POST", "job/submit", body)["job_id"]) for body in bodies]

    def delete(self, jobs: Sequence[int]) -> None:
        """Cancel jobs."""
        for job in jobs:
            self.call("DELETE", f"job/{job}")

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Make one call, and return the JSON value in the response."""
        connection = http.client.HTTPConnection(self._host, timeout=15)
        content = None if body is None else json.dumps(body)
        headers = self._headers | ({"Content-Type": "application/json"} if content else {})
        connection.request(method, f"/slurm/v0.0.{VERSION}/{path}", content, headers)
        reply = connection.getresponse()
        answer = json.loads(reply.read())
        connection.close()
        assert reply.status == 200, answer
        return answer


def seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


class Bench:
    """A cluster with the backend and the plain loop."""

    def __init__(self, cluster: SlurmCluster, directory: Path) -> None:
        self.cluster, self._numbers = cluster, itertools.count()
        (directory / "token").write_text(cluster.token())
        (directory / "pilot.sh").write_text(SCRIPT)
        self.pool = SlurmPool(
            name="hpc",
            endpoint=cluster.url,
            user=cluster.user,
            token_file=directory / "token",
            script_file=directory / "pilot.sh",
            partition="grid",
            cpus=1,
            exclusive=False,
            observe_seconds=0.0,
        )
        self.plain = Plain(cluster.url, self.pool)

    def backend(self, url: str) -> SlurmBackend:
        """Return a backend that calls this address."""
        pool = self.pool.model_copy(update={"endpoint": url})
        return SlurmBackend(pool, Cluster(pool), provisioner="demo", prefix=PREFIX)

    def creates(self, jobs: int) -> list[Create]:
        """Return ``jobs`` create actions for machines with new names."""
        names = (f"{PREFIX}-{REQUEST}-{next(self._numbers):06}" for _ in range(jobs))
        return [Create(name, "hpc", "small", REQUEST) for name in names]

    def ours(self, jobs: int) -> dict[str, float]:
        """Create, observe and delete ``jobs`` jobs by a new backend. Return the seconds of each step."""
        backend, creates, took = self.backend(self.cluster.url), self.creates(jobs), {}
        backend.observe(time.monotonic(), {})
        took["create"] = seconds(lambda: succeeded(backend.create(creates, always), jobs))
        backend.observe(time.monotonic(), {})  # asks for the address of the node
        took["observe"] = statistics.median(
            seconds(lambda: backend.observe(time.monotonic(), {}).machines[creates[-1].name]) for _ in range(3)
        )
        machines = backend.observe(time.monotonic(), {}).machines
        assert machines.keys() == {create.name for create in creates}
        deletes = [Delete(one.name, "hpc", DeleteReason.RETURNED, one.fingerprint.uid) for one in machines.values()]
        took["delete"] = seconds(lambda: succeeded(backend.delete(deletes, always), jobs))
        left = backend.observe(time.monotonic(), {}).machines.values()
        assert all(machine.phase is Phase.STOPPING for machine in left)
        return took

    def theirs(self, jobs: int) -> dict[str, float]:
        """Submit, list and cancel ``jobs`` jobs by the plain loop. Return the seconds of each step."""
        creates, made, took = self.creates(jobs), list[int](), {}
        took["create"] = seconds(lambda: made.extend(self.plain.create(creates)))
        took["observe"] = statistics.median(seconds(lambda: self.plain.call("GET", "jobs")) for _ in range(3))
        took["delete"] = seconds(lambda: self.plain.delete(made))
        return took

    def quiet_calls(self) -> list[str]:
        """Return the calls that the backend makes in ``QUIET_CYCLES`` observations of running jobs."""
        with FaultProxy(self.cluster.url) as proxy:
            backend, creates = self.backend(proxy.address), self.creates(40)
            succeeded(backend.create(creates, always), len(creates))
            until(lambda: runs(backend) == len(creates), 60, what="the jobs run")
            before = len(proxy.exchanges)
            for _ in range(QUIET_CYCLES):
                assert runs(backend) == len(creates)
            return [f"{one.method} {one.path.rpartition('/')[2]}" for one in proxy.exchanges[before:]]


def runs(backend: SlurmBackend) -> int:
    """Return the number of machines that run."""
    machines = backend.observe(time.monotonic(), {}).machines.values()
    return sum(machine.phase is Phase.RUNNING for machine in machines)


def succeeded(outcomes: Sequence[Any], jobs: int) -> None:
    failures = [outcome.failure for outcome in outcomes if outcome.failure]
    assert (len(outcomes), failures) == (jobs, []), failures[:3]


def main() -> int:
    """Print the table, and return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--jobs", type=int, default=1000, help="of each round, default 1000")
    arguments = parser.parse_args()
    if not is_installed():
        say(NO_SLURM)
        return 1
    relax_collector()
    ours: Seconds = {part: [] for part in GOALS}
    theirs: Seconds = {part: [] for part in GOALS}
    cluster = SlurmCluster()
    try:
        with tempfile.TemporaryDirectory() as directory:
            bench = Bench(cluster, Path(directory))
            for number in range(arguments.rounds):
                say(f"round {number + 1} of {arguments.rounds}")
                turns = [(ours, bench.ours), (theirs, bench.theirs)]
                for into, turn in turns[:: -1 if number % 2 else 1]:
                    for part, took in turn(arguments.jobs).items():
                        into[part].append(took)
                    cluster.forget_jobs()
            calls = bench.quiet_calls()
    finally:
        cluster.stop()
    return report(ours, theirs, calls, arguments.jobs)


def report(ours: Seconds, theirs: Seconds, calls: Sequence[str], jobs: int) -> int:
    """Print the results and the missed goals."""
    table = Table("", "ours", "plain loop", "ours / plain", title=f"{jobs:,} jobs")
    missed = []
    for part, goal in GOALS.items():
        own, plain = min(ours[part]), min(theirs[part])
        ratio = statistics.median(a / b for a, b in zip(ours[part], theirs[part], strict=True))
        most = MOST_OF_PLAIN[part]
        table.add_row(part, f"{own:.2f} s (goal {goal})", f"{plain:.2f} s", f"{ratio:.2f} (goal {most})")
        if own > goal * jobs / 1000:
            missed.append(f"{part}: {own:.2f} s, goal {goal}")
        if ratio > most:
            missed.append(f"{part}: {ratio:.2f} of the plain loop, goal {most}")
    console.print(table)
    console.print(f"{QUIET_CYCLES} quiet observations: {', '.join(calls)}")
    if list(calls) != ["GET jobs"] * QUIET_CYCLES:
        missed.append(f"{len(calls)} calls in {QUIET_CYCLES} quiet observations, goal one list each")
    for line in missed:
        console.print(f"missed: {line}", style="red")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
