"""The Lease of the loop, in virtual time: who has it, since when, and what others see of it."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from provisioner.state import locks
from provisioner.state.errors import (
    StateDenied,
    StateError,
    StateMissing,
    StateStale,
    StateUnreachable,
    StateUnwritable,
)
from provisioner.state.kube.lease import (
    CYCLE,
    HOLDER,
    LAPSED_SECONDS,
    LEASE_SECONDS,
    RENEW_SECONDS,
    RETRY_SECONDS,
    KubeTurn,
)
from provisioner.state.kube.objects import GROUP
from provisioner.state.kube.waits import Waits
from tests.support.kube_state_server import Call, MemoryApiServer, ObjectServer

EPOCH = 1_800_000_000.0
PATH = "/apis/coordination.k8s.io/v1/namespaces/hf/leases/demo.loop"


class World:
    """A server and its clients, in virtual time. Each client that is alive renews its Lease while time passes."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.server = ObjectServer(clock=lambda: EPOCH + self.time)
        self.alive: list[KubeTurn] = []
        self.during = list[tuple[float, Callable[[], object]]]()
        """Actions with their times."""

    def client(self) -> MemoryApiServer:
        return MemoryApiServer(self.server)

    def turn(self, api: MemoryApiServer | None = None) -> KubeTurn:
        waits = Waits(lambda: self.time, lambda _, seconds: self.pass_time(seconds))
        return KubeTurn(api or self.client(), "demo", waits, start=lambda thread: None)

    def holder(self, api: MemoryApiServer | None = None, *, epoch: int = 1) -> KubeTurn:
        """The active loop, which renews its Lease."""
        turn = self.turn(api)
        assert turn.acquire(0)
        assert turn.raise_epoch() == epoch
        self.alive.append(turn)
        return turn

    def pass_time(self, seconds: float) -> None:
        end = self.time + seconds
        while self.time < end:
            self.time = min(end, self.time + 1.0)
            while self.during and self.during[0][0] <= self.time:
                self.during.pop(0)[1]()
            for turn in self.alive:
                with contextlib.suppress(StateError):
                    turn.renew()

    @property
    def lease(self) -> dict[str, Any]:
        return self.server.answer("GET", PATH)

    def annotate(self, **annotations: str) -> None:
        noted = {f"{GROUP}/{name}": text for name, text in annotations.items()}
        self.server.answer("PATCH", PATH, {"metadata": {"annotations": noted}}, "application/merge-patch+json")

    def stands_by(self, turn: KubeTurn, seconds: float) -> float | None:
        """Return the seconds after which a standby loop takes over; None if it does not take over within
        ``seconds``."""
        began = self.time
        return self.time - began if turn.acquire(None, lambda: self.time - began > seconds) else None


@pytest.fixture
def world() -> World:
    return World()


def test_a_second_loop_waits_and_takes_over_at_once_after_a_release(world: World) -> None:
    first, second = world.holder(), world.turn()
    assert not second.acquire(0)
    facts = {"host": os.uname().nodename[:64], "pid": os.getpid(), "boot": locks.get_boot_id()}
    assert second.holder() == {"epoch": 1, **facts}
    assert world.stands_by(second, 300) is None
    world.during.append((world.time + 30, first.sign_off))
    world.during.append((world.time + 30, first.release))
    took = world.stands_by(second, 300)
    assert took is not None
    assert 30 <= took <= 30 + 2 * RETRY_SECONDS
    assert second.holder() == {"epoch": 1, **facts, "ended": True}, "until it signs"
    assert second.raise_epoch(at_least=7) == 7
    assert second.raise_epoch(at_least=3) == 8
    assert second.epoch() == 8
    assert "ended" not in second.holder()
    assert not first.keep()
    assert second.keep()
    first.release()
    assert second.keep(), "a second release has no effect"


