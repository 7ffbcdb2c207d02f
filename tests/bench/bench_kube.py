"""The speed of the gke backend, and the cost of the loop, on a real Kubernetes API server.

    make bench-kube        or        python -m tests.bench.bench_kube [--only rate,hold,react] [--pods N] [--tries N]

Goals:

* the backend creates and deletes at 80 % or more of the rate of the fastest raw Python client in the same run;
* with 10,000 pods the loop needs at most 50 ms of processor time per quiet cycle, no list call and 200 MB;
* the first create call follows requestMachines.sh within half a second, even if the loop also has a MIG whose API needs
  20 s for each response;
* getRequestStatus reports a pod within a second after the pod is ready.

Exits 1 if a goal is missed. Server and clients share the machine, so compare ratios, not rates.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from provisioner.loop.loop import relax_collector
from tests.bench.kube_clients import REQUEST, Client, Coroutines, Ours, Rate, Target, Threads, timed
from tests.bench.kube_loop import Quiet, Reaction, hold, p95, react
from tests.kube.build import BuildError, assets
from tests.kube.cluster import Cluster
from tests.kube.space import Space

GOAL_RATIO = 0.8
GOAL_QUIET_MILLISECONDS = 50.0
GOAL_MEGABYTES = 200.0
GOAL_CREATE_SECONDS = 0.5
GOAL_REPORTED_SECONDS = 1.0
VERBS = ("create", "delete")
PARTS = ("rate", "hold", "react")

Rounds = Mapping[tuple[str, str], list[Rate]]
"""The rates of all rounds, by client and verb."""

console = Console(width=110)


def say(text: str) -> None:
    """Print progress to stderr."""
    print(f"bench-kube: {text}", file=sys.stderr, flush=True)


# --- creates and deletes ----------------------------------------------------------------------------------------------


def rates(cluster: Cluster, rounds: int, pods: int) -> Iterator[str]:
    """Measure all clients in turn, in several rounds. Yield the goals that were missed."""
    with Space(cluster.admin) as space, tempfile.TemporaryDirectory() as directory:
        target = Target(space, Path(directory))
        ours = Ours(space, target, Path(directory))
        clients: list[Client] = [Threads(target, 32), Coroutines(target, 16), ours]
        measured: dict[tuple[str, str], list[Rate]] = {(one.title, verb): [] for one in clients for verb in VERBS}
        numbers = itertools.count()
        # The first round, in which connections are made and caches filled, does not count.
        for number in range(-1, rounds):
            say(f"round {number + 1} of {rounds}")
            for client in clients[number % 3 :] + clients[: number % 3]:
                created, deleted = one_round(client, space, [f"hf-{REQUEST}-{next(numbers):06}" for _ in range(pods)])
                if number >= 0:
                    measured[client.title, "create"].append(created)
                    measured[client.title, "delete"].append(deleted)
        for client in clients:
            client.close()
    print_rates(measured, [client.title for client in clients])
    for verb in VERBS:
        ratio = ratio_of(measured, ours.title, verb)
        if ratio < GOAL_RATIO:
            yield f"{verb}s: {ratio:.2f} of the fastest raw client, goal {GOAL_RATIO}"


def one_round(client: Client, space: Space, names: list[str]) -> tuple[Rate, Rate]:
    """Create pods with these names, and then delete them. Return the rates of the creates and of the deletes."""
    created = timed(len(names), lambda: client.create(names))
    uids = space.uids()
    assert uids.keys() == set(names)
    return created, timed(len(names), lambda: client.delete(uids))


def ratio_of(measured: Rounds, title: str, verb: str) -> float:
    """Compare our rate with each other client's rate, by the median over the rounds. Return the lowest ratio."""
    others = {who for who, _ in measured} - {title}
    return min(
        statistics.median(
            ours.per_second / theirs.per_second
            for ours, theirs in zip(measured[title, verb], measured[other, verb], strict=True)
        )
        for other in others
    )


