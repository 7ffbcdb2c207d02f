"""A scenario as it is written in a file: pools and their faults, HostFactory's demand, and the expected results.

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
from provisioner.schema.setting_types import (
    Cap,
    Count,
    Duration,
    DurationOrZero,
    OptionalDuration,
    Pool,
    Price,
    Switch,
    Text,
)
from provisioner.schema.validation import Expects, Section
from provisioner.settings.definitions import CountOrZero, Settings, TemplateSettings

Share = Annotated[float, Field(ge=0, le=1), Expects("a number from 0 to 1")]
Room = Annotated[int | None, Field(ge=0), Expects("a whole number ≥ 0")]


PROVISIONER = "virtual"
"""HF's provider instance."""


class ObservationMode(StrEnum):
    """The view that a pool gives to observations."""

    COMPLETE = "complete"
    FAILED = "failed"
    """The observation ends with an error."""
    EMPTY = "empty"
    """The observation claims to be complete, and holds no machine."""
    TRUNCATED = "truncated"
    """The observation claims to be complete, and ends after ``page`` machines."""
    FROZEN = "frozen"
    """The observation claims to be new, and shows the pool as it was when this mode began."""


class Calls(StrEnum):
    """The result of calls that create or delete machines."""

    ANSWERED = "answered"
    UNANSWERED = "unanswered"
    """Calls have no effect and no response."""
    DENIED = "denied"
    """Calls have no effect and fail with 403."""


ModeField = Annotated[ObservationMode, Field(strict=False), Expects(f"one of {', '.join(ObservationMode)}")]
CallsField = Annotated[Calls, Field(strict=False), Expects(f"one of {', '.join(Calls)}")]


class VirtualPool(Pool):
    """A pool of the scenario: its limits, as in provisioner.yaml, and the behaviour of its place."""

    kind: str = "virtual"
    boot_seconds: DurationOrZero = 120.0
    """Median seconds from an accepted create until the machine runs; default 120."""
    boot_p95_seconds: OptionalDuration = None
    """Seconds in which 95 of 100 machines have booted, lognormally distributed; default none: all take
    ``boot_seconds``.
    """
    boot_failures: Share = 0.0
    """Part of the machines that end instead of running; default 0."""
    hangs: Share = 0.0
    """Part of the machines that never run and report no failure; default 0."""
    dies: Share = 0.0
    """Part of the machines that run and end by themselves ``dies_after_seconds`` later; default 0."""
    dies_after_seconds: Duration = 30.0
    """Seconds that such a machine runs; default 30."""
    preempted_per_hour: Share = 0.0
    """Part of the running machines that the place takes away in an hour; default 0."""
    capacity: Room = None
    """Machines that the place has room for; default any. Further machines wait there and report the missing room."""
    queues: Switch = False
    """Machines wait for room in a queue, as in a batch system, and report no missing room; default false."""
    quota: Room = None
    """Machines that calls may create; default any. A call for one more machine is refused."""
    stop_seconds: DurationOrZero = 30.0
    """Seconds from a delete until the machine is gone; default 30."""
    remains: Switch = True
    """Machines that ended by themselves stay until they are deleted, as pods do; default true."""
    tells_why: Switch = True
    """The place reports why a machine ended; default true."""
    call_seconds: Duration = 0.15
    """Seconds that a call takes; default 0.15. With 32 calls at once this equals an API server on two processors."""
    calls_at_once: Count = 32
    """Most calls that are under way at once; default 32. Fewer while the place is slow or throttles."""
    machines_per_call: Count = 1
    """Machines that one call creates or deletes; default 1. A managed instance group takes 100 and more."""
    calls_per_second: Annotated[float | None, Field(gt=0), Expects("a number > 0")] = None
    """Calls that the place accepts in a second; default any. A further call is throttled."""
    calls: CallsField = Calls.ANSWERED
    """The result of calls; default answered."""
    lost_answers: Share = 0.0
    """Part of the calls that take effect but get no response; default 0."""
    ignored_creates: Share = 0.0
    """Part of the creates that are answered with success but make no machine; default 0."""
    ignores_deletes: Switch = False
    """Deletes are answered with success but delete no machine; default false."""
    observations: ModeField = ObservationMode.COMPLETE
    """The view that observations show; default complete."""
    page: Count = 500
    """Machines in a truncated observation; default 500."""
    appears_seconds: DurationOrZero = 0.0
    """Longest time in seconds until a created machine is listed; default 0."""
    watched: Switch = True
    """Changes wake the loop at once, as by a watch; default true. Otherwise the next observation shows them."""
    price_per_hour: Price = 1.0
    """Price of a machine for an hour; default 1."""