@pytest.mark.parametrize("phase", range(12))
def test_a_loop_that_is_killed_is_replaced_within_twenty_seconds(world: World, phase: int) -> None:
    first, second = world.holder(), world.turn()
    dies = world.time + 20 + phase / 6
    world.during.append((dies, world.alive.clear))
    assert world.stands_by(second, 300) is not None
    assert LEASE_SECONDS - RETRY_SECONDS <= world.time - dies <= LEASE_SECONDS + 1.2 * RETRY_SECONDS + 0.1
    assert second.raise_epoch() == 2
    assert not second.has_calls()
    assert not first.keep()
    with pytest.raises(StateStale, match="another process has the Lease"):
        first.raise_epoch()


def test_renewals_continue_while_a_cycle_takes_long(world: World) -> None:
    first = world.holder()
    assert world.stands_by(world.turn(), 200) is None
    assert first.keep()


def test_a_holder_that_cannot_renew_does_not_act_and_goes_on_after_the_next_renewal(world: World) -> None:
    api = world.client()
    turn = world.holder(api)
    api.before = lambda call: 0 if call.method == "PUT" else None
    world.pass_time(RENEW_SECONDS)
    assert turn.keep()
    world.pass_time(1.0)
    with pytest.raises(StateUnreachable, match="was not renewed for 11 s, so another loop may take over"):
        turn.keep()
    api.set_unreachable()
    with pytest.raises(StateUnreachable):
        turn.keep()
    api.set_unreachable(False)
    api.before = lambda call: None
    turn.renew()
    assert turn.keep()


def test_a_holder_that_may_not_renew_is_denied(world: World) -> None:
    api = world.client()
    turn = world.holder(api)
    api.before = lambda call: 403 if call.method == "PUT" else None
    world.during = [(world.time + RENEW_SECONDS + 2.0, turn._closing.set)]
    turn._renew_until(turn._closing)
    with pytest.raises(StateDenied, match="HTTP 403"):
        turn.keep()


def test_the_holder_stops_to_act_before_another_loop_can_take_over(world: World) -> None:
    api = world.client()
    first, second = world.holder(api), world.turn()
    ended_at = []

    def act() -> None:
        with contextlib.suppress(StateError):
            if first.keep():
                ended_at.append(world.time)

    api.before = lambda call: 0 if call.method == "PUT" else None
    world.during = [(world.time + second, act) for second in range(60)]
    assert world.stands_by(second, 60) is not None
    assert world.time - ended_at[-1] >= LEASE_SECONDS - RENEW_SECONDS - 1.0


def test_a_standby_loop_does_not_judge_a_lease_that_it_cannot_read(world: World) -> None:
    """While the server is away, no loop can renew its Lease. When a standby loop can read the Lease again, it must
    leave the holder time to renew it."""
    first_api, second_api = world.client(), world.client()
    first, second = world.holder(first_api), world.turn(second_api)
    down = world.time + 10
    world.during.append((down, first_api.set_unreachable))
    world.during.append((down + 5, second_api.set_unreachable))
    world.during.append((down + 300, lambda: second_api.set_unreachable(False)))
    world.during.append((down + 310, lambda: first_api.set_unreachable(False)))
    assert world.stands_by(second, 900) is None
    assert first.keep()


def test_a_command_waits_no_longer_than_asked_and_fails_if_the_server_is_away(world: World) -> None:
    world.holder()
    api = world.client()
    command, began = world.turn(api), world.time
    assert not command.acquire(5.0)
    assert world.time - began == pytest.approx(5.0)
    api.set_unreachable()
    with pytest.raises(StateUnreachable):
        command.acquire(0)


def test_a_command_takes_a_lease_that_was_not_renewed_for_long(world: World) -> None:
    first = world.holder()
    world.alive.clear()
    world.pass_time(LAPSED_SECONDS - 2)
    assert first.is_held()
    assert not world.turn().acquire(0)
    world.pass_time(4)
    assert not first.is_held()
    assert world.turn().acquire(0)


