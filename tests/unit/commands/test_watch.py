"""`provisioner status`: its table, its forms, its filters, and that it can be watched."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from provisioner.commands.cli import run
from provisioner.commands.watch import picture
from provisioner.model import Failure, Memory, Verdict
from provisioner.state.directory import StateDir
from provisioner.telemetry.facts import read_facts
from provisioner.telemetry.notes import Notes, terms_of
from provisioner.telemetry.overview import overview
from tests.support.waiting import until
from tests.unit.core import NOW, REQUEST, STOCKOUT, limits, memory, pool, record, running, slot

HOSTILE = Failure(STOCKOUT.error, "no room\x1b[2J\nin zone " + "x" * 100)
Shown = Callable[..., tuple[int, str, str]]


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    """What a loop leaves that has just planned: three of nine machines run, one try failed."""
    made = StateDir(tmp_path)
    with made.intent.additions(create_for="demoinst") as intent:
        intent.add_request("T", 1, created_wall=0.0)
    failed = slot(4, Verdict.FAILED, failure=HOSTILE, gone=True, closed=NOW - 240)
    leave(made, memory(record(*map(running, range(3)), slot(3), failed, count=9)))
    made.heartbeat.touch()
    return made


def leave(state: StateDir, held: Memory) -> None:
    allowed = limits(pool("a", max_machines=500), pool("b"))
    state.memory.write(replace(held, provisioner="demoinst", time=NOW, time_wall=time.time()))
    notes = Notes(terms=terms_of(allowed), pool_limits=allowed.pools, template_limits=allowed.templates)
    state.notes.write(asdict(notes))


@pytest.fixture
def shown(state: StateDir, capsys: pytest.CaptureFixture[str]) -> Shown:
    def call(*options: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(["status", "--state-dir", state.path, *options])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def table(text: str, title: str) -> dict[str, list[str]]:
    """The rows under a title, by name."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.split()[:1] == [title] and "wanted" in line)
    rows = [line.split(maxsplit=8) for line in lines[start + 1 :]]
    return {cells[0]: cells[1:] for cells in rows[:2] if len(cells) == 9}


def test_one_screen_says_what_is_wanted_runs_and_fails(shown: Shown) -> None:
    code, text, _ = shown()
    assert code == 0
    assert table(text, "template")["T"][:7] == ["9", "3", "1", "1", "0", "200", "-"]
    assert table(text, "pool")["a"][:7] == ["9", "3", "1", "1", "0", "100", "500"]
    assert table(text, "pool")["b"] == ["0", "0", "0", "0", "0", "100", "-", "-"]
    assert table(text, "pool")["a"][7].startswith("stockout 4 min ago: no room")
    assert table(text, "pool")["a"][7].endswith("…")


def test_wide_shows_each_template_in_each_pool_and_errors_in_full(shown: Shown) -> None:
    _, text, _ = shown("-o", "wide")
    assert "template in pool" in text
    rows = [line for line in text.splitlines() if line.startswith("  T in a ")]
    assert len(rows) == 1
    assert rows[0].endswith("x" * 100)
    assert "T in a " not in shown()[1]


def test_what_a_cloud_says_does_not_steer_the_terminal(shown: Shown) -> None:
    for form in ("text", "wide"):
        text = shown("-o", form)[1]
        assert "\x1b" not in text
        assert r"\x1b[2J" in text


def test_yaml_says_what_json_says(shown: Shown) -> None:
    as_json, as_yaml = (shown("--pool", "a", "-o", form)[1] for form in ("json", "yaml"))
    one, other = json.loads(as_json), yaml.safe_load(as_yaml)
    assert set(one) == set(other)
    for name in ("requests", "pools", "files"):
        assert json.dumps(one[name])[:40] == json.dumps(other[name])[:40]


def test_a_filter_shows_a_part(shown: Shown) -> None:
    _, text, _ = shown("--pool", "b")
    assert ("request" in text, table(text, "pool").keys()) == (False, {"b"})
    _, text, _ = shown("--request", REQUEST, "--template", "T")
    assert f"request {REQUEST}" in text


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--pool", "--pool x: the state files know no such pool; there are a, b\n"),
        ("--template", "--template x: the state files know no such template; there are T\n"),
        ("--request", f"--request x: the state files know no such request; there are {REQUEST}, "),
    ],
)
def test_a_name_that_nothing_has_is_a_mistake_and_says_which_there_are(shown: Shown, option: str, says: str) -> None:
    code, text, error = shown(option, "x")
    assert (code, text) == (2, "")
    assert error.startswith(says)


@pytest.mark.parametrize("seconds", ["0", "-1", "x", "nan"])
def test_watching_takes_seconds(state: StateDir, seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["status", "--state-dir", state.path, f"--watch={seconds}"])
    assert ended.value.code == 2
    assert "expected seconds above 0 such as 5" in capsys.readouterr().err


def test_a_live_picture_has_bars_alarms_and_no_markup(state: StateDir) -> None:
    Path(state.heartbeat.path).unlink()
    leave(state, memory(record(running(0), count=4, template="[red]T")))
    console = Console(width=160, record=True, file=open(os.devnull, "w"))  # noqa: SIM115 - ends with the test
    console.print(picture(overview(read_facts(state)), wide=True))
    text = console.export_text()
    assert "LOOP NOT RUNNING" in text
    assert "1 of 4" in text
    assert "━" in text
    assert "[red]T" in text


def watching(state: StateDir, *options: str, out: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "provisioner", "status", "--state-dir", state.path, "--watch", "0.05", *options]
    return subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE)


def test_on_a_pipe_there_is_a_block_for_each_look_and_ctrl_c_is_no_mistake(state: StateDir) -> None:
    with watching(state, out=subprocess.PIPE) as process:
        assert process.stdout is not None
        heads = 0
        while heads < 3:
            heads += process.stdout.readline().startswith(b"Provisioner")
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert (process.wait(10), process.stderr.read()) == (0, b"")


def test_on_a_terminal_it_is_live_until_ctrl_c(state: StateDir) -> None:
    ours, its = pty.openpty()
    with watching(state, out=its) as process:
        os.close(its)
        seen = b""

        def shows(word: bytes) -> bool:
            nonlocal seen
            seen += os.read(ours, 65536)
            return word in seen

        until(lambda: shows(b"3 of 9"), 20, what="the screen")
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert (process.wait(10), process.stderr.read()) == (0, b"")
    os.close(ours)
    assert "━".encode() in seen