def print_rates(measured: Rounds, titles: list[str]) -> None:
    table = Table("client", title="pods (medians)")
    for verb in VERBS:
        for heading in (f"{verb}s/s", "of the fastest", "CPU ms each"):
            table.add_column(heading, justify="right")
    for title in titles:
        cells = []
        for verb in VERBS:
            rates = measured[title, verb]
            cells.append(f"{statistics.median(rate.per_second for rate in rates):.0f}")
            cells.append(f"{ratio_of(measured, title, verb):.2f}" if title == Ours.title else "")
            cells.append(f"{statistics.median(rate.milliseconds for rate in rates):.2f}")
        table.add_row(title, *cells)
    console.print(table)


# --- the loop ---------------------------------------------------------------------------------------------------------


def holding(cluster: Cluster, pods: int) -> Iterator[str]:
    """Measure and print the cost of a quiet cycle, and yield the missed goals."""
    quiet: Quiet = hold(cluster, pods, say)
    table = Table("a loop that holds", "CPU per quiet cycle", "list calls", "memory", "at most ever")
    table.add_row(
        f"{pods:,} pods",
        f"{quiet.milliseconds:.0f} ms (goal {GOAL_QUIET_MILLISECONDS:.0f})",
        f"{quiet.lists:.0f} (goal 0)",
        f"{quiet.megabytes:.0f} MB (goal {GOAL_MEGABYTES:.0f})",
        f"{quiet.most_megabytes:.0f} MB",
    )
    console.print(table)
    if quiet.milliseconds > GOAL_QUIET_MILLISECONDS:
        yield f"a quiet cycle costs {quiet.milliseconds:.0f} ms, goal {GOAL_QUIET_MILLISECONDS:.0f}"
    if quiet.lists:
        yield f"{quiet.lists:.0f} list calls in quiet cycles, goal 0"
    if quiet.megabytes > GOAL_MEGABYTES:
        yield f"{quiet.megabytes:.0f} MB of memory, goal {GOAL_MEGABYTES:.0f}"


def reacting(cluster: Cluster, tries: int) -> Iterator[str]:
    """Measure and print the seconds until an idle loop acts and reports. Yield the missed goals."""
    reactions: dict[str, Reaction] = {}
    for title, slow in (("alone", False), ("beside a MIG that answers in 20 s", True)):
        say(f"reactions of a loop {title}")
        reactions[title] = react(cluster, tries, say, beside_a_slow_mig=slow)
    table = Table("a loop", "request to create, p50", "p95", "ready to reported, p50", "p95", title=f"{tries} tries")
    for title, reaction in reactions.items():
        cells = [f"{act(seconds):.2f} s" for seconds in reaction for act in (statistics.median, p95)]
        table.add_row(title, *cells)
    console.print(table)
    for title, reaction in reactions.items():
        if p95(reaction.create) > GOAL_CREATE_SECONDS:
            yield f"{title}: {p95(reaction.create):.2f} s to the first create, goal {GOAL_CREATE_SECONDS}"
        if p95(reaction.reported) > GOAL_REPORTED_SECONDS:
            yield f"{title}: {p95(reaction.reported):.2f} s until it is reported, goal {GOAL_REPORTED_SECONDS}"


def main() -> int:
    """Print the tables, and return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts to run, default {','.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=7, help="of creates and deletes by each client, default 7")
    parser.add_argument("--batch", type=int, default=500, help="pods in each of them, default 500")
    parser.add_argument("--pods", type=int, default=10_000, help="to be held, default 10000")
    parser.add_argument("--tries", type=int, default=20, help="of each reaction, default 20")
    arguments = parser.parse_args()
    relax_collector()
    try:
        programs = assets(os.environ)
    except BuildError as error:
        say(str(error))
        return 1
    missed: list[str] = []
    with Cluster(programs) as cluster:
        if "rate" in arguments.only:
            missed += rates(cluster, arguments.rounds, arguments.batch)
        if "react" in arguments.only:
            missed += reacting(cluster, arguments.tries)
        if "hold" in arguments.only:
            missed += holding(cluster, arguments.pods)
    cluster.forget()
    for line in missed:
        console.print(f"missed: {line}", style="red")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
