"""The start of a loop whose lock is a Lease: which loop gets the lock, with which epoch, and when the previous loop
ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from provisioner.lab.virtual.state import VirtualState
from provisioner.loop.cycle_report import SupersededError
from provisioner.loop.standby import check_turn, take_turn
from provisioner.model import Memory
from provisioner.process_end import Latch
from provisioner.state.errors import StateError
from provisioner.state.kube.lease import RENEW_SECONDS, KubeTurn
from provisioner.state.kube.waits import Waits
from tests.support.kube_state_server import MemoryApiServer, ObjectServer

LONGEST_CYCLE = 47.0


class Site:
    """Loops on one Lease, in virtual time."""

    def __init__(self) -> None:
        self.time, self.server, self.during = 0.0, ObjectServer(), list[Callable[[], object]]()

    def state(self, api: MemoryApiServer | None = None) -> VirtualState:
        state = VirtualState(0)
        waits = Waits(lambda: self.time, lambda _, seconds: self._pass(seconds))
        turn = KubeTurn(api or MemoryApiServer(self.server), "demo", waits, start=lambda thread: None)
        state.loop_lock = turn  # type: ignore[assignment]
        return state

    def _pass(self, seconds: float) -> None:
        self.time += seconds
        if self.during:
            self.during.pop(0)()


def turn_of(state: VirtualState, stop: Latch | None = None) -> int | None:
    return take_turn(state, stop or Latch(), LONGEST_CYCLE, lambda: None)


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_loop_follows_the_one_before_at_once_and_ends_it(site: Site) -> None:
    """After the Lease has expired, the next loop does not wait for calls of the previous loop, because late calls are
    harmless."""
    first, second = site.state(), site.state()
    assert turn_of(first) == 1
    second.memory.write(Memory("demo", epoch=6))
    assert turn_of(second) == 7, "above the epoch in memory"
    assert site.time <= 20.0
    check_turn(second, 7)
    with pytest.raises(SupersededError, match="lost its lock"):
        check_turn(first, 1)


def test_a_loop_that_is_stopped_in_standby_takes_no_turn(site: Site) -> None:
    stop = Latch()
    assert turn_of(site.state()) == 1
    site.during = [stop.set]
    assert turn_of(site.state(), stop) is None


def test_a_loop_that_cannot_renew_does_not_act_and_does_not_end(site: Site) -> None:
    api = MemoryApiServer(site.server)
    state = site.state(api)
    epoch = turn_of(state)
    assert epoch == 1
    api.set_unreachable()
    with pytest.raises(StateError, match="no answer"):
        check_turn(state, epoch)
    api.set_unreachable(False)
    site.time += RENEW_SECONDS + 1
    with pytest.raises(StateError, match="does not act until it can renew"):
        check_turn(state, epoch)
