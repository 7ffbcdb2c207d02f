"""A scenario as people write it: pools and what goes wrong in them, what HostFactory wants, what is expected.

Durations are in the unit that their names say; scenario time begins at 0. No I/O, no clock, no logger.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from operator import itemgetter
from typing import Annotated, Any

from pydantic import Field

from provisioner.model import Limits
from provisioner.schema.pool import Cap, Count, Duration, DurationOrZero, OptionalDuration, Pool, Price, Switch, Text
from provisioner.schema.problems import Expects, Section
from provisioner.settings.definitions import CountOrZero, Settings, TemplateSettings

Share = Annotated[float, Field(ge=0, le=1), Expects("a number from 0 to 1")]
Room = Annotated[int | None, Field(ge=0), Expects("a whole number ≥ 0")]


PROVISIONER = "virtual"
"""HF's provider instance."""


class Looks(StrEnum):
    """What a pool shows to those who look at it."""

    COMPLETE = "complete"
    FAILED = "failed"
    """The observation ends with an error."""
    EMPTY = "empty"
    """It claims to be complete, and holds nothing."""
    TRUNCATED = "truncated"
    """It claims to be complete, and ends after ``page`` machines."""
    FROZEN = "frozen"
    """It claims to be new, and shows the pool as it was when this began."""


class Calls(StrEnum):
    """What becomes of calls that create or delete machines."""

    ANSWERED = "answered"
    UNANSWERED = "unanswered"
    """No effect, and no response."""
    DENIED = "denied"
    """No effect; 403."""


LooksField = Annotated[Looks, Field(strict=False), Expects(f"one of {', '.join(Looks)}")]
CallsField = Annotated[Calls, Field(strict=False), Expects(f"one of {', '.join(Calls)}")]


class VirtualPool(Pool):
    """A pool of the scenario: what it may be asked for, as in provisioner.yaml, and how its place behaves."""

    kind: str = "virtual"
    boot_seconds: DurationOrZero = 120.0
    """Median seconds from an accepted create until the machine runs; default 120."""
    boot_p95_seconds: OptionalDuration = None
    """Seconds in which 95 of 100 have booted, lognormally distributed; default none: all take ``boot_seconds``."""
    boot_failures: Share = 0.0
    """Part of the machines that end instead of running; default 0."""
    hangs: Share = 0.0
    """Part of the machines that never run, and say nothing; default 0."""
    dies: Share = 0.0
    """Part of the machines that run and end by themselves ``dies_after_seconds`` later; default 0."""
    dies_after_seconds: Duration = 30.0
    """Seconds that such a machine runs; default 30."""
    preempted_per_hour: Share = 0.0
    """Part of the running machines that the place takes away in an hour; default 0."""
    capacity: Room = None
    """Machines that the place has room for; default any. What finds none waits there, and says so."""
    quota: Room = None
    """Machines that calls may create; default any. The call for one more is refused."""
    stop_seconds: DurationOrZero = 30.0
    """Seconds from a delete until the machine is gone; default 30."""
    remains: Switch = True
    """What ended by itself stays until it is deleted, as a pod does; default true."""
    tells_why: Switch = True
    """The place says why a machine ended; default true."""
    call_seconds: Duration = 0.15
    """Seconds that a call takes; default 0.15: with 32 at once as many as an API server on two processors creates."""
    calls_at_once: Count = 32
    """Most calls that are under way at once; default 32. Fewer while the place is slow or throttles."""
    machines_per_call: Count = 1
    """Machines that one call creates or deletes; default 1. A managed instance group takes 100 and more."""
    calls_per_second: Annotated[float | None, Field(gt=0), Expects("a number > 0")] = None
    """Calls that the place takes in a second; default any. One more is throttled."""
    calls: CallsField = Calls.ANSWERED
    """What becomes of calls; default answered."""
    lost_answers: Share = 0.0
    """Part of the calls that have their effect and no response; default 0."""
    ignored_creates: Share = 0.0
    """Part of the creates that are answered with success, and make no machine; default 0."""
    ignores_deletes: Switch = False
    """Deletes are answered with success, and delete nothing; default false."""
    observations: LooksField = Looks.COMPLETE
    """What looks show; default complete."""
    page: Count = 500
    """Machines in a truncated look; default 500."""
    appears_seconds: DurationOrZero = 0.0
    """Most seconds until a machine that was created is listed; default 0."""
    watched: Switch = True
    """Changes are heard of at once, as by a watch; default true. Else each observation shows those before it."""
    price_per_hour: Price = 1.0
    """What a machine costs in an hour; default 1."""