class Template(TemplateSettings):
    """A template that HostFactory may request, with its settings in provisioner.yaml."""

    pools: Annotated[tuple[Text, ...], Field(strict=False, min_length=1), Expects("a list of pools")]
    """The pools that make its machines, in order."""
    max_machines: Cap = None
    """HF's maxNumber; default none."""


class Demand(Section):
    """Machines of one template that HostFactory wants from a time on. Several demands add up."""

    template: Text = "T"
    """The template; default T."""
    machines: CountOrZero
    """The number of machines. No default."""
    at_minutes: DurationOrZero = 0.0
    """The start in minutes; default 0."""
    ramp_minutes: DurationOrZero = 0.0
    """Minutes in which the number grows evenly from zero; default 0, so at once."""
    for_minutes: OptionalDuration = None
    """Minutes after which the machines are no longer wanted; default none."""
    every_minutes: Annotated[float | None, Field(gt=0), Expects("a number > 0")] = None
    """Minutes after which the demand begins again; default none: once."""
    walk: CountOrZero = 0
    """Most machines by which the number changes at each poll, up or down by chance, between 0 and ``machines``; default
    0: the number stays.
    """
    levels: tuple[tuple[float, int], ...] = ()
    """Seconds after ``at_minutes``, and the number of ``machines`` wanted from then on; default: all at once.

    A trace sets this field; it is not a setting.
    """

    def level(self, seconds: float) -> int:
        """Return the number of wanted machines at a time, without the part that varies by chance."""
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
    """Path of the trace file, relative to the scenario's file, as ``provisioner replay`` reads it. No default."""
    recorded: Annotated[str | None, Expects("a text")] = None
    """Recorded template whose requests count; default: all templates."""
    template: Text = "T"
    """Template that the machines are wanted of in the scenario; default T."""
    at_minutes: DurationOrZero = 0.0
    """Start of the trace in minutes; default 0."""


class HostFactory(Section):
    """The pattern of HostFactory's calls."""

    poll_seconds: Duration = 30.0
    """Seconds between two rounds of calls; default 30."""
    batch: CountOrZero = 100
    """Most machines in a requestMachines or requestReturnMachines call; default 100; 0: any number."""
    idle_minutes: DurationOrZero = 0.0
    """Minutes that a machine is kept after it is no longer wanted; default 0."""
    hourly_billing: Switch = False
    """Machines are returned only in minutes 50 to 57 of each of their hours; default false."""


class Act(StrEnum):
    """An event that happens at one moment."""

    PREEMPT = "preempt"
    """The place takes ``share`` of the running machines away."""
    KILL = "kill"
    """``share`` of the running machines end by themselves."""
    REMOVE = "remove"
    """``share`` of all machines in the place are deleted by hand."""
    UNKNOWN_MACHINES = "unknown_machines"
    """``machines`` that are not ours appear under names that begin like ours."""
    DOUBLES = "doubles"
    """``machines`` with our identity appear that this provisioner did not make."""
    RESTART = "restart"
    """The loop's process is killed and starts anew."""
    PAUSE = "pause"
    """The loop stands still for ``for_minutes``, in the middle of a batch if one is under way."""
    SECOND_LOOP = "second_loop"
    """Another loop takes over the same state; the previous loop goes on until it reads the new epoch."""
    LOSE_MEMORY = "lose_memory"
    """The loop's memory is deleted, and the loop is killed and starts anew."""
    OLD_MEMORY = "old_memory"
    """Memory is put back as it was ``for_minutes`` ago, and the loop is killed and starts anew."""
    LOSE_ANSWERS = "lose_answers"
    """The published status is deleted."""
    UNREADABLE_INTENT = "unreadable_intent"
    """Intent cannot be read for ``for_minutes``."""
    CLOCK = "clock"
    """The wall clock jumps by ``for_minutes``, which may be negative."""
    HF_RESTART = "hf_restart"
    """HostFactory forgets all requests and machines."""
    HF_SILENT = "hf_silent"
    """HostFactory makes no call for ``for_minutes``."""
    RETURN_UNKNOWN = "return_unknown"
    """HostFactory returns ``machines`` that were never made."""
    HOLD = "hold"
    """An operator pauses the pools for ``for_minutes``."""
    DRAIN = "drain"
    """An operator drains the pools for ``for_minutes``."""
    STOP_ALL = "stop_all"
    """An operator stops all creates and deletes for ``for_minutes``."""
    CANCEL_REQUESTS = "cancel_requests"
    """An operator cancels all open requests."""
    CANCEL_MACHINES = "cancel_machines"
    """An operator cancels ``share`` of HostFactory's machines, so that HostFactory is asked to return them."""


