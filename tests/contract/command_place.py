"""Pools whose settings are our samples for LSF and Lancium. Stand-ins of these schedulers' commands behave as the
documentation and the users say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from provisioner.backends.command.backend import CommandBackend
from provisioner.backends.command.settings import CommandPool
from provisioner.model import ErrorClass, Outcome, Phase
from provisioner.names import name_pattern
from provisioner.testing.place import PREFIX, How, Place
from tests.support.schedulers.fake_scheduler import FakeScheduler

LACKS = {
    ErrorClass.STOCKOUT: "Not enough hosts to meet the job's spanning requirement",
    ErrorClass.QUOTA: "User has reached the per-user job slot limit of the queue",
}
SAMPLES = Path(__file__).parents[2] / "config" / "places"


def sample(file: str) -> dict[str, Any]:
    """Return the settings of the pool in a sample."""
    (body,) = yaml.safe_load((SAMPLES / file).read_text())["pools"].values()
    assert isinstance(body, dict)
    return body


class CommandPlace(Place):
    """A pool with the settings of a sample."""

    patience = 60.0
    file: str
    """The file name of the sample."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__()
        self.pool = self.file.removesuffix(".yaml")
        times = {"time_out_seconds": self.call, "lag_seconds": 0.0, "observe_seconds": 0.1, "calls_per_minute": 10_000}
        self.settings = CommandPool.model_validate({"name": self.pool, **body, **times})
        fields = {*self.settings.list.fields, *re.compile(self.settings.list.match or "").groupindex}
        self.shows_since, self.shows_start = "created" in fields, bool({"created", "started"} & fields)
        self.backend = self.another()

    def another(self) -> CommandBackend:
        return CommandBackend(self.settings, provisioner="demo", prefix=PREFIX)

    def other_pool(self) -> CommandBackend | None:
        settings = self.settings.model_copy(update={"name": f"{self.pool}-other"})
        return CommandBackend(settings, provisioner="demo", prefix=PREFIX) if settings.has_marks else None

    def other_provisioner(self) -> CommandBackend | None:
        backend = CommandBackend(self.settings, provisioner="other", prefix=PREFIX)
        return backend if self.settings.has_marks else None

    def needs_marks(self, name: str = "") -> None:
        """Skip a test if only marks could distinguish our jobs from other jobs, but the scheduler's list shows no
        marks. ``name``: the name of the other job. A name of another form than ours needs no mark."""
        if not self.settings.has_marks and (not name or name_pattern(PREFIX).fullmatch(name)):
            pytest.skip("the place shows no marks")


class FakePlace(CommandPlace):
    """A pool of a fake scheduler, whose commands work on a file."""

    refusals: Mapping[ErrorClass, str]
    """The place's words for refusals."""

    def __init__(self, directory: Path, body: dict[str, Any]) -> None:
        self.scheduler = FakeScheduler(directory)
        for argv in (body["create"]["argv"], body["list"]["argv"], body["delete"]["argv"]):
            argv[0] = f"{self.scheduler.commands}/{Path(argv[0]).name}"
        body["environment"] = self.scheduler.environment
        super().__init__(body)

    def close(self) -> None:
        """Do nothing, because no process is left."""

    def present(self) -> list[str]:
        return [job["name"] for job in self.scheduler.jobs().values()]

    def creates(self) -> int:
        return len(self.scheduler.state().get("created", ()))

    def environment(self, name: str) -> Mapping[str, str]:
        return next(job["environment"] for job in self.scheduler.jobs().values() if job["name"] == name)

    def spawn_foreign(self, name: str) -> None:
        self.needs_marks(name)
        self.scheduler.add(name)

    def copy(self, name: str, as_name: str) -> None:
        self.needs_marks()
        self.scheduler.add(as_name, self._mark(name))

    def stray(self, name: str) -> None:
        self.needs_marks()
        self.scheduler.change(name, mark="changed")

    def remove(self, name: str) -> None:
        self.scheduler.change(name, ends_at=0.0)
        self.until_gone(name)

    def recreate(self, name: str) -> None:
        mark = self._mark(name)
        self.remove(name)
        self.scheduler.add(name, mark)

    def hold(self) -> bool:
        self.scheduler.set(waits=1e9)
        return True

    def release(self) -> None:
        self.scheduler.set(waits=0.0)
        for job in self.scheduler.jobs().values():
            self.scheduler.change(job["name"], runs_at=0.0)

    def end(self, name: str, how: How) -> bool:
        words = {How.EXIT: "exit code 1", How.KILL: "killed", How.TIME_LIMIT: "TERM_RUNLIMIT", How.HOST: "lost host"}
        if how in words:
            self.scheduler.change(name, ends_at=0.0, why=words[how])
        return how in words

    def double(self, name: str) -> bool:
        self.scheduler.add(name, self._mark(name))
        return True

    def fail_creates(self, error: ErrorClass) -> None:
        self.scheduler.set(refusal=self.refusals[error])

    def lose_responses(self) -> None:
        self.scheduler.set(fault="no_answer")

    def hang(self) -> None:
        self.scheduler.set(fault="hang")

    def black_out(self) -> None:
        self.scheduler.set(fault="refuse")

    def heal(self) -> None:
        self.scheduler.set(fault="", refusal="")

    def _mark(self, name: str) -> str:
        return next(str(job["mark"]) for job in self.scheduler.jobs().values() if job["name"] == name)


