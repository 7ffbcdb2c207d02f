"""Losses are sent one after the other, and no more once the server refuses them."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from provisioner.backends import Ended
from provisioner.backends.gke.api import refusal
from provisioner.backends.gke.loss_events import LossEvents
from provisioner.model import LossCause
from tests.support.waiting import until


def test_what_was_recorded_during_a_sending_that_is_refused_is_not_sent() -> None:
    sent: list[Any] = []
    refused = threading.Event()

    def send(*arguments: Any, **_: Any) -> None:
        sent.append(arguments)
        refused.wait(30)
        raise refusal(403, b"", None)

    losses = LossEvents(SimpleNamespace(send=send), "grid", "demo")  # type: ignore[arg-type]
    end = Ended("hf-aaaaaaaaaa-000001", "aaaaaaaaaa", "T", uid="u", lost=True, cause=LossCause.NODE, failure=None)
    losses.record("gke", [end])
    until(lambda: sent, 30, what="the first is sent")
    losses.record("gke", [end])
    refused.set()
    losses.close()
    assert len(sent) == 1
