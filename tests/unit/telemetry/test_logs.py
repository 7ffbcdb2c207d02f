"""The severity and the cycle number of log lines, in every thread."""

from __future__ import annotations

import contextvars
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import pytest

from provisioner.backends.call_batch import Call, run_calls
from provisioner.loop.batch_threads import Batch, ThreadedActors
from provisioner.loop.clock import CYCLE
from provisioner.model import Create, Failure, Outcome
from provisioner.telemetry.logs import JsonFormatter, TextFormatter
from tests.support.waiting import until

log = logging.getLogger(__name__)


class Lines(logging.Handler):
    """A handler that keeps each line as it would be written."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.json: list[dict[str, object]] = []
        self.text: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.json.append(json.loads(self.format(record)))
        self.text.append(TextFormatter().format(record))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    kept = Lines()
    monkeypatch.setattr(log, "handlers", [kept])
    return kept


class Telling:
    """A backend that logs each create in a thread of its own."""

    def create(self, creates: Sequence[Create], may_start: Callable[[], bool]) -> list[Outcome]:
        def send(create: Create) -> Mapping[str, Failure]:
            log.warning("Refused", extra={"machine": create.name})
            return {}

        return run_calls([Call((one,), partial(send, one)) for one in creates], workers=3, may_start=may_start)


def in_cycle(number: int, act: Callable[[], None]) -> None:
    context = contextvars.copy_context()
    context.run(CYCLE.set, number)
    context.run(act)


def test_a_line_has_its_severity_and_its_cycle(lines: Lines) -> None:
    in_cycle(7, lambda: log.error("It failed", extra={"pool": "a"}))
    in_cycle(0, lambda: log.warning("It waits"))
    first, second = lines.json
    assert first.items() >= {"severity": "ERROR", "message": "It failed", "cycle": 7, "pool": "a"}.items()
    assert "cycle" not in second
    assert [line.split(" ", 1)[1] for line in lines.text] == [
        "ERROR   It failed  cycle=7 pool=a",
        "WARNING It waits",
    ]


def test_threads_that_carry_out_a_cycle_write_its_number(lines: Lines) -> None:
    actors = ThreadedActors({"a": cast("Any", Telling())}, lambda: None)
    creates = tuple(Create(f"hf-{number}", "a", "T", "r") for number in range(3))
    for cycle in (3, 4):
        in_cycle(cycle, partial(actors.submit, Batch("a", (), creates), lambda: True))
        until(actors.collect, 30.0, what="the batch ends")
    assert [line["cycle"] for line in lines.json] == [3] * 3 + [4] * 3