class Template(TemplateSettings):
    """What HostFactory may ask for, with its settings in provisioner.yaml."""

    pools: Annotated[tuple[Text, ...], Field(strict=False, min_length=1), Expects("a list of pools")]
    """The pools that make its machines, in order."""
    max_machines: Cap = None
    """HF's maxNumber; default none."""


class Demand(Section):
    """Machines that HostFactory wants of one template, from a time on. Several add up."""

    template: Text = "T"
    """Default T."""
    machines: CountOrZero
    """How many. No default."""
    at_minutes: DurationOrZero = 0.0
    """From when; default 0."""
    ramp_minutes: DurationOrZero = 0.0
    """Minutes in which the number is reached, growing evenly; default 0: at once."""
    for_minutes: OptionalDuration = None
    """Minutes after which they are wanted no more; default none."""
    every_minutes: Annotated[float | None, Field(gt=0), Expects("a number > 0")] = None
    """Minutes after which the same begins again; default none: once."""
    walk: CountOrZero = 0
    """Most machines by which the number changes at each poll, up or down by chance, between 0 and ``machines``;
    default 0: it stays."""
    levels: tuple[tuple[float, int], ...] = ()
    """Seconds after ``at_minutes``, and how many of ``machines`` are wanted from then on; default: all at once.
    Not a setting: of a trace."""

    def level(self, seconds: float) -> int:
        """How many are wanted at a time, chance apart."""
        since = seconds - 60 * self.at_minutes
        if since < 0:
            return 0
        if self.every_minutes is not None:
            since %= 60 * self.every_minutes
        if self.for_minutes is not None and since >= 60 * self.for_minutes:
            return 0
        if self.levels:
            number = bisect_right(self.levels, since, key=itemgetter(0))
            return self.levels[number - 1][1] if number else 0
        grown = min(1.0, since / (60 * self.ramp_minutes)) if self.ramp_minutes else 1.0
        return int(self.machines * grown)


class TracedDemand(Section):
    """Machines that a recorded HostFactory wanted: a ``demand`` that names a ``trace``."""

    trace: Text
    """The file, relative to the scenario's; as ``provisioner replay`` takes it. No default."""
    recorded: Annotated[str | None, Expects("a text")] = None
    """Only what was asked of this recorded template; default: of any."""
    template: Text = "T"
    """Of which template it is wanted here; default T."""
    at_minutes: DurationOrZero = 0.0
    """When the trace begins; default 0."""


class HostFactory(Section):
    """How HostFactory calls."""

    poll_seconds: Duration = 30.0
    """Seconds between two rounds of calls; default 30."""
    batch: CountOrZero = 100
    """Most machines in one requestMachines or requestReturnMachines; default 100; 0: any number."""
    idle_minutes: DurationOrZero = 0.0
    """Minutes that a machine is kept after it is wanted no more; default 0."""
    hourly_billing: Switch = False
    """Machines are given back only in minutes 50 to 57 of each of their hours; default false."""


class Act(StrEnum):
    """What happens at one moment."""

    PREEMPT = "preempt"
    """The place takes ``share`` of the running machines away."""
    KILL = "kill"
    """``share`` of the running machines end by themselves."""
    REMOVE = "remove"
    """A person deletes ``share`` of all machines in the place."""
    UNKNOWN_MACHINES = "unknown_machines"
    """``machines`` of somebody else appear under names that begin as ours do."""
    DOUBLES = "doubles"
    """``machines`` with our identity appear that this provisioner did not make."""
    RESTART = "restart"
    """The loop's process is killed and starts anew."""
    PAUSE = "pause"
    """The loop stands still for ``for_minutes``, in the middle of a batch if one is under way."""
    SECOND_LOOP = "second_loop"
    """Another loop takes over on the same state; the one before goes on until it finds that out."""
    LOSE_MEMORY = "lose_memory"
    """The loop's memory is deleted, and the loop is killed and starts anew."""
    OLD_MEMORY = "old_memory"
    """Memory is put back as it was ``for_minutes`` ago, and the loop is killed and starts anew."""
    LOSE_ANSWERS = "lose_answers"
    """What was published is deleted."""
    UNREADABLE_INTENT = "unreadable_intent"
    """Intent cannot be read for ``for_minutes``."""
    CLOCK = "clock"
    """The wall clock jumps by ``for_minutes``, which may be negative."""
    HF_RESTART = "hf_restart"
    """HostFactory forgets all requests and machines."""
    HF_SILENT = "hf_silent"
    """HostFactory makes no call for ``for_minutes``."""
    RETURN_STRANGERS = "return_strangers"
    """HostFactory gives back ``machines`` that were never made."""
    HOLD = "hold"
    """A person pauses the pools for ``for_minutes``."""
    DRAIN = "drain"
    """A person drains the pools for ``for_minutes``."""
    STOP_ALL = "stop_all"
    """A person stops all creates and deletes for ``for_minutes``."""
    CANCEL_REQUESTS = "cancel_requests"
    """A person cancels all requests that are open."""
    CANCEL_MACHINES = "cancel_machines"
    """A person lets HostFactory be asked for ``share`` of its machines."""


