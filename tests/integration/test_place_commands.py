"""The programs of the kind ``command``, run for real. An output is used only if all of it is as declared, and no
program lives longer than its call."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from provisioner.backends import BackendError, Severity
from provisioner.backends.command import commands
from provisioner.backends.command.backend import CommandBackend
from provisioner.backends.command.settings import CommandPool
from provisioner.model import Create, ErrorClass, Failure, Phase
from provisioner.testing.waiting import until

NAME = "hf-abcdefghij-000001"
JOB = {"id": "7", "name": NAME, "state": "RUN"}


def place(directory: Path, script: str, **changes: Any) -> CommandBackend:
    """Return the backend of a pool whose list command is a script. The pool's create command writes its arguments and
    its environment into the file ``created``."""
    for name, body in {"list": script, "create": 'echo "$@" >created; env >>created; echo 7'}.items():
        (directory / name).write_text(f"#!/bin/sh\ncd {directory}\n{body}\n")
        (directory / name).chmod(0o755)
    listing = {"argv": [f"{directory}/list"], "format": "json", "fields": {name: name for name in JOB}}
    body = {
        "name": "p",
        "create": {"argv": [f"{directory}/create", "{name}"], "id": r"(?P<id>\d+)"},
        "list": {**listing, "host": "127.0.0.1", **changes.pop("list", {})},
        "delete": {"argv": ["/bin/true", "{id}"]},
        "states": {"pending": ["PEND"], "running": ["RUN"], "suspended": ["SUSP"], "gone": ["EXIT"]},
        "errors": [{"error": "unavailable", "match": "is down"}],
        "lag_seconds": 0.0,
        **changes,
    }
    return CommandBackend(CommandPool.model_validate(body), provisioner="demo", prefix="hf")


def failure(backend: CommandBackend) -> Failure:
    """Return the failure of an observation."""
    with pytest.raises(BackendError) as caught:
        backend.observe(0.0, {})
    return caught.value.failure


def prints(*jobs: dict[str, str]) -> str:
    """Return a script that prints jobs."""
    return f"echo '{json.dumps(jobs)}'"


def is_gone(pid: int) -> bool:
    """Return whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_program_whose_child_keeps_its_output_open_is_ended_with_the_child(tmp_path: Path) -> None:
    backend = place(tmp_path, f"sleep 3600 & echo $! >child\n{prints(JOB)}", time_out_seconds=0.5)
    assert failure(backend).error is ErrorClass.TIMEOUT
    until(lambda: is_gone(int((tmp_path / "child").read_text())), 20.0, what="the child has ended")


def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    script = "trap '' TERM; echo $$ >self; while :; do sleep 0.1; done"
    with patch.object(commands, "GRACE_SECONDS", 0.1):
        assert failure(place(tmp_path, script, time_out_seconds=0.5)).error is ErrorClass.TIMEOUT
    assert is_gone(int((tmp_path / "self").read_text()))


def test_a_program_that_prints_without_end_is_ended(tmp_path: Path) -> None:
    assert commands.MOST_OUTPUT == 64 << 20
    with patch.object(commands, "MOST_OUTPUT", 1 << 20):
        found = failure(place(tmp_path, "exec yes"))
    assert (found.error, "printed more than 1024 KiB" in found.text) == (ErrorClass.OTHER, True)


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        (f"echo the server is down >&2; {prints(JOB)}", ErrorClass.UNAVAILABLE, "the server is down"),
        ("", ErrorClass.UNAVAILABLE, "printed nothing, and list.empty does not declare"),
        ("echo; exit 3", ErrorClass.OTHER, "ended with 3: it printed nothing"),
        ("kill -9 $$", ErrorClass.OTHER, "ended with -9"),
        (prints(JOB | {"state": "DOUBTFUL"}), ErrorClass.OTHER, f"the state 'DOUBTFUL' of {NAME} is not in states"),
        (prints(JOB | {"id": ""}), ErrorClass.OTHER, "a record has no id"),
        (prints(JOB).replace("}", ""), ErrorClass.OTHER, "is not as declared"),
        ("echo '{}'", ErrorClass.OTHER, "not a list of records"),
        ("exec ./missing", ErrorClass.OTHER, "ended with 127"),
    ],
)
def test_an_observation_fails_unless_all_is_as_declared(
    tmp_path: Path, script: str, error: ErrorClass, words: str
) -> None:
    found = failure(place(tmp_path, script))
    assert (found.error, words in found.text) == (error, True), found.text


def test_words_on_stderr_that_are_no_error_are_no_failure(tmp_path: Path) -> None:
    seen = place(tmp_path, f"echo a new version is there >&2; {prints(JOB)}").observe(0.0, {})
    assert [*seen.machines] == [NAME]


def test_only_the_declared_words_make_an_empty_place(tmp_path: Path) -> None:
    empty = {"empty": {"exit": [0, 255], "match": "No job found"}}
    assert not place(tmp_path, "echo No job found >&2; exit 255", list=empty).observe(0.0, {}).machines
    assert "printed nothing" in failure(place(tmp_path, "", list=empty)).text


def test_a_suspended_job_runs_and_is_a_problem(tmp_path: Path) -> None:
    seen = place(tmp_path, prints(JOB | {"state": "SUSP"})).observe(0.0, {})
    assert (seen.machines[NAME].phase, seen.machines[NAME].state) == (Phase.RUNNING, "suspended")
    assert "1 machines are suspended" in seen.problems[0]
    assert not place(tmp_path, prints(JOB)).observe(0.0, {}).problems


def test_credentials_are_read_anew_and_are_no_argument(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    backend = place(tmp_path, prints(JOB), credentials=secret)
    for word in ("first", "second"):
        secret.write_text(f"{word}-key\n")
        (outcome,) = backend.create([Create(f"hf-{word[:5]:a<10}-000001", "p", "t", "r")], lambda: True)
        assert outcome.failure is None
        arguments, *environment = (tmp_path / "created").read_text().splitlines()
        assert "key" not in arguments
        assert f"PLACE_TOKEN={word}-key" in environment
    secret.unlink()
    assert failure(backend).error is ErrorClass.DENIED


def test_a_program_gets_no_variable_of_ours_except_the_harmless(tmp_path: Path) -> None:
    with patch.dict(os.environ, {"SECRET_OF_OURS": "1"}):
        place(tmp_path, prints(), environment={"ITS": "2"}).create([Create(NAME, "p", "t", "r")], lambda: True)
    names = {line.partition("=")[0] for line in (tmp_path / "created").read_text().splitlines()[1:]}
    assert (
        {"ITS", "HF_MACHINE_NAME", "LANG"}
        <= names
        <= {"ITS", "HF_MACHINE_NAME", "LANG", "PATH", "HOME", "PWD", "OLDPWD", "_"}
    )


def test_more_programs_a_minute_than_allowed_are_refused_by_us(tmp_path: Path) -> None:
    backend = place(tmp_path, prints(JOB), calls_per_minute=2)
    for _ in range(2):
        backend.observe(0.0, {})
    found = failure(backend)
    assert (found.error, "limit of 2 calls a minute" in found.text) == (ErrorClass.THROTTLED, True)


def test_the_check_notes_how_the_first_job_was_read(tmp_path: Path) -> None:
    (found,) = place(tmp_path, prints(JOB)).check(10.0)
    assert (found.severity, found.severity.is_fault) == (Severity.NOTE, False)
    assert f"name '{NAME}', id '7', state 'RUN', kind 'running'" in found.text
    assert place(tmp_path, prints()).check(10.0) == []
