"""Runs: a run plays a scenario with a seed and a controller, and computes the measures."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from provisioner.lab.cloud.world import World
from provisioner.lab.virtual.driver import VirtualLoop
from provisioner.lab.virtual.hostfactory import Grid
from provisioner.lab.virtual.place import Place
from provisioner.lab.virtual.scenario import Act, Event, Scenario
from provisioner.lab.virtual.state import VirtualState
from provisioner.lab.virtual.true_events import MINUTE, Ledger, Sample
from provisioner.loop.cycle_report import CycleReport
from provisioner.model import HOUR, ErrorClass, Hold, HoldKind, LossCause, PendingReason, Plan

SAMPLE = 10.0
"""Minimum seconds between two samples, and between two checks of the laws."""

MOST_SAMPLES = 2880
"""Maximum number of samples of a run. In a run of more than eight hours, the time between two samples is longer than
``SAMPLE``."""

ORPHAN_SLACK = 900.0
"""Seconds within which an orphan has to be deleted once its grace period has ended."""


@dataclass(frozen=True)
class Result:
    """The results of a run. Times in ``measures`` are seconds from ``judge_from_minutes``. A time is None if the run
    did not reach the measured state."""

    scenario: str
    seed: int
    controller: str
    measures: Mapping[str, float | None]
    broken: tuple[str, ...]
    """The broken laws, each with its time and a description."""
    reasons: tuple[str, ...]
    """The classes of failures that were reported as reasons for missing machines."""
    samples: tuple[Sample, ...] = field(repr=False)


class Controller(Protocol):
    """A program that decides the number of machines."""

    name: str

    def begin(self) -> None:
        """Begin the run."""

    def happens(self, event: Event) -> None:
        """Carry out an event of the scenario that concerns the controller or HostFactory."""

    def window(self) -> int:
        """Return the number of machines that may be pending now; 0 if the controller has no such limit."""

    def check(self) -> None:
        """Check the laws that hold at every moment."""

    def end(self) -> Mapping[str, float | None]:
        """End the run. Return the measures that only this controller has, by name."""

    def reasons(self) -> tuple[str, ...]:
        """Return the classes of failures that were reported as reasons for missing machines."""


class Stage:
    """All parts of a run except its controller: the ``World``, the places and the ledger."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.world = World(seed=seed)
        limits = scenario.limits()
        self.ledger = Ledger(
            self.world,
            dict(limits.pools),
            {name: pool.price_per_hour or 0.0 for name, pool in scenario.pools.items()},
            limits.orphans.grace_seconds,
            60 * scenario.judge_from_minutes,
        )
        self.places = {name: Place(pool, self.world, self.ledger) for name, pool in scenario.pools.items()}
        self.chance = random.Random(f"{seed} events")
        self._numbers = 0

    def act(self, event: Event) -> None:
        """Carry out an event that concerns the places."""
        for name in event.pools or self.places:
            place = self.places[name]
            if event.change:
                place.change(event.change, event.seconds)
            if event.do in CAUSES:
                place.take_away(event.share, CAUSES[event.do])
            for _ in range(event.machines if event.do in (Act.UNKNOWN_MACHINES, Act.DOUBLES) else 0):
                self._numbers += 1
                ours = event.do is Act.DOUBLES
                middle = f"zz{self._numbers:08d}" if ours else f"foreign-{self._numbers}"
                place.add(f"hf-{middle}-000000", template="", ours=ours)


CAUSES = {Act.PREEMPT: LossCause.PREEMPTED, Act.KILL: LossCause.EXITED, Act.REMOVE: LossCause.DELETED}


