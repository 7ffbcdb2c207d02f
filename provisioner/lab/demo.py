"""The demonstration on the embedded cloud: it requests machines, lets the cloud preempt some, and returns all.

The demonstration calls the shell scripts as HostFactory does. A step succeeds only if the cloud's own state shows the
step's effect. The status that the provisioner reports does not count.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from provisioner.hostfactory.script_calls import ScriptFailed
from provisioner.lab.playground import Playground, PlaygroundError

STEP_SECONDS = 60.0
POLL_SECONDS = 0.5
"""Seconds between two polls. HF polls every 30 s, which would be too long for a demonstration."""

TERMINATED = 143
"""Exit code that shells report for a program that SIGTERM has ended."""

PODS, INSTANCES, SPILLED, PREEMPTED = 30, 20, 6, 3


class StepFailed(Exception):
    """Raised if a step did not have the effect that it should have. The text describes the observed state."""


@dataclass
class Step:
    """A row in the table of steps: the step's title and result."""

    title: str
    state: str = "…"
    note: str = ""
    began: float = 0.0
    seconds: float = 0.0


@dataclass
class Show:
    """The content of the demonstration's screen."""

    playground: Playground
    title: str
    steps: list[Step] = field(default_factory=list)

    def render(self) -> Group:
        """Return the table of steps, and below it a table of the machines in the cloud."""
        steps = Table(title=f"HostFactory provisioner: {self.title}", title_justify="left")
        for heading in ("", "step", "what the cloud says"):
            steps.add_column(heading)
        steps.add_column("seconds", justify="right")
        for step in self.steps:
            taken = step.seconds or (time.monotonic() - step.began if step.began else 0.0)
            steps.add_row(step.state, step.title, step.note, f"{taken:.1f}" if taken else "")
        return Group(steps, self._cloud())

    def _cloud(self) -> Table:
        pools = Table(title="in the cloud now", title_justify="left")
        phases = ("pending", "running", "stopping", "gone", "failed")
        for heading in ("place", *phases):
            pools.add_column(heading, justify="left" if heading == "place" else "right")
        counts = Counter((machine["pool"], machine["phase"]) for machine in self.playground.cloud())
        for pool in sorted({pool for pool, _ in counts}):
            pools.add_row(pool, *(str(counts[pool, phase] or "") for phase in phases))
        return pools


class Demo:
    """All steps in order. A step raises StepFailed if the cloud does not show the expected state."""

    title = "the main job on the embedded cloud"
    summary = (
        "judged by the cloud's own state. Each machine was made once, in the place that had room. Exactly the machines "
        "that the cloud took were reported. No machine was left."
    )
    """The end of the sentence that is printed if all steps have passed."""

    def __init__(self, playground: Playground) -> None:
        self.cloud = playground
        self.hf = playground.hf
        self.machines: list[str] = []
        self.show = Show(playground, self.title)
        self._step = Step("")

    def play(self) -> None:
        """Play all steps in order."""
        with self._stepping("getAvailableTemplates") as step:
            step.note = ", ".join(self.hf.templates())
        self._start()
        self._spill()
        self._lose()
        self._return_machines()

    def _start(self) -> None:
        with self._stepping(f"request {PODS} pods and {INSTANCES} instances") as step:
            pods, instances = self.hf.request("GkePod", PODS), self.hf.request("GceVm", INSTANCES)
            self._until_complete(pods)
            self._until_complete(instances)
            running = Counter(machine["kind"] for machine in self._of(pods, instances) if machine["phase"] == "running")
            self._hold(running == {"gke": PODS, "mig": INSTANCES}, f"running: {dict(running)}")
            step.note = f"{running['gke']} pods and {running['mig']} instances run, each once"

    def _spill(self) -> None:
        with self._stepping(f"stock-out: {SPILLED} pods find no node, instances take over") as step:
            self.cloud.faults({"mode": "stockout", "target": "symphony"})
            id_ = self.hf.request("Mixed", SPILLED)
            self._until_complete(id_)
            self.cloud.faults()
            pools = Counter(machine["pool"] for machine in self._of(id_) if machine["phase"] == "running")
            self._hold(pools == {"hf-a": SPILLED}, f"running: {dict(pools)}")
            step.note = f"{SPILLED} run in hf-a; the pods tried before are gone"
            self._until(lambda: len(self._of(id_)) == SPILLED, f"the withdrawn pods of {id_} go")

    def _lose(self) -> None:
        with self._stepping(f"the cloud preempts {PREEMPTED} machines") as step:
            self._hold(not self.hf.reclaimed(self.machines), "machines are reported lost before any was")
            by_kind = {machine["name"]: machine["kind"] for machine in self.cloud.cloud()}
            doomed = [name for name in self.machines if by_kind.get(name) == "gke"][:2]
            doomed += [name for name in self.machines if by_kind.get(name) == "mig"][:1]
            taken = self.cloud.preempt(doomed)
            self._hold(sorted(taken) == sorted(doomed), f"the cloud took {taken}")
            self._until(lambda: set(self.hf.reclaimed(self.machines)) == set(doomed), "getReturnRequests names them")
            self._until(lambda: not set(doomed) & self._alive(), "the cloud has none of them any more")
            self._hold(set(self.hf.reclaimed(self.machines)) == set(doomed), "getReturnRequests still names them")
            step.note = f"{len(doomed)} gone; getReturnRequests names exactly these"

    def _return_machines(self) -> None:
        with self._stepping(f"return all {len(self.machines)} machines") as step:
            id_ = self.hf.return_machines(self.machines)
            self._until_complete(id_)
            left = [machine["name"] for machine in self.cloud.cloud()]
            self._hold(not left, f"left in the cloud: {left}")
            self._hold(not self.hf.reclaimed([]), "a returned machine is reported lost")
            calls = self.cloud.cloud_state()["calls"]
            step.note = f"the cloud is empty; it saw {sum(calls.values())} API calls in all"

    # --- judging --------------------------------------------------------------------------------------------------

    @contextmanager
    def _stepping(self, title: str) -> Iterator[Step]:
        self._step = step = Step(title, "▶", began=time.monotonic())
        self.show.steps.append(step)
        try:
            yield step
        except (StepFailed, PlaygroundError, ScriptFailed) as error:
            step.state, step.note = "✗", str(error)
            raise
        finally:
            step.seconds = time.monotonic() - step.began
        step.state = "✓"

    def _hold(self, true: bool, otherwise: str) -> None:
        if not true:
            raise StepFailed(otherwise)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + STEP_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise StepFailed(f"not within {STEP_SECONDS:.0f} s: {what}")
            time.sleep(POLL_SECONDS)

    def _until_complete(self, id_: str) -> None:
        """Poll the request as HF does, until the request ends. Raise StepFailed if the request does not end with the
        status ``complete``."""
        entry: dict[str, Any] = {}

        def ended() -> bool:
            entry.update(self.hf.status(id_))
            done = sum(machine["result"] == "succeed" for machine in entry["machines"])
            self._step.note = f"{id_}: {done} of {len(entry['machines'])}"
            return bool(entry["status"] != "running")

        self._until(ended, f"{id_} ends")
        self._hold(entry["status"] == "complete", f"{id_} ended {entry['status']}: {entry['message']}")
        if not id_.startswith("ret-"):
            self.machines += [machine["name"] for machine in entry["machines"]]

    def _of(self, *ids: str) -> list[dict[str, Any]]:
        """Return the machines that the cloud now has for these requests."""
        return [machine for machine in self.cloud.cloud() if any(f"-{id_}-" in machine["name"] for id_ in ids)]

    def _alive(self) -> set[str]:
        return {machine["name"] for machine in self.cloud.cloud() if machine["phase"] in ("pending", "running")}