def test_of_two_loops_that_start_at_once_exactly_one_acquires(world: World) -> None:
    """If two loops read the Lease before either writes it, exactly one of them must get it. In the first round the
    Lease is missing, and in the second it is empty."""
    for _ in range(2):
        first_api, second_api = world.client(), world.client()
        first, second = world.turn(first_api), world.turn(second_api)
        acquired = []

        def overtake(call: Call, second: KubeTurn = second, acquired: list[bool] = acquired) -> None:
            if call.method != "GET" and not acquired:
                acquired.append(second.acquire(0))

        first_api.before = overtake
        assert not first.acquire(0)
        assert acquired == [True]
        assert second.keep()
        second.release()


def test_an_acquisition_whose_response_was_lost_counts(world: World) -> None:
    api = world.client()
    turn = world.turn(api)
    api.after = lambda call: 0 if call.method != "GET" and len(api.calls) < 6 else None
    assert world.stands_by(turn, 60) is not None
    assert turn.raise_epoch() == 1
    assert turn.keep()


def test_a_deleted_lease_is_created_again_by_its_holder_with_its_epoch(world: World) -> None:
    turn = world.holder()
    turn.beat()
    turn.renew()
    before = turn.holder()
    world.server.answer("DELETE", PATH)
    with pytest.raises(StateMissing, match="was deleted"):
        turn.epoch()
    assert turn.keep()
    assert turn.holder() == before
    assert turn.life_signs().last_beat_at is not None
    world.server.answer("DELETE", PATH)
    with contextlib.suppress(StateError):  # the real server refuses this write
        turn.renew()
    turn.renew()
    assert turn.holder() == before


def test_a_holder_creates_no_lease_if_another_loop_may_have_had_it(world: World) -> None:
    turn = world.holder()
    world.alive.clear()
    world.server.answer("DELETE", PATH)
    world.pass_time(RENEW_SECONDS + 1)
    assert not turn.keep()
    other = world.turn()
    assert other.acquire(0)
    assert other.raise_epoch(at_least=2) == 2, "the epoch of memory counts where the Lease was deleted"


def test_a_write_that_others_disturb_is_repeated_and_keeps_what_they_wrote(world: World) -> None:
    api = world.client()
    turn = world.holder(api)
    disturbed = []

    def disturb(call: Call) -> None:
        if call.method == "PUT" and len(disturbed) < 3:
            disturbed.append(call)
            world.annotate(note=str(len(disturbed)))

    api.before = disturb
    turn.sign_off()
    assert turn.holder()["ended"]
    assert world.lease["metadata"]["annotations"]["provisioner.hostfactory.dev/note"] == "3"
    api.before = lambda call: world.annotate(note=str(len(api.calls))) if call.method == "PUT" else None
    with pytest.raises(StateUnreachable, match="keep changing the Lease"):
        turn.renew()


def test_a_refused_write_says_why(world: World) -> None:
    api = world.client()
    turn = world.holder(api)
    api.before = lambda call: 422 if call.method == "PUT" else None
    with pytest.raises(StateUnwritable, match="HTTP 422: a test demands"):
        turn.renew()


def test_a_damaged_lease_stops_no_candidate(world: World) -> None:
    world.holder()
    world.alive.clear()
    world.annotate(holder="{", cycle="yesterday")
    other = world.turn()
    assert other.holder() == {}
    assert other.life_signs().last_beat_at is None
    assert world.stands_by(other, 60) is not None
    assert other.raise_epoch(at_least=5) == 5


# --- the thread -------------------------------------------------------------------------------------------------------


