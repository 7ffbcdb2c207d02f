"""The latch that a signal handler may set: a wait ends after its time, or at once if the latch is set."""

from __future__ import annotations

import pytest

from provisioner.process_end import Latch


def test_a_wait_ends_when_its_time_is_over() -> None:
    assert not Latch().wait(0.01)


@pytest.mark.parametrize("seconds", [0.0, 60.0, None])
def test_every_wait_after_the_latch_was_set_ends_at_once(seconds: float | None) -> None:
    latch = Latch()
    latch.set()
    assert [latch.wait(seconds) for _ in range(3)] == [True] * 3
