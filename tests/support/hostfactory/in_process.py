"""Run HF's five commands in the test's own process. The answers are the same as from the scripts, but no process is
started."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hf_scripts import commands
from provisioner.hostfactory import Answer, Loss
from tests.support.hostfactory.provider import SCRIPTS, Called, HostFactory
from tests.support.hostfactory.schemas import check_output, parsed


def call_here(name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Called:
    """Run a command in this process. Return its exit code, and the bytes that it writes to file descriptor 1.

    Other threads of this process may write to stderr at the same time, so the result's stderr is empty.
    """
    taken, stdout = os.memfd_create("stdout"), os.dup(1)
    os.dup2(taken, 1)
    try:
        code = commands.run(name, list(arguments), environment)
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
    with open(taken, "rb") as file:
        file.seek(0)
        return Called(code, file.read().decode(), "")


class InProcess(HostFactory):
    """A provider instance whose scripts run in this process, unless ``as_processes`` is set."""

    as_processes = False

    def run(self, command: list[str], *, environment: Mapping[str, str] | None = None, seconds: float = 60) -> Called:
        """Run a command line. If it begins with one of the clone's scripts, run the script in this process; otherwise
        start a process."""
        script = Path(command[0])
        if self.as_processes or script.parent != SCRIPTS or script.stem not in commands.COMMANDS:
            return super().run(command, environment=environment, seconds=seconds)
        return call_here(script.stem, command[1:], self.environment if environment is None else environment)


class Here(HostFactory):
    """A provider instance whose scripts run in this process, with the output captured by pytest.

    ``capture`` has to capture file descriptors, as capfd does.
    """

    def __init__(self, directory: Path, capture: pytest.CaptureFixture[str]) -> None:
        super().__init__(directory)
        self.capture = capture

    def ask(self, name: str, *arguments: str, **environment: str) -> tuple[int, str]:
        """Return exit code and stdout of a call."""
        self.capture.readouterr()
        code = commands.run(name, list(arguments), self.environment | environment)
        out, err = self.capture.readouterr()
        assert err == ""
        assert out.endswith("\n")
        return code, out[:-1]

    def answer(self, name: str, document: object, **environment: str) -> Any:
        """Return the document that a command prints, after a check against its schema."""
        code, out = self.ask(name, json.dumps(document), **environment)
        assert code == 0, out
        check_output(name, parsed(out))
        return parsed(out)

    def refusal(self, name: str, document: object) -> str:
        """Return the line that a command prints if it refuses the call."""
        code, out = self.ask(name, json.dumps(document))
        assert code == 1
        assert "\n" not in out
        return out

    def recorded(self) -> tuple[dict[str, tuple[str, int]], dict[str, tuple[str, ...]]]:
        """Return the requests (template and number) and the return requests (names) in intent, by id."""
        if not self.state.intent.exists():
            return {}, {}
        intent = self.state.intent.read()
        requests = {name: (entry.template, entry.count) for name, entry in intent.requests.items()}
        return requests, {name: entry.names for name, entry in intent.returns.items()}


def asking(*requests: str) -> dict[str, object]:
    return {"requests": [{"requestId": request} for request in requests]}


def entry(request: str, status: str = "running", message: str = "", machines: object = ()) -> str:
    return json.dumps({"requestId": request, "status": status, "message": message, "machines": list(machines)})  # type: ignore[call-overload]


def publish(
    hf: Here,
    answers: dict[str, Answer],
    lost: dict[str, int] | None = None,
    available: dict[str, int] | None = None,
) -> None:
    """Publish answers, lost machines and available numbers, as the loop does in a cycle."""
    if not hf.state.intent.exists():
        hf.state.intent.create(hf.instance)
    hf.state.status.write(answers, {name: Loss(grace) for name, grace in (lost or {}).items()}, available)
    hf.state.heartbeat.touch()


def heartbeat_before(hf: Here, seconds: float) -> None:
    """Set the time of the loop's last heartbeat to ``seconds`` ago."""
    hf.state.heartbeat.touch()
    then = time.time() - seconds
    os.utime(hf.state.heartbeat.path, (then, then))
