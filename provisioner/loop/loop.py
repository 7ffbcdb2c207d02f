"""The loop: start the observers, run cycle after cycle, follow wake-ups and signals, and end cleanly."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from provisioner.backends import Backend
from provisioner.loop.announced_ends import Notices
from provisioner.loop.batch_threads import ThreadedActors, record_ends
from provisioner.loop.clock import LoopClock
from provisioner.loop.cycle_report import CycleReport, Mandate, SupersededError, check_directory
from provisioner.loop.observers import Observer, stop_all
from provisioner.loop.reconciler import Reconciler
from provisioner.loop.standby import check_turn, take_turn
from provisioner.loop.wakeups import Wake, Wakeups
from provisioner.model import NEVER, Limits, LossCause, Memory, Notice, Observation, find_failures
from provisioner.process_end import Latch
from provisioner.state.directory_note import add_to_note
from provisioner.state.errors import StateError
from provisioner.state.protocols import State, read_memory

log = logging.getLogger(__name__)


SETTLE_SECONDS = 5.0
"""Seconds for which the loop waits for running calls when it is asked to end. If a call takes longer, the next loop
observes its effect."""

COLLECTOR = (100_000, 50, 100)
"""Thresholds of Python's garbage collector. The loop's values have no circular references, and most of them live long.
With the usual threshold of 700, the collector takes longer than planning for ten thousand slots, and its cost grows
faster than the number of slots."""


def relax_collector() -> None:
    """Let the garbage collector run rarely. Most values live as long as this process, so a collection would find hardly
    any garbage."""
    gc.set_threshold(*COLLECTOR)


@contextmanager
def without_collector() -> Iterator[None]:
    """Turn the garbage collector off while a cycle replaces many values. Reference counts free the replaced values at
    the end of the cycle.

    If the collector were on, it would scan the old and new values. With a hundred thousand slots, this scan takes a
    twelfth of the plan's time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Hints(Protocol):
    """A stream of messages about machines, for example from Pub/Sub. The stream is read only while the loop of this
    process is the active loop."""

    def start(self) -> None:
        """Start to read in the background."""

    def close(self) -> None:
        """Stop reading. This has no effect if reading was never started."""


@dataclass(frozen=True)
class Pace:
    """The pace of the loop, in seconds."""

    interval_seconds: float = 5.0
    floor_seconds: float = 0.5
    act_seconds: float = 2.0
    intent_poll_seconds: float = 0.1
    longest_call_seconds: float = 45.0
    """The longest time that a batch of any configured kind may run after the start of its last call."""

    @property
    def longest_cycle(self) -> float:
        """Return the longest duration of a batch: the time in which it may start calls, plus the time of the last
        call."""
        return self.act_seconds + self.longest_call_seconds


@dataclass(frozen=True)
class Setup:
    """The inputs of a loop: state, backends, limits and pace."""

    state: State
    backends: Mapping[str, Backend]
    """Backends by pool."""
    limits: Limits
    """Limits in force at the start."""
    provisioner: str
    """HF's provider instance, to which intent.json must belong."""
    pace: Pace
    note: str = ""
    """Path of the note that names the state directories used with this configuration (``state/directory_note.py``)."""