STANDSTILLS = frozenset({Act.PAUSE, Act.UNREADABLE_INTENT, Act.HF_SILENT})
"""Acts during which no request ends, or none is heard to have ended."""

END_SLACK = 900.0
"""Seconds after its deadline in which a request, or a return, has to end."""

ActField = Annotated[Act | None, Field(strict=False), Expects(f"one of {', '.join(Act)}")]


class Event(Section):
    """Something that happens: an act, or a change of pools' settings for a while."""

    at_minutes: DurationOrZero
    """When. No default."""
    pools: Annotated[tuple[Text, ...], Field(strict=False), Expects("a list of pools")] = ()
    """Where; default: in all pools."""
    change: Mapping[str, Any] = Field(default={}, strict=False)
    """Settings of these pools from now on, or for ``for_minutes``."""
    do: ActField = None
    """What happens once."""
    for_minutes: Annotated[float | None, Expects("a number")] = None
    """How long; default: for good."""
    share: Share = 1.0
    """Part of the machines; default all."""
    machines: CountOrZero = 0
    """Number of machines; default 0."""

    @property
    def at(self) -> float:
        """Seconds."""
        return 60 * self.at_minutes

    @property
    def seconds(self) -> float | None:
        """How long it lasts; None: for good."""
        return None if self.for_minutes is None else 60 * self.for_minutes


class Scenario(Section):
    """One story, played by a seed."""

    name: str
    about: Text
    """What happens, in a sentence."""
    hours: Duration = 2.0
    """How long it is; default 2."""
    judge_from_minutes: DurationOrZero = 0.0
    """From when the seconds until 50, 90 and 100 % of the demand are counted; default 0."""
    pools: Mapping[str, VirtualPool] = Field(strict=False)
    """The pools by name."""
    templates: Mapping[str, Template] = Field(strict=False)
    """The templates by id; default one, T, that may use all pools in order."""
    demand: Annotated[tuple[Demand, ...], Field(strict=False), Expects("a list")]
    """What HostFactory wants."""
    hostfactory: HostFactory = HostFactory()
    """How HostFactory calls."""
    events: Annotated[tuple[Event, ...], Field(strict=False), Expects("a list")] = ()
    """What happens."""
    settings: Mapping[str, Any] = Field(default={}, strict=False)
    """Settings of provisioner.yaml other than pools; default theirs."""
    goals: Annotated[Mapping[str, float], Expects("a number for each measure")] = Field(default={}, strict=False)
    """Most that a measure may be in any seed, by its name in the results."""
    reason: str = ""
    """The class of the failure that people have to be told; default: any."""

    @property
    def seconds(self) -> float:
        """How long it is."""
        return 3600 * self.hours

    def shows_truly(self) -> bool:
        """Every observation that succeeds shows what is there, or is late by no more than the pool's
        ``lag_seconds``."""
        late = any(pool.appears_seconds > pool.lag_seconds for pool in self.pools.values())
        observations = [pool.observations for pool in self.pools.values()]
        changed = [event.change.get("observations", Looks.COMPLETE) for event in self.events]
        slower = any("appears_seconds" in event.change for event in self.events)
        return not late and not slower and {*observations, *changed} <= {Looks.COMPLETE, Looks.FAILED}

    def ends_within(self) -> float | None:
        """Seconds in which every request has to end; None where a lost memory may not be made again in time."""
        acts = Counter(event.do for event in self.events)
        losses = acts[Act.LOSE_MEMORY] + acts[Act.OLD_MEMORY]
        if losses and not (self.shows_truly() and self._always_seen()):
            return None
        idle = sum(event.seconds or 0.0 for event in self.events if event.do in STANDSTILLS)
        limits = self.limits()
        return (1 + losses) * max(limits.request_deadline, limits.return_deadline) + idle + END_SLACK

    def _always_seen(self) -> bool:
        changed = [event.change.get("observations") for event in self.events]
        return Looks.FAILED not in [*changed, *(pool.observations for pool in self.pools.values())]

    def provisioner(self) -> Settings:
        """The configuration that the loop works by."""
        templates = {
            name: template.limits(name, template.pools, template.max_machines)
            for name, template in self.templates.items()
        }
        body = {"id": PROVISIONER, **self.settings, "pools": self.pools, "template_limits": templates}
        return Settings.model_validate(body)

    def limits(self) -> Limits:
        """What the plan takes from it."""
        return self.provisioner().limits()
