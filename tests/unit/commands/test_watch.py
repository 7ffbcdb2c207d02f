"""`provisioner status --watch`: it redraws one picture on a terminal, or writes a block for each observation to a pipe.
Ctrl-C ends it."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from provisioner.commands import status
from provisioner.commands.status_picture import picture
from provisioner.model import Brake, BrakeReason, Budget
from provisioner.telemetry.status_model import status_model
from tests.support.desk import Desk, make_status_inputs
from tests.unit.core import NOW, STOCKOUT, limits, memory, pool, record, running, slot

HELD = memory(record(running(0), slot(1, failure=STOCKOUT), count=4))


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    made = Desk(tmp_path, capsys)
    made.state.intent.create("demo")
    made.leave(HELD)
    return made


def meanwhile(monkeypatch: pytest.MonkeyPatch, *events: Callable[[], object]) -> list[float]:
    """Replace the command's waits between two readings. Each wait runs the next of the events. When no event is left,
    the wait ends by Ctrl-C. Return the list of the waits in seconds."""
    waited: list[float] = []
    left = iter(events)

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        for event in itertools.islice(left, 1):
            event()
            return
        raise KeyboardInterrupt

    monkeypatch.setattr(status.time, "sleep", sleep)
    return waited


def test_on_a_pipe_there_is_a_block_for_each_reading_and_ctrl_c_is_no_mistake(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    intent = Path(desk.state.intent.path)
    aside = intent.with_suffix(".aside")
    waited = meanwhile(monkeypatch, lambda: intent.rename(aside), lambda: aside.rename(intent))
    code, text, error = desk.call("status", "--watch", "0.5")
    assert (code, error, waited) == (0, "", [0.5] * 3)
    assert [line.split()[0] for line in text.splitlines() if "INTENT LOST" in line or line.startswith("Prov")] == [
        "Provisioner", "Provisioner", "INTENT", "Provisioner"
    ]  # fmt: skip


def test_a_failed_reading_is_a_sentence_and_the_next_may_succeed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    pool_status = Path(desk.state.pool_status.path)
    before = pool_status.read_text()
    meanwhile(
        monkeypatch,
        lambda: pool_status.write_text('{"pools": {}, "paused": 3}'),
        lambda: pool_status.write_text(before),
    )
    lines = desk.call("status", "--watch", "1")[1].splitlines()
    heads = [line for line in lines if line.startswith("Provisioner") or "no loop of ours writes" in line]
    assert [line.startswith("Provisioner") for line in heads] == [True, False, True]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_it_is_live_until_ctrl_c(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("LINES", "40")
    meanwhile(monkeypatch, lambda: Path(desk.state.pool_status.path).write_text('{"pools": {}, "paused": 3}'))
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    assert desk.call("status", "--watch")[0] == 0
    text = screen.getvalue()
    assert "━" in text
    assert "1 of 4" in text
    assert "no loop of ours writes" in text


@pytest.mark.parametrize("wide", [False, True])
def test_a_picture_has_bars_alarms_and_no_markup(wide: bool) -> None:
    brake = Brake(BrakeReason.MEMORY_LOST, NOW, "memory.json was lost.")
    held = memory(record(running(0), count=4, template="[red]T\x1b"), brake=brake)
    allowed = limits(pool("a", price_per_hour=2.0), budget=Budget(per_hour=7.0, currency="EUR"))
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(picture(status_model(make_status_inputs(held, allowed, ended=True)), wide=wide))
    text = console.export_text()
    for words in ("LOOP NOT RUNNING", "BRAKE memory_lost", "1 of 4", "━", "[red]T?", "2.00 of 7.00 EUR per hour"):
        assert words in text
    assert ("T? in a" in text) is wide
