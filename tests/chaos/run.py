"""A run of the chaos test. A world is made, disturbed and healed. When it is at rest, all machines are returned."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from provisioner.lab.playground import Playground
from provisioner.state.errors import StateError
from tests.chaos.answer_checks import Ledger, is_ours, of_ours
from tests.chaos.arena import CAPS, Arena
from tests.chaos.hf import HostFactory
from tests.chaos.monkey import ACTS, Stage, play, programme
from tests.simulation.laws import Law

REST_SECONDS = 130.0
"""Seconds within which the world must come to rest after the last fault, and seconds within which it must then become
empty. They cover the minute of a throttled group, every deadline and grace period, and a start of the loop."""
OPERATOR_SECONDS = 2.0
"""Seconds between two checks of the operator."""


class Run:
    """A world at work during ``with Run(seed) as run``. ``program``: the module that is run as the loop, and its first
    arguments."""

    acts = ACTS
    """The disturbances, apart from faults of the cloud."""

    def __init__(self, seed: int, program: tuple[str, ...] = ("provisioner",), *, arena: Arena | None = None) -> None:
        self.seed = seed
        self.arena = arena or Arena(seed, program)
        self.ledger = Ledger(CAPS)
        self.diary: list[str] = []
        """Disturbances of the world, with seconds since the beginning."""
        self.hf = HostFactory(self.arena, self.ledger)
        self.stage = Stage(self.arena, self.hf, self.ledger, old={}, foreigners={}, faults=[])
        self.errors: list[BaseException] = []
        """Errors of the harness itself."""
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._read = 0
        self._threads = [
            threading.Thread(target=self._keep, args=(turn, pause))
            for turn, pause in ((self._observe, 0.2), (self._operate, OPERATOR_SECONDS))
        ]

    def __enter__(self) -> Self:
        self.arena.__enter__()
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()
        self.hf.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._ended.set()
        self.arena.wake()
        self.hf.end()
        for thread in self._threads:
            thread.join()
        Playground.__exit__(self.arena, *error)

    def note(self, words: str) -> None:
        self.diary.append(f"{time.monotonic() - self._began:7.2f}  {words}")

    # --- the run ------------------------------------------------------------------------------------------------------

    def disturb(self, seconds: float) -> None:
        """Carry out the disturbances of the seed for ``seconds``. Stop when a law is broken."""
        play(programme(self.seed, seconds, self.acts), self.stage, self.seed, self.note, lambda: not self.broken())

    def heal(self) -> None:
        """End all faults, and let HF make no more requests."""
        self.note("all is healed")
        self.hf.wants = False
        self.arena.faults()
        self.arena.wake()

    def come_to_rest(self) -> None:
        """Wait until the cloud has only HF's machines. Wait also until every request has ended and no brake is
        latched."""
        self._until(lambda: self.ledger.unsettled(self.arena.cloud()) + self._brakes(), REST_SECONDS, "at rest")

    def return_all(self) -> None:
        """Let HF return all machines. As an operator would, name to HF the machines that it has forgotten. Wait until
        the cloud has no machine of ours."""
        with self.ledger.lock:
            self.ledger.hf.hosts |= {one["name"] for one in of_ours(self.arena.cloud())}
            self.ledger.hf.to_return |= self.ledger.hf.hosts
        self._until(lambda: self.ledger.unsettled(self.arena.cloud()), REST_SECONDS, "empty")

    def wind_up(self) -> None:
        """Check those laws that can be checked only at the end of a run."""
        self._observe()
        self.ledger.wound_up()

    def summary(self) -> str:
        """Return a summary of the run in one line."""
        calls, ends = len(self.ledger.calls), [line.strip() for line in self.diary[-2:]]
        return f"{len(self.diary)} acts, {calls} calls, {len(self.ledger.made)} machines; {', '.join(ends)}"

    def broken(self) -> list[str]:
        """Return the broken laws so far, and the errors of the harness."""
        return [*self.ledger.broken, *map(repr, [*self.errors, *self.hf.errors])]

    def _until(self, problems: Callable[[], list[str]], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while (left := problems()) and not self.broken():
            self._delete_abandoned()
            if time.monotonic() > deadline:
                for one in left:
                    self.ledger.breaks(Law.ENDS, f"not {what} after {seconds:.0f} s: {one}")
                return
            time.sleep(0.3)
        self.note("a law is broken" if self.broken() else f"is {what}")

    def _delete_abandoned(self) -> None:
        """As an operator, delete our instances that still run although they were taken out of their group. `status`
        asks an operator to do this."""
        for one in self.arena.cloud():
            if one["kind"] == "mig" and not one["pool"] and one["phase"] == "running" and is_ours(one["name"], {}):
                self.arena.compute("DELETE", f"instances/{one['name']}")

    def _brakes(self) -> list[str]:
        return (
            ["an operator is needed: " + (self.arena.brake() or "memory.json")]
            if self.arena.needs_an_operator()
            else []
        )

    # --- beside it ----------------------------------------------------------------------------------------------------

    def _keep(self, turn: Callable[[], None], pause: float) -> None:
        while not self._ended.wait(pause):
            try:
                turn()
            except Exception as error:
                self.errors.append(error)
                raise

    def _observe(self) -> None:
        """Read the chronicle and intent. Start a loop if too few loops run, as a supervisor does."""
        with self.arena.chronicle.open() as file:
            file.seek(self._read)
            while (line := file.readline()).endswith("\n"):
                self._read = file.tell()
                self.ledger.happens(json.loads(line))
        with suppress(StateError):
            self.ledger.records(*self.arena.recorded())
        if not self._ended.is_set() and len(self.arena.living()) < self.arena.replicas:
            self.arena.begin_loop()

    def _operate(self) -> None:
        self.arena.act_as_operator(self.note)
