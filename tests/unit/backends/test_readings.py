"""Pauses between background readings."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from provisioner.backends import concurrency
from provisioner.backends.concurrency import Readings


@pytest.mark.parametrize(("seconds", "due_after"), [(0.0, 15.0), (7.0, 15.0), (120.0, 120.0), (float("inf"), None)])
def test_a_reading_that_is_put_off_begins_no_sooner(
    seconds: float, due_after: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, read, made = 100.0, [], Readings("something")
    monkeypatch.setattr(concurrency, "time", SimpleNamespace(monotonic=lambda: now))

    def begun() -> bool:
        before = len(read)
        made.begin(15.0, lambda: lambda: read.append(now))
        made.close()
        return len(read) > before

    assert begun()
    made.put_off(seconds)
    now = 100.0 + (due_after or 1e9) - 0.1
    assert not begun()
    now += 0.2
    assert begun() is (due_after is not None)