def demo(*, keep: bool) -> int:
    """Play the demonstration, judge it, and return the exit code. ``keep``: True to keep cloud and loop running until
    Ctrl-C, for use by hand."""
    console = Console()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0 if keep else TERMINATED))
    try:
        with Playground() as playground:
            return _keep(playground, console) if keep else show_demo(Demo(playground), console)
    except PlaygroundError as error:
        console.print(Text(str(error), style="red"))
        return 1


def show_demo(play: Demo, console: Console) -> int:
    """Play the steps, show them as a table, and return the exit code."""
    began = time.monotonic()
    try:
        with Live(get_renderable=play.show.render, console=console, refresh_per_second=4):
            play.play()
        console.print()
    except (StepFailed, PlaygroundError, ScriptFailed) as error:
        play.cloud.kept = True
        kept = f"Logs and state are kept in {play.cloud.directory}"
        console.print(Text(f"The step failed: {error}. {kept}", style="red"))
        return 1
    console.print(f"All steps passed in {time.monotonic() - began:.0f} s, {play.summary}")
    return 0


ROUND_TRIP = """
# Ask for five machines, and poll until they run, as HostFactory does.
asked=$(hf_scripts/requestMachines.sh '{"template":{"templateId":"GkePod","machineCount":5}}'); echo "$asked"
id=$(echo "$asked" | sed 's/.*"requestId": "\\([^"]*\\)".*/\\1/')
poll='{"requests":[{"requestId":"'$id'"}]}'
until answer=$(hf_scripts/getRequestStatus.sh "$poll"); echo "$answer" | grep '"complete'; do sleep 1; done
.venv/bin/provisioner status

# The preferred place has no more room, so the next place makes five more. Status shows why they come late.
curl -sS -X PUT "$SIMULATOR/faults" -d '{"faults":[{"mode":"stockout","target":"symphony"}]}'
hf_scripts/requestMachines.sh '{"template":{"templateId":"GkePod","machineCount":5}}'
sleep 5; .venv/bin/provisioner status
curl -sS -X PUT "$SIMULATOR/faults" -d '{"faults":[]}'

# The cloud takes a machine away: HostFactory is asked to return it, with the seconds left.
machine=$(echo "$answer" | grep -o 'hf-[a-z0-9]*-[0-9]*' | head -n 1)
curl -sS -X POST "$SIMULATOR/preempt" -d '{"names":["'$machine'"]}'
sleep 3; hf_scripts/getReturnRequests.sh '{"machines":[{"name":"'$machine'"}]}'

# HostFactory returns machines, which are then deleted.
back=$(echo "$answer" | grep -o '"name": *"[^"]*"' | sed 's/.*/{&}/' | paste -sd, -)
hf_scripts/requestReturnMachines.sh '{"machines":['"$back"']}'
sleep 5; .venv/bin/provisioner status
"""
"""Shell lines for a second terminal: commands that play HostFactory, use the cloud and show the status."""


def _keep(playground: Playground, console: Console) -> int:
    def show(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False, markup=False)

    console.print("An embedded cloud and a loop run. Paste this in a second terminal:\n", style="bold")
    show(playground.exports())
    console.print("\nThen try a whole round trip, line by line:", style="bold")
    show(ROUND_TRIP)
    console.print("Or use your own tools:\n", style="bold")
    show(
        "kubectl get pods -n symphony -w\n"
        "gcloud compute instance-groups managed list-instances hf-a --zone us-central1-a\n"
        f"curl {playground.url}/metrics\n\n"
        "Ctrl-C ends cloud and loop, and removes their files."
    )
    try:
        signal.pause()
    finally:
        console.print("Ending.")
    return 0