STANDSTILLS = frozenset({Act.PAUSE, Act.UNREADABLE_INTENT, Act.HF_SILENT})
"""Acts during which no request ends, or HostFactory reads no end."""

END_SLACK = 900.0
"""Seconds after its deadline within which a request or return request has to end."""

ActField = Annotated[Act | None, Field(strict=False), Expects(f"one of {', '.join(Act)}")]


class Event(Section):
    """An event of a scenario: an act, or a change of pools' settings for a while."""

    at_minutes: DurationOrZero
    """The moment in minutes. No default."""
    pools: Annotated[tuple[Text, ...], Field(strict=False), Expects("a list of pools")] = ()
    """The affected pools; default: all."""
    change: Mapping[str, Any] = Field(default={}, strict=False)
    """Settings of these pools from now on, or for ``for_minutes``."""
    do: ActField = None
    """The act that happens once."""
    for_minutes: Annotated[float | None, Expects("a number")] = None
    """The duration in minutes; default: without end."""
    share: Share = 1.0
    """Part of the machines; default all."""
    machines: CountOrZero = 0
    """Number of machines; default 0."""

    @property
    def at(self) -> float:
        """The moment in seconds."""
        return 60 * self.at_minutes

    @property
    def seconds(self) -> float | None:
        """The duration in seconds; None: without end."""
        return None if self.for_minutes is None else 60 * self.for_minutes


class Scenario(Section):
    """A sequence of demand and events that is played with a seed."""

    name: str
    about: Text
    """A sentence that describes the scenario."""
    hours: Duration = 2.0
    """The length in hours; default 2."""
    judge_from_minutes: DurationOrZero = 0.0
    """Minute from which the seconds until 50, 90 and 100 % of the demand are counted; default 0."""
    pools: Mapping[str, VirtualPool] = Field(strict=False)
    """The pools by name."""
    templates: Mapping[str, Template] = Field(strict=False)
    """The templates by id; default one, T, that may use all pools in order."""
    demand: Annotated[tuple[Demand, ...], Field(strict=False), Expects("a list")]
    """The demand of HostFactory."""
    hostfactory: HostFactory = HostFactory()
    """The pattern of HostFactory's calls."""
    events: Annotated[tuple[Event, ...], Field(strict=False), Expects("a list")] = ()
    """The events of the scenario."""
    settings: Mapping[str, Any] = Field(default={}, strict=False)
    """Settings of provisioner.yaml other than pools; default as in provisioner.yaml."""
    goals: Annotated[Mapping[str, float], Expects("a number for each measure")] = Field(default={}, strict=False)
    """The highest allowed value of measures in any seed, by name in the results."""
    reason: str = ""
    """The class of the failure that has to be reported; default: any."""

    @property
    def seconds(self) -> float:
        """The length in seconds."""
        return 3600 * self.hours

    def is_truthful(self) -> bool:
        """Return True if successful observations show the true state, late by at most the pool's ``lag_seconds``."""
        late = any(pool.appears_seconds > pool.lag_seconds for pool in self.pools.values())
        observations = [pool.observations for pool in self.pools.values()]
        changed = [event.change.get("observations", ObservationMode.COMPLETE) for event in self.events]
        slower = any("appears_seconds" in event.change for event in self.events)
        truthful = {ObservationMode.COMPLETE, ObservationMode.FAILED}
        return not late and not slower and {*observations, *changed} <= truthful

    def ends_within(self) -> float | None:
        """Return the seconds in which every request has to end; None if a lost memory may not be rebuilt in time."""
        acts = Counter(event.do for event in self.events)
        losses = acts[Act.LOSE_MEMORY] + acts[Act.OLD_MEMORY]
        if losses and not (self.is_truthful() and self._is_always_seen()):
            return None
        idle = sum(event.seconds or 0.0 for event in self.events if event.do in STANDSTILLS)
        limits = self.limits()
        return (1 + losses) * max(limits.request_deadline_seconds, limits.return_deadline_seconds) + idle + END_SLACK

    def _is_always_seen(self) -> bool:
        changed = [event.change.get("observations") for event in self.events]
        return ObservationMode.FAILED not in [*changed, *(pool.observations for pool in self.pools.values())]

    def provisioner(self) -> Settings:
        """Return the configuration that the loop works by."""
        templates = {
            name: template.limits(name, template.pools, template.max_machines)
            for name, template in self.templates.items()
        }
        body = {"id": PROVISIONER, **self.settings, "pools": self.pools, "template_limits": templates}
        return Settings.model_validate(body)

    def limits(self) -> Limits:
        """Return the limits that the plan uses."""
        return self.provisioner().limits()
