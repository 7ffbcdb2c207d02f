"""A run in virtual time. At its end, the true state of the places and of HostFactory can be read."""

from __future__ import annotations

from collections.abc import Callable

from provisioner.lab.virtual.run import Provisioner, Stage, play
from provisioner.lab.virtual.scenario import Scenario
from provisioner.planning.core.usage import by_pool, get_usage

QUIET_SECONDS = 600.0
"""Seconds at the end of a run in which no call is needed if all is well again."""


class Watched:
    """A run that is played to its end."""

    def __init__(self, scenario: Scenario, seed: int, decide: Callable[[Stage], Provisioner] = Provisioner) -> None:
        self._scenario, self._decide = scenario, decide
        self._calls = 0
        self.broken = play(scenario, seed, self._begin).broken
        """The laws that were broken."""

    def _begin(self, stage: Stage) -> Provisioner:
        self._stage, self._provisioner = stage, self._decide(stage)
        stage.world.after(self._scenario.seconds - QUIET_SECONDS, self._note_calls)
        return self._provisioner

    def _note_calls(self) -> None:
        self._calls = self._count_calls()

    def _count_calls(self) -> int:
        return sum(place.calls for place in self._stage.places.values())

    def calls_at_last(self) -> int:
        """Return the number of calls in the last minutes."""
        return self._count_calls() - self._calls

    def missing(self) -> int:
        """Return the number of wanted machines that do not run or that HostFactory does not have."""
        return self._provisioner.grid.wanted.total() - self._stage.ledger.usable()

    def left(self) -> set[str]:
        """Return our machines that HostFactory does not have. Return an empty set if HostFactory has not made a request
        yet.

        A loop without any request leaves unknown machines alone, because another state directory may have their
        requests.
        """
        if not self._provisioner.state.intent.existed():
            return set()
        there = {member.name for place in self._stage.places.values() for member in place.ours()}
        return there - self._provisioner.grid.hosts.keys()

    def miscounted(self) -> float:
        """Return the error of the usage in memory, compared with the places' true usage, in seconds for each
        machine."""
        memory, clock = self._provisioner.loop.reconciler.memory, self._provisioner.loop.clock
        assert memory is not None
        reported = sum(by_pool(get_usage(memory, clock.now(), 0.0)).values()) / 1000
        tally = self._stage.ledger.tally
        return abs(reported - tally.seconds) / tally.created

    def brake(self) -> bool:
        """Return True if the brake is latched, so that an operator has to act."""
        memory = self._provisioner.state.memory.latest
        return memory is not None and memory.brake is not None