class Provisioner:
    """The controller that consists of the production loop and HostFactory."""

    name = "provisioner"

    def __init__(self, stage: Stage, state: VirtualState | None = None) -> None:
        self._stage = stage
        self._world, self._ledger = stage.world, stage.ledger
        self.state = state or VirtualState(stage.world.seed)
        self.grid = Grid(stage.scenario, self.state, stage.world)
        self._settings = stage.scenario.provisioner()
        self._orphan_grace = 60 * self._settings.orphan_grace_minutes
        self._is_truthful = stage.scenario.is_truthful()
        self._reasons: Counter[str] = Counter()
        self._cycles = self._plans = 0
        self._orphans: dict[str, float] = {}
        """By machine: the virtual time since which a machine of ours has had no slot."""
        self._check_at = 0.0
        self._moved = 0.0
        """Seconds by which the wall clock of the loop's host was set forward."""
        self.loop = self._start()

    def _start(self) -> VirtualLoop:
        return VirtualLoop(
            self._world,
            self.state,
            self._stage.places,
            self._settings,
            self._hear,
            self._moved,
        )

    def _hear(self, report: CycleReport) -> None:
        self._cycles += 1
        if report.plan is not None:
            self._plans += 1
            self._check_holds(report.plan)
        for close in report.closes:
            if close.slot.failure is not None:
                self._reasons[close.slot.failure.error] += 1
        for (_, _, reason), machines in report.deferred.items():
            if reason is PendingReason.CAP and machines:
                self._reasons["cap"] += 1

    def _check_holds(self, plan: Plan) -> None:
        """Record a breach if a plan makes or deletes machines in spite of a hold."""
        holds = self.state.holds.read()
        if holds.stop and (plan.creates or plan.deletes):
            self._ledger.breach("hold", f"{len(plan.creates)} creates and {len(plan.deletes)} deletes while stopped")
        cancelled = holds.of_kind(HoldKind.CANCEL)
        for create in plan.creates:
            if holds.against(create.pool) or create.request in cancelled:
                self._ledger.breach("hold", f"{create.name} was asked for in {create.pool}")

    def begin(self) -> None:
        self._round()

    def _round(self) -> None:
        self._world.after(self._stage.scenario.hostfactory.poll_seconds, self._round)
        self.grid.round()
        self._check_losses()
        self._ledger.want(sum(self.grid.wanted.values()))
        self._ledger.use(self.grid.hosts)

    def _check_losses(self) -> None:
        """Record a breach if a running machine was reported to HostFactory as lost. Skip this check if observations may
        be false."""
        if self._is_truthful:
            for name in self._ledger.running.intersection(self.grid.lost):
                self._ledger.breach("killed", f"{name} runs, but was reported to HostFactory as gone")

    def happens(self, event: Event) -> None:
        acts: dict[Act, Callable[[Event], None]] = {
            Act.RESTART: lambda _: self._restart(),
            Act.PAUSE: lambda event: self.loop.pause(event.seconds or 0.0),
            Act.SECOND_LOOP: self._second_loop,
            Act.LOSE_MEMORY: lambda _: self._restart(self.state.memory.lose),
            Act.OLD_MEMORY: self._put_back_memory,
            Act.LOSE_ANSWERS: lambda _: self.state.status.lose(),
            Act.UNREADABLE_INTENT: self._blind,
            Act.CLOCK: lambda event: self._move_clock(event.seconds or 0.0),
            Act.HF_RESTART: lambda _: self.grid.forget(),
            Act.HF_SILENT: self._silence,
            Act.RETURN_UNKNOWN: lambda event: self.grid.return_unknown_machines(event.machines),
            Act.HOLD: lambda event: self._set_hold(event, HoldKind.PAUSE, self._pools(event)),
            Act.DRAIN: lambda event: self._set_hold(event, HoldKind.DRAIN, self._pools(event)),
            Act.STOP_ALL: lambda event: self._set_hold(event, HoldKind.STOP_ALL, [""]),
            Act.CANCEL_REQUESTS: lambda event: self._set_hold(event, HoldKind.CANCEL, self.grid.open_requests()),
            Act.CANCEL_MACHINES: lambda event: self._set_hold(event, HoldKind.CANCEL, self._some_hosts(event.share)),
        }
        if event.do in acts:
            acts[event.do](event)

    def _restart(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.loop.end()
        meanwhile()
        self.loop = self._start()

    def _second_loop(self, event: Event) -> None:
        self.loop = self._start()

    def _put_back_memory(self, event: Event) -> None:
        before = self.loop.clock.now() - (event.seconds or 0.0)
        self._restart(partial(self.state.memory.put_back, before))

    def _blind(self, event: Event) -> None:
        self.state.intent.readable = False
        self.loop.wake()
        self._world.after(event.seconds or 0.0, self._see)

    def _see(self) -> None:
        self.state.intent.readable = True
        self.loop.wake()

    def _move_clock(self, seconds: float) -> None:
        self._moved += seconds
        self.loop.clock.moved = self._moved

    def _pools(self, event: Event) -> Iterable[str]:
        return event.pools or self._stage.places

    def _some_hosts(self, share: float) -> Iterable[str]:
        hosts = sorted(self.grid.hosts)
        return self._stage.chance.sample(hosts, round(share * len(hosts)))

    def _set_hold(self, event: Event, kind: HoldKind, targets: Iterable[str]) -> None:
        for target in targets:
            self.state.set_hold(Hold(kind, target, "virtual"))
            if event.seconds is not None:
                self._world.after(event.seconds, partial(self.state.release, kind, target))

    def _silence(self, event: Event) -> None:
        self.grid.silent_until = self._world.now + (event.seconds or 0.0)

    def window(self) -> int:
        memory = self.state.memory.latest
        return sum(window.window for window in memory.windows.values()) if memory else 0

    def check(self) -> None:
        for text in self.grid.broken:
            self._ledger.breach("answer", text)
        self.grid.broken.clear()
        if self._world.now >= self._check_at:
            self._check_at = self._world.now + 5 * MINUTE
            self._check_machines()

    def _check_machines(self) -> None:
        """Check the ledger's sums. Record a breach for each machine of ours that has been an orphan for too long.

        The limit is the grace period of orphans plus ``ORPHAN_SLACK``. While the brake is latched, an orphan is not a
        breach.
        """
        there = {member.name for place in self._stage.places.values() for member in place.ours()}
        self._ledger.audit(len(there))
        memory = self.loop.reconciler.memory
        if not self.state.intent.existed():
            return  # HostFactory has not requested a machine yet, so the loop has no intent and does not plan
        explained = {slot.name for _, slot in memory.slots} if memory else set()
        now, grace = self._world.now, self._orphan_grace
        self._orphans = {name: self._orphans.get(name, now) for name in there - explained}
        if memory is not None and memory.brake is not None:
            return
        for name, since in self._orphans.items():
            if now - since > grace + ORPHAN_SLACK:
                self._ledger.breach("orphan", f"{name} has had no slot for {now - since:.0f} s")

    def end(self) -> Mapping[str, float | None]:
        observations = sum(backend.observations for backend in self.loop.backends.values())
        return {
            "requests": float(self.grid.ended),
            "open": float(self.grid.facts()["open"]),
            "cycles": float(self._cycles),
            "plans": float(self._plans),
            "observations": float(observations),
        }

    def reasons(self) -> tuple[str, ...]:
        memory = self.state.memory.latest
        failures = [window.failure for window in memory.windows.values()] if memory else []
        now = [str(failure.error) for failure in failures if failure is not None]
        words = {message.partition(":")[0] for message in self.grid.failures}
        return tuple(sorted({*now, *self._reasons, *(word for word in words if word in set(ErrorClass))}))


def play(scenario: Scenario, seed: int, decide: Callable[[Stage], Controller] = Provisioner) -> Result:
    """Play a scenario to its end, and return the result. ``decide``: a function that makes the controller."""
    stage = Stage(scenario, seed)
    controller = decide(stage)
    world, ledger = stage.world, stage.ledger
    for event in scenario.events:
        world.after(event.at, partial(stage.act, event))
        world.after(event.at, partial(controller.happens, event))

    apart = max(SAMPLE, scenario.seconds / MOST_SAMPLES)

    def sample() -> None:
        world.after(apart, sample)
        controller.check()
        ledger.samples.append(
            Sample(world.now, ledger.wanted, ledger.usable(), len(ledger.running), ledger.pending, controller.window())
        )

    world.after(0.0, controller.begin)
    world.after(apart, sample)
    world.advance(scenario.seconds)
    ledger.close({name: place.ours() for name, place in stage.places.items()})
    own = controller.end()
    return Result(
        scenario.name,
        seed,
        controller.name,
        {**measures(stage), **own},
        tuple(ledger.broken),
        controller.reasons(),
        tuple(ledger.samples),
    )


def measures(stage: Stage) -> dict[str, float | None]:
    """Return the measures of a run, by name."""
    ledger, scenario = stage.ledger, stage.scenario
    tally, most = ledger.tally, max((sample.wanted for sample in ledger.samples), default=0)
    start = 60 * scenario.judge_from_minutes
    calls = sum(place.calls for place in stage.places.values())
    return {
        **{f"t{share}": seconds_until(ledger.samples, share / 100, start) for share in (50, 90, 100)},
        "t90_running": None if ledger.most_ran_at is None else ledger.most_ran_at - start,
        "created": float(tally.created),
        "overshoot": ledger.peak / most if most else 0.0,
        "calls_per_machine": calls / tally.created if tally.created else 0.0,
        "throttled": sum(place.throttled for place in stage.places.values()) / calls if calls else 0.0,
        "unproven_minutes": tally.pending_seconds / MINUTE,
        "idle_hours": tally.idle_seconds / HOUR,
        "cost": tally.cost,
        **{law: float(ledger.counts[law]) for law in ("double", "orphan", "cap", "killed", "answer", "hold", "books")},
    }


def seconds_until(samples: list[Sample], share: float, start: float) -> float | None:
    """Return the seconds from ``start`` until ``share`` (0 to 1) of the wanted machines is usable.

    Return None if the share was never reached.
    """
    for sample in samples:
        if sample.at >= start and sample.wanted and sample.usable >= share * sample.wanted:
            return sample.at - start
    return None