def test_the_thread_renews_through_failures_until_the_release_or_the_loss(world: World, caplog: Any) -> None:
    api, pauses = world.client(), list[float]()
    threads: list[Any] = []
    script = iter([*[None] * 3, *["break"] * 4, "repair", None, "release"])

    def wait(end: threading.Event, seconds: float) -> None:
        pauses.append(seconds)
        world.time += seconds
        match next(script):
            case "break":
                api.set_unreachable()
            case "repair":
                api.set_unreachable(False)
            case "release":
                turn.release()

    turn = KubeTurn(api, "demo", Waits(lambda: world.time, wait), start=threads.append)
    assert turn.acquire(0)
    assert "holderIdentity" in world.lease["spec"]
    threads.pop().run()
    assert "holderIdentity" not in world.lease["spec"]
    assert all(0.8 * RETRY_SECONDS <= pause <= 1.2 * RETRY_SECONDS for pause in pauses)
    assert len(caplog.records) == 1, "of a row of failures the first"
    script = iter([None] * 9)
    assert turn.acquire(0)
    other = {"spec": world.lease["spec"] | {"holderIdentity": "another"}}
    world.server.answer("PATCH", PATH, other, "application/merge-patch+json")
    threads.pop().run()
    assert "another process has the Lease" in vars(caplog.records[-1])["error"]
    turn.release()
    assert world.lease["spec"]["holderIdentity"] == "another"


# --- signs of life ----------------------------------------------------------------------------------------------------


def test_the_signs_of_life_come_from_the_servers_clock(world: World) -> None:
    reader = world.turn()
    assert reader.life_signs().is_running is False
    turn = world.holder()
    signs = reader.life_signs()
    assert (signs.fate, signs.last_beat_at, signs.is_running) == ("holds", None, False)
    turn.beat()
    beat_at = EPOCH + world.time
    assert reader.life_signs().last_beat_at is None, "the next renewal records it"
    world.pass_time(50.0)
    signs = reader.life_signs()
    assert signs.last_beat_at == pytest.approx(beat_at, abs=1)
    assert signs.silent_seconds == pytest.approx(50, abs=1)
    assert signs.signed_at == pytest.approx(beat_at, abs=1)
    assert signs.is_running
    world.pass_time(50.0)
    assert not reader.life_signs().is_running
    assert "holds the loop's lock and has done nothing for 100 s" in reader.life_signs().advice


def test_the_fate_of_the_last_loop_follows_from_its_renewals_and_signature(world: World) -> None:
    turn, reader = world.holder(), world.turn()
    world.alive.clear()
    assert reader.stopped_message() == ""
    world.pass_time(LAPSED_SECONDS + 2)
    assert reader.life_signs().fate == "released", "this process runs"
    gone = {"host": os.uname().nodename[:64], "pid": 2**22 + 1, "boot": locks.get_boot_id()}
    turn.renew(lambda old: old | gone)
    turn.release()
    assert reader.life_signs().fate == "gone"
    assert reader.life_signs().holder == {"epoch": 1, **gone}
    other = world.turn()
    assert other.acquire(0)
    other.raise_epoch()
    other.sign_off()
    other.release()
    assert reader.life_signs().fate == "ended"
    assert not reader.is_held()


def test_annotations_and_fields_are_those_of_the_design(world: World) -> None:
    turn = world.holder()
    turn.beat()
    turn.renew()
    lease = world.lease
    assert set(lease["metadata"]["annotations"]) == {HOLDER, CYCLE}
    assert float(lease["metadata"]["annotations"][CYCLE]) == pytest.approx(EPOCH + world.time, abs=1)
    assert lease["spec"].keys() == {
        "holderIdentity",
        "leaseDurationSeconds",
        "acquireTime",
        "renewTime",
        "leaseTransitions",
    }
    assert lease["spec"]["leaseDurationSeconds"] == LEASE_SECONDS
    turn.release()
    assert world.turn().acquire(0)
    assert world.lease["spec"]["leaseTransitions"] == 1


# --- many candidates under faults -------------------------------------------------------------------------------------


