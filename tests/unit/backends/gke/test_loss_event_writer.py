"""Kubernetes Events about losses. The writer sends the Events one after the other. After the server has refused an
Event, the writer sends no further Event."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.backends import Ended
from provisioner.backends.gke.api import refusal
from provisioner.backends.gke.loss_event_writer import MOST, LossEvents
from provisioner.model import LossCause
from tests.support.waiting import until

END = Ended("hf-aaaaaaaaaa-000001", "aaaaaaaaaa", "T", uid="u", lost=True, cause=LossCause.NODE, failure=None)


def losses_of(send: Callable[..., None]) -> LossEvents:
    return LossEvents(SimpleNamespace(send=send), "grid", "demo")  # type: ignore[arg-type]


def test_what_was_recorded_during_a_sending_that_is_refused_is_not_sent() -> None:
    sent: list[Any] = []
    refused = threading.Event()

    def send(*arguments: Any, **_: Any) -> None:
        sent.append(arguments)
        refused.wait(30)
        raise refusal(403, b"", None)

    losses = losses_of(send)
    losses.record("gke", [END])
    until(lambda: sent, 30, what="the first is sent")
    losses.record("gke", [END])
    refused.set()
    losses.close()
    assert len(sent) == 1


def test_an_unexpected_error_is_in_the_log_and_the_next_losses_are_sent(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Any] = []

    def send(*arguments: Any, **_: Any) -> None:
        sent.append(arguments)
        raise RuntimeError("of another kind")

    losses = losses_of(send)
    for number in (1, 2):
        losses.record("gke", [END])
        until(lambda number=number: caplog.text.count("of another kind") >= number, 30, what="the error is logged")
    losses.close()
    assert len(sent) == 2


def test_a_silent_server_holds_up_neither_the_end_of_the_process_nor_the_memory() -> None:
    sent: list[Any] = []
    silent = threading.Event()

    def send(*_: Any, body: bytes) -> None:
        sent.append(json.loads(body)["message"])
        silent.wait(30)

    losses = losses_of(send)
    losses.record("gke", [END])
    until(lambda: sent, 30, what="the first is sent")
    assert {thread.daemon for thread in threading.enumerate() if thread.name.startswith("losses ")} == {True}
    before = sys.getrefcount(END)
    for _ in range(100):
        losses.record("gke", [END] * 10)
    assert sys.getrefcount(END) - before <= MOST + 1
    silent.set()
    until(lambda: len(sent) == 1 + MOST + 1, 30, what="those that waited are sent")
    losses.close()
    assert sent[-1].startswith(f"{1000 - MOST} more machines of pool gke ended: {1000 - MOST} NodeLost.")