class Loop:
    """The loop of one provisioner on one state directory."""

    def __init__(
        self,
        setup: Setup,
        report: Callable[[CycleReport], None],
        *,
        refresh: Callable[[Limits, Memory | None], Limits] = lambda limits, _: limits,
        count_wake: Callable[[Wake], None] = lambda _: None,
        hints: Hints | None = None,
        stands_by: Callable[[], None] = lambda: None,
    ) -> None:
        self._setup = setup
        self._state = setup.state
        self._backends = setup.backends
        self._pace = setup.pace
        self._report = report
        self._refresh = refresh
        """Function that returns the limits in force. The loop calls it before each cycle with the memory and the limits
        of the previous cycle."""
        self.wakeups, self._stop = Wakeups(count_wake), Latch()
        self._hints, self._stands_by = hints, stands_by
        self._notices = Notices()
        self._clock = LoopClock()
        self._observers: Mapping[str, Observer] = {}
        self._last: CycleReport | None = None
        self._heartbeat_problem = ""
        """Reason why the heartbeat cannot be written, as last logged; empty if it can be written."""

    def stop(self) -> None:
        """End the loop after the current action. Safe in a signal handler and from any thread."""
        self._stop.set()
        self.wakeups.wake(Wake.SIGNAL)

    def observe_now(self, source: Wake) -> None:
        """Let all observers observe soon, and start a cycle, because something in a cloud may have changed. Safe from
        any thread."""
        for observer in self._observers.values():
            observer.observe_now()
        self.wakeups.wake(source)

    def announce(self, name: str, cause: LossCause, seconds: float) -> None:
        """Record that a place has announced that a machine will end in ``seconds``. Safe from any thread."""
        now = self._clock.now()
        self._notices.add(name, Notice(cause, now + seconds), now)

    def run(self, *, once: bool = False) -> None:
        """Wait until no other loop runs, then run cycles until ``stop`` is called. Raises StateError,
        SupersededError."""
        epoch = take_turn(self._state, self._stop, self._pace.longest_cycle, self._stands_by)
        if epoch is None:
            return
        try:
            self._run_epoch(epoch, once)
        finally:
            self._state.loop_lock.release()

    def unseen(self) -> list[str]:
        """Return the pools that the last cycle could not observe."""
        return list(find_failures(self._last.observations)) if self._last else []

    def problem(self) -> str:
        """Return the reason why the last cycle could not do its work; empty if the cycle did its work."""
        return self._last.problem if self._last else ""

    def _run_epoch(self, epoch: int, once: bool) -> None:
        add_to_note(self._setup.note, self._state.path)
        clock = self._clock = LoopClock(read_memory(self._state))
        check = partial(check_turn, self._state, epoch)
        actors = ThreadedActors(self._backends, lambda: self.wakeups.wake(Wake.WATCH))
        reconciler = Reconciler(
            clock=clock,
            state=self._state,
            actors=actors,
            limits=self._setup.limits,
            provisioner=self._setup.provisioner,
            mandate=Mandate(epoch, check, self._stop.is_set, self._pace.act_seconds),
        )
        self._observers = {
            name: Observer(backend, clock, lambda: self.wakeups.wake(Wake.WATCH))
            for name, backend in self._backends.items()
        }
        for observer in self._observers.values():
            observer.start()
        try:
            if self._hints:
                self._hints.start()
            if once:
                self._await_first_observations()
            self._cycles(reconciler, once)
        finally:
            self._finish(reconciler, actors, check)
            if self._hints:
                self._hints.close()
            stop_all(self._observers.values())

    def _await_first_observations(self) -> None:
        deadline = time.monotonic() + self._pace.longest_cycle
        while time.monotonic() < deadline and not self._stop.is_set():
            failures = find_failures(self._observations({}, self._setup.limits)).values()
            if all(failure.error.needs_operator_to_observe for failure in failures):
                return
            time.sleep(self._pace.intent_poll_seconds)

    def _observations(self, sought: Mapping[str, Mapping[str, str]], limits: Limits) -> dict[str, Observation]:
        return {
            name: self._notices.add_to(observer.latest(sought.get(name, {})), limits.pools[name].lag_seconds)
            for name, observer in self._observers.items()
        }

    def _cycles(self, reconciler: Reconciler, once: bool) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            changed = partial(self._has_changed, self._signature())
            report = self._cycle(reconciler)
            if once:
                return
            due = report.plan.due_at if report.plan else NEVER
            pause = min(self._pace.interval_seconds, max(0.0, due - report.now))
            if report.plan is not None:  # Let changes gather after a busy cycle, so that several share a plan.
                floor = max(self._pace.floor_seconds, self._state.least_pause_seconds)
                self._stop.wait(max(0.0, floor - (time.monotonic() - began)))
            self.wakeups.wait(pause, self._pace.intent_poll_seconds, changed)

    def _cycle(self, reconciler: Reconciler) -> CycleReport:
        with without_collector():
            reconciler.limits = self._refresh(reconciler.limits, reconciler.memory)
            observations = self._observations(reconciler.sought(), reconciler.limits)
            report = check_directory(reconciler.cycle(observations), self._state.path, self._setup.note)
        for pool, distrusted in report.distrusted.items():
            self._observers[pool].list_after(distrusted.until)
        self._write_heartbeat()
        self._report(report)
        record_ends(report.closes, self._backends)
        self._last = report
        return report

    def _write_heartbeat(self) -> None:
        """Write the heartbeat. Log a failure unless the previous write failed in the same way."""
        try:
            self._state.beat()
            self._heartbeat_problem = ""
        except StateError as error:
            former, self._heartbeat_problem = self._heartbeat_problem, str(error)
            if former != self._heartbeat_problem:
                log.error("Heartbeat could not be written", extra={"error": self._heartbeat_problem})

    def _finish(self, reconciler: Reconciler, actors: ThreadedActors, check: Callable[[], None]) -> None:
        """Record and report the outcomes of the last calls, so that the next loop neither repeats these calls nor waits
        for them."""
        # --once waits for its calls because no later cycle collects their outcomes.
        if not (settled := actors.settle(SETTLE_SECONDS if self._stop.is_set() else self._pace.longest_cycle)):
            log.warning("Calls were under way when the loop ended", extra={"pools": sorted(actors.busy())})
        try:
            done = reconciler.settle()
            if done.results and self._last is not None:
                last = replace(self._last, plan=None, lock_wait_seconds=None, memory=reconciler.memory)
                last = replace(last, results=done.results, transitions=done.transitions)
                self._report(last)
                record_ends(last.closes, self._backends)
            check()
            if settled:
                self._state.loop_lock.sign_off()
        except (StateError, SupersededError) as error:
            log.warning("The last outcomes were not recorded", extra={"error": str(error)})

    def _has_changed(self, signature: object) -> bool:
        return signature != self._signature()

    def _signature(self) -> object:
        """Return one signature of the files of intent and holds; None if a file cannot be read. Other processes write
        these files, and the loop reacts to a change at once."""
        try:
            return self._state.intent.signature(), self._state.holds.signature()
        except StateError:
            return None
