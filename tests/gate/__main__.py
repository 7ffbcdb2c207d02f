"""Run the gate. ``python -m tests.gate all`` (make test-all) runs every stage. ``python -m tests.gate ci`` (.ci/run)
runs only the stages that a change needs.

Each stage is a make target. Its output is shown while it runs. The output of a stage that runs in the background,
beside other stages, is shown at its end. ``build/gate`` has a copy of each output. After ``all`` without uncommitted
changes, ``.ci/complete-run.json`` records the run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from tests.gate.results import Result, read, requires_all
from tests.gate.stages import ROOT, STAGES, Selection, Stage, Tree, select

RECORD = ROOT / ".ci" / "complete-run.json"
LOGS = ROOT / "build" / "gate"

IN_THE_BACKGROUND, BESIDE = {"vm"}, {"checkov", "slow", "flips", "pubsub", "kube"}
"""The guest is emulated and idle for half of its time, so its stage runs beside those that wait for servers."""

BUILDS = {"test": ("tests.kube.build", "kustomize"), "kube": ("tests.kube.build",), "vm": ("tests.vm.build",)}
"""The module, with its arguments, that builds what a stage needs once per machine."""

PATIENCE = {"TEST_PATIENCE": os.environ.get("TEST_PATIENCE", "4")}
RERUNS = " --reruns 1" if os.environ.get("CI") == "true" else ""
"""Only in CI, a failed test is run once more."""


class Gate:
    """A run of stages."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.results: dict[str, Result] = {}
        self.build_seconds = 0.0
        shutil.rmtree(LOGS, ignore_errors=True)
        LOGS.mkdir(parents=True)

    def run(self) -> None:
        """Run the selected stages in order. The stages in ``IN_THE_BACKGROUND`` run at the same time as those in
        ``BESIDE``."""
        chosen = [stage for stage in STAGES if stage.name in self.selection.run]
        self._build([stage.name for stage in chosen])
        background = [stage for stage in chosen if stage.name in IN_THE_BACKGROUND]
        beside = [stage for stage in chosen if stage.name in BESIDE]
        thread = threading.Thread(target=self._run_lane, args=(background, not beside))
        for stage in chosen:
            if stage in (*background, *beside) and thread.ident is None:
                thread.start()
                self._run_lane(beside, True)
                thread.join()
            elif stage.name not in self.results:
                self._run_stage(stage, shown=True)

    def _run_lane(self, stages: Sequence[Stage], shown: bool) -> None:
        for stage in stages:
            self._run_stage(stage, shown=shown)

    def _build(self, names: Sequence[str]) -> None:
        """Build what the stages need once per machine, such as the API server and the guest's disk. These builds take
        minutes."""
        began = time.monotonic()
        for name in names:
            if name in BUILDS and shutil.which("go" if name != "vm" else "debootstrap"):
                subprocess.run([sys.executable, "-m", *BUILDS[name]], cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
        self.build_seconds = time.monotonic() - began

    def _run_stage(self, stage: Stage, *, shown: bool) -> None:
        if missing := [program for program in stage.needs if shutil.which(program) is None]:
            reason = f"needs {', '.join(missing)}"
            self.results[stage.name] = Result(not requires_all(), 0.0, problems=[reason])
            self.results[stage.name].skipped[reason] = 1
            return
        _say(f"--- {stage.name}: make {stage.target} ({self.selection.run[stage.name]})")
        report, again, log = (LOGS / f"{stage.name}.{end}" for end in ("xml", "again.json", "log"))
        surroundings = {**os.environ, **PATIENCE, "PYTEST_AGAIN": str(again)}
        arguments = f"PYTEST_ARGS=--junit-xml={report}{RERUNS}"
        began = time.monotonic()
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*([sys.executable, "-m", stage.judge] if stage.judge else []), "make", stage.target, arguments],
                cwd=ROOT,
                env=surroundings,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                if shown:
                    sys.stdout.buffer.write(line)
                    sys.stdout.buffer.flush()
        result = Result(process.wait() == 0, time.monotonic() - began)
        if not shown:
            _say(f"--- {stage.name}: its output\n{log.read_text(errors='replace')}")
        if report.exists():
            read(result, report, again, require_all=requires_all())
        elif not result.is_green:
            result.problems.append(f"make {stage.target} failed; its output is in {log.relative_to(ROOT)}")
        self.results[stage.name] = result
        _say(f"--- {stage.name}: {'passed' if result.is_green else 'FAILED'} in {result.seconds:.0f} s")

    def is_green(self) -> bool:
        """Return True if each selected stage ran and passed."""
        return all(name in self.results and self.results[name].is_green for name in self.selection.run)

    def print_summary(self) -> None:
        """Print a table of the stages with results and reasons. Print also the tests that passed only when run
        again."""
        console = Console(width=140, highlight=False)
        table = Table("stage", "result", "passed", "failed", "skipped", "seconds", "why", title="The gate")
        for stage in STAGES:
            if result := self.results.get(stage.name):
                word = "passed" if result.is_green else "FAILED"
                counts = (str(result.passed), str(result.failed), str(result.skipped.total()))
                why = self.selection.run[stage.name]
                table.add_row(stage.name, word, *counts, f"{result.seconds:.0f}", why)
            else:
                table.add_row(stage.name, "not run", "", "", "", "", self.selection.left.get(stage.name, "broke off"))
        console.print(table)
        console.print(f"Builds (once per machine): {self.build_seconds:.0f} s")
        for name, result in self.results.items():
            for reason, count in sorted(result.skipped.items()):
                console.print(f"{name}: skipped {count}: {reason}", markup=False)
            for problem in result.problems:
                console.print(f"{name}: {problem}", markup=False)
        if again := {test: text for result in self.results.values() for test, text in result.again.items()}:
            table = Table("test", "its first failure", title="Passed only when run again")
            for test, text in again.items():
                table.add_row(test, text)
            console.print(table)