class LsfPlace(FakePlace):
    """A pool of LSF. Its list shows the jobs of all users, so that tests can see the jobs of other users."""

    file = "lsf.yaml"
    refusals: ClassVar = {
        ErrorClass.QUOTA: "Pending job threshold reached. Retrying in 60 seconds...",
        ErrorClass.DENIED: "User permission denied. Job not submitted.",
        ErrorClass.INVALID: "No such queue. Job not submitted.",
    }

    def __init__(self, directory: Path) -> None:
        body = sample(self.file)
        body["list"]["argv"][2:6] = ["-u", "all"]
        reasons = {ErrorClass.STOCKOUT: "Not enough hosts", ErrorClass.QUOTA: "per-user job slot limit"}
        body["reasons"] = [{"error": error, "match": words} for error, words in reasons.items()]
        super().__init__(directory, body)

    def recreate(self, name: str) -> None:
        """Replace the job by another job with the same number, as if the scheduler had lost its files."""
        number = next(number for number, job in self.scheduler.jobs().items() if job["name"] == name)
        mark = self._mark(name)
        self.remove(name)
        self.scheduler.add(name, mark, number, delay=2.0)

    def restart(self, name: str) -> bool:
        self.scheduler.fail_host(name)
        return True

    def starve(self, reason: ErrorClass) -> bool:
        self.scheduler.set(waits=1e9, reason=LACKS[reason])
        return True


class LanciumPlace(FakePlace):
    """A pool of Lancium, whose records stay until they are deleted."""

    file = "lancium.yaml"
    refusals: ClassVar = {
        ErrorClass.QUOTA: "the job limit of the account is reached",
        ErrorClass.DENIED: "401 Unauthorized",
        ErrorClass.INVALID: "422 Unprocessable: image is invalid",
    }

    def __init__(self, directory: Path) -> None:
        key = directory / "key"
        key.write_text("secret")
        super().__init__(directory, sample(self.file) | {"credentials": key})

    def until_gone(self, name: str) -> None:
        """If the machine has ended, delete its record, as the plan does. Then wait until the machine is gone."""
        if (machine := self.observe().machines.get(name)) and machine.phase is Phase.GONE:
            assert self.delete(name, machine.fingerprint.uid).failure is None
        super().until_gone(name)

    def delete(self, name: str, uid: str = "", *, force: bool = False, adopted: bool = False) -> Outcome:
        """Delete a machine. Delete an adopted machine twice, because the loop also repeats deletes. The first delete
        ends the machine, and the second one removes its record. ``adopted``: the machine has another provisioner's
        identity."""
        outcome = super().delete(name, uid, force=force, adopted=adopted)
        return super().delete(name, uid, force=force, adopted=adopted) if adopted else outcome
