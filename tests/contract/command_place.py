"""A pool of the sample of LSF, with commands that behave as LSF's documentation says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from provisioner.backends.command.backend import CommandBackend
from provisioner.backends.command.settings import CommandPool
from provisioner.model import ErrorClass
from provisioner.testing.place import PREFIX, How, Place
from tests.support.schedulers.fake_scheduler import FakeScheduler

SAMPLES = Path(__file__).parents[2] / "config" / "places"
REFUSALS = {
    ErrorClass.QUOTA: "Pending job threshold reached. Retrying in 60 seconds...",
    ErrorClass.DENIED: "User permission denied. Job not submitted.",
    ErrorClass.INVALID: "No such queue. Job not submitted.",
}


LACKS = {
    ErrorClass.STOCKOUT: "Not enough hosts to meet the job's spanning requirement",
    ErrorClass.QUOTA: "User has reached the per-user job slot limit of the queue",
}


class LsfPlace(Place):
    """A pool of jobs. The list shows all users' jobs, so that those of others are seen."""

    pool = "lsf"
    patience = 60.0

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.scheduler = FakeScheduler(directory)
        body = yaml.safe_load((SAMPLES / "lsf.yaml").read_text())["pools"]["lsf"]
        commands = self.scheduler.commands
        body["create"]["argv"][0], body["delete"]["argv"][0] = f"{commands}/bsub", f"{commands}/bkill"
        body["list"]["argv"] = [f"{commands}/bjobs", "-a", "-u", "all", *body["list"]["argv"][6:]]
        reasons = {ErrorClass.STOCKOUT: "Not enough hosts", ErrorClass.QUOTA: "per-user job slot limit"}
        body["reasons"] = [{"error": error, "match": words} for error, words in reasons.items()]
        body["environment"] = self.scheduler.environment
        times = {"time_out_seconds": self.call, "lag_seconds": 0.0, "observe_seconds": 0.1, "calls_per_minute": 10_000}
        self.settings = CommandPool.model_validate({"name": self.pool, **body, **times})
        self.backend = self.another()

    def another(self) -> CommandBackend:
        return CommandBackend(self.settings, provisioner="demo", prefix=PREFIX)

    def other_pool(self) -> CommandBackend:
        settings = self.settings.model_copy(update={"name": "lsf-other"})
        return CommandBackend(settings, provisioner="demo", prefix=PREFIX)

    def other_provisioner(self) -> CommandBackend:
        return CommandBackend(self.settings, provisioner="other", prefix=PREFIX)

    def close(self) -> None:
        """Do nothing, because no process is left."""

    def present(self) -> list[str]:
        return [job["name"] for job in self.scheduler.jobs().values()]

    def creates(self) -> int:
        return len(self.scheduler.state().get("created", ()))

    def environment(self, name: str) -> Mapping[str, str]:
        return next(job["environment"] for job in self.scheduler.jobs().values() if job["name"] == name)

    def spawn_foreign(self, name: str) -> None:
        self.scheduler.add(name)

    def copy(self, name: str, as_name: str) -> None:
        self.scheduler.add(as_name, self._mark(name))

    def stray(self, name: str) -> None:
        self.scheduler.change(name, mark="changed")

    def remove(self, name: str) -> None:
        self.scheduler.change(name, ends_at=0.0)
        self.until_gone(name)

    def recreate(self, name: str) -> None:
        """Make the other job under the same number, as after a loss of the scheduler's files."""
        number = next(number for number, job in self.scheduler.jobs().items() if job["name"] == name)
        mark = self._mark(name)
        self.remove(name)
        self.scheduler.add(name, mark, number, delay=2.0)

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

    def restart(self, name: str) -> bool:
        self.scheduler.fail_host(name)
        return True

    def starve(self, reason: ErrorClass) -> bool:
        self.scheduler.set(waits=1e9, reason=LACKS[reason])
        return True

    def double(self, name: str) -> bool:
        self.scheduler.add(name, self._mark(name))
        return True

    def fail_creates(self, error: ErrorClass) -> None:
        self.scheduler.set(refusal=REFUSALS[error])

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