def recorded() -> tuple[Sequence[str] | None, set[str], str]:
    """Return the files that were changed since the recorded run, and the stages that passed in that run. The third
    value is the reason why the record is unusable; empty if it is usable."""
    try:
        record = json.loads(RECORD.read_text())
        commit, stages = record["commit"], record["stages"]
    except FileNotFoundError:
        return None, set(), f"no {RECORD.relative_to(ROOT)}"
    except (ValueError, KeyError) as error:
        return None, set(), f"{RECORD.relative_to(ROOT)} is not a record: {error!r}"
    difference = _git("diff", "--name-only", "--no-renames", commit)
    if difference.returncode:
        return None, set(), f"commit {commit} of {RECORD.relative_to(ROOT)} is unknown here"
    unrecorded = _git("ls-files", "--others", "--exclude-standard").stdout
    has_tests = {stage.name for stage in STAGES if stage.marker}
    passed = {name for name, one in stages.items() if one["is_green"] and (one["passed"] or name not in has_tests)}
    return (difference.stdout + unrecorded).splitlines(), passed, ""


def write_record(results: Mapping[str, Result], build_seconds: float) -> None:
    """Write ``.ci/complete-run.json``, unless the tree holds uncommitted changes."""
    if changes := _git("status", "--porcelain").stdout.strip():
        _say(f"{RECORD.relative_to(ROOT)} is not written: the tree differs from its commit\n{changes}")
        return
    record = {
        "commit": _git("rev-parse", "HEAD").stdout.strip(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "build_seconds": round(build_seconds, 1),
        "stages": {name: result.record() for name, result in results.items()},
    }
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
    _say(f"{RECORD.relative_to(ROOT)} is written: commit it")


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def _say(text: str) -> None:
    print(text, flush=True)


def main(mode: str) -> int:
    """Run the stages of ``mode``, ``all`` or ``ci``; return 1 if one failed."""
    if mode == "all":
        gate = Gate(Selection({stage.name: "make test-all runs each stage" for stage in STAGES}, {}))
    else:
        changed, passed, unknown_message = recorded()
        gate = Gate(select(changed, passed, Tree(), unknown_message))
    began = time.monotonic()
    gate.run()
    gate.print_summary()
    if mode == "all":
        write_record(gate.results, gate.build_seconds)
    _say(f"{'Green' if gate.is_green() else 'RED'} after {time.monotonic() - began:.0f} s")
    return 0 if gate.is_green() else 1


if __name__ == "__main__":
    if sys.argv[1:] not in (["all"], ["ci"]):
        sys.exit("usage: python -m tests.gate all|ci")
    sys.exit(main(sys.argv[1]))
