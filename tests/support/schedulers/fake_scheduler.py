"""A scheduler in a file, used by the commands of ``fake_cli``."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.schedulers import fake_cli


class FakeScheduler:
    """A scheduler with commands in ``directory``. Seconds of a job: ``waits`` in the queue, ``lives`` while it runs,
    and ``keeps`` in the list after its end."""

    def __init__(self, directory: Path, *, waits: float = 0.05, lives: float = 1e9, keeps: float = 60.0) -> None:
        self.file = directory / "jobs.json"
        first = {"jobs": {}, "next": 101, "calls": 0, "waits": waits, "lives": lives, "keeps": keeps}
        self.file.write_text(json.dumps(first))
        self.commands = directory / "bin"
        self.commands.mkdir()
        code = Path(fake_cli.__file__).read_text()
        for name in fake_cli.NAMES:
            program = self.commands / name
            program.write_text(f"#!{os.path.realpath(sys.executable)} -SEs\n{code}")
            program.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that the commands need."""
        return {"FAKE_JOBS": str(self.file)}

    @contextmanager
    def changed(self) -> Iterator[dict[str, Any]]:
        """Yield the state of the scheduler for changes, and write the state after the block."""
        with self.file.open("r+") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)
            state = json.load(opened)
            yield state
            opened.seek(0)
            json.dump(state, opened)
            opened.truncate()

    def state(self) -> dict[str, Any]:
        """Return the state of the scheduler."""
        with self.changed() as state:
            return state

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Return the jobs that have not ended, by id."""
        return {number: job for number, job in self.state()["jobs"].items() if job["state"] != "ended"}

    def add(self, name: str, mark: str = "", number: str = "", *, delay: float = 0.0) -> None:
        """Make a job as another user, ``delay`` seconds from now. ``number``: its id; default: the next number."""
        with self.changed() as state:
            times = {"made_at": time.time() + delay, "runs_at": 0.0, "ends_at": 1e12}
            state["jobs"][number or str(state["next"])] = {"name": name, "mark": mark, "state": "waiting", **times}
            state["next"] += 1

    def fail_host(self, name: str) -> None:
        """Let the host of a job fail. If the job was submitted with a restart, it runs again under its number;
        otherwise it ends."""
        job = next(job for job in self.jobs().values() if job["name"] == name)
        self.change(name, **({"state": "waiting"} if job.get("reruns") else {"ends_at": 0.0, "why": "lost host"}))

    def change(self, name: str, **fields: object) -> None:
        """Set fields of the jobs of this name that have not ended."""
        with self.changed() as state:
            for job in state["jobs"].values():
                if job["name"] == name and job["state"] != "ended":
                    job.update(fields)

    def set(self, **fields: object) -> None:
        """Set values of the scheduler: ``fault``, ``refusal``, ``reason``, ``chance``."""
        with self.changed() as state:
            state.update(fields)