class Candidate:
    """A process whose clock has a speed of its own. At random, the process is paused, or its calls are lost or answered
    late."""

    def __init__(self, trial: Trial, speed: float) -> None:
        self.trial, self.speed = trial, speed
        self.api = MemoryApiServer(trial.server)
        self.api.before, self.api.after = self._before, self._after
        self.turn = KubeTurn(self.api, "demo", Waits(lambda: trial.time * speed, self._wait), start=lambda thread: None)
        self.epoch = 0
        self.is_holder = self.is_busy = False
        self.paused_until = 0.0

    def _wait(self, end: threading.Event, seconds: float) -> None:
        self.trial.time += seconds / self.speed

    def _before(self, call: Call) -> int | None:
        self.trial.interrupt()
        return 0 if self.trial.chance.random() < 0.1 else None

    def _after(self, call: Call) -> int | None:
        self.trial.interrupt()
        return 0 if self.trial.chance.random() < 0.1 else None

    def step(self) -> None:
        """Do what a loop does next, unless the candidate is paused or within a step already."""
        if self.is_busy or self.paused_until > self.trial.time:
            return
        self.is_busy = True
        try:
            self._act()
        except StateStale:
            self.is_holder = False
        except StateError:
            pass
        finally:
            self.is_busy = False

    def _act(self) -> None:
        trial, stops = self.trial, itertools.chain([False], itertools.repeat(True))
        if not self.is_holder:
            self.epoch, self.is_holder = 0, self.turn.acquire(None, lambda: next(stops))
        elif not self.epoch:
            self.epoch = self.turn.raise_epoch(trial.recorded + 1)
            trial.raised.append(self.epoch)
        elif (action := trial.chance.random()) < 0.5:
            self.turn.renew()
        elif action < 0.97:
            trial.check(self)
        else:
            self.turn.release()
            self.is_holder = False


class Trial:
    """Candidates on one server. A seed decides the order of their steps."""

    def __init__(self, seed: int) -> None:
        self.chance, self.time, self.depth = random.Random(seed), 1000.0, 0
        self.server = ObjectServer(clock=lambda: EPOCH + self.time)
        self.raised, self.recorded = list[int](), 0
        self.owners: dict[int, Candidate] = {}
        self.accepted = 0
        self.candidates = [Candidate(self, self.chance.uniform(1.0, 1.4)) for _ in range(self.chance.randint(2, 4))]

    def interrupt(self) -> None:
        """Let time pass in the middle of a call. Sometimes, let a candidate make a step."""
        self.time += self.chance.choice([0.0, 0.01, 0.5])
        if self.depth < 3 and self.chance.random() < 0.2:
            self.depth += 1
            self.chance.choice(self.candidates).step()
            self.depth -= 1

    def check(self, candidate: Candidate) -> None:
        """Let the candidate check that it may act, as a loop does before a batch. Raises AssertionError if another loop
        may act as well."""
        began_after = self.accepted
        if not candidate.turn.keep() or candidate.turn.epoch() != candidate.epoch:
            candidate.is_holder = False
            return
        assert candidate.epoch >= began_after, "an older loop acts after a newer one"
        assert self.owners.setdefault(candidate.epoch, candidate) is candidate, "two loops act with one epoch"
        self.accepted = max(self.accepted, candidate.epoch)
        self.recorded = max(self.recorded, candidate.epoch)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.time += self.chance.choice([0.1, 0.5, 2.0])
            candidate = self.chance.choice(self.candidates)
            fault = self.chance.random()
            if fault < 0.02:
                candidate.paused_until = self.time + self.chance.uniform(1.0, 40.0)
            elif fault < 0.04:
                candidate.api.set_unreachable(self.chance.random() < 0.5)
            candidate.step()


@pytest.mark.parametrize("seed", range(40))
def test_candidates_under_faults_act_with_epochs_of_their_own_that_grow(seed: int) -> None:
    trial = Trial(seed)
    trial.run(400)
    assert len(trial.raised) > 1
    assert trial.accepted
    assert trial.raised == sorted(set(trial.raised)), "each epoch is above all before"
