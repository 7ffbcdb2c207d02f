"""A scenario as it is written in a file: pools and their faults, HostFactory's demand, and the expected results.

A duration has the unit that its name says. The time of a scenario begins at 0. The functions are pure.
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
"""Name of HF's provider instance in every scenario."""


class ObservationMode(StrEnum):
    """Modes in which a pool is observed. In every mode except ``complete``, an observation fails, lacks machines or
    shows an old state."""

    COMPLETE = "complete"
    FAILED = "failed"
    """The observation fails with an error."""
    EMPTY = "empty"
    """The observation claims to be complete, and contains no machine."""
    TRUNCATED = "truncated"
    """The observation claims to be complete, and contains only the first ``page`` machines."""
    FROZEN = "frozen"
    """The observation claims to be new, and shows the pool as it was when this mode began."""


class Calls(StrEnum):
    """The effect of every call that creates or deletes machines."""

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
    """Seconds in which 95 of 100 machines have booted, in a lognormal distribution. Default none: all machines take
    ``boot_seconds``."""
    boot_failures: Share = 0.0
    """Fraction of the machines that end instead of running; default 0."""
    hangs: Share = 0.0
    """Fraction of the machines that never run and report no failure; default 0."""
    dies: Share = 0.0
    """Fraction of the machines that run, and end by themselves after ``dies_after_seconds``; default 0."""
    dies_after_seconds: Duration = 30.0
    """Seconds for which a machine of the fraction ``dies`` runs; default 30."""
    preempted_per_hour: Share = 0.0
    """Fraction of the running machines that the place takes away in an hour; default 0."""
    capacity: Room = None
    """Machines for which the place has room; default any number. Further machines wait in the place and report a
    stock-out."""
    queues: Switch = False
    """If true, further machines wait for room in a queue, as in a batch system, and report no stock-out; default
    false."""
    quota: Room = None
    """Maximum number of machines that may exist in the place; default any number. A create of a further machine is
    refused."""
    stop_seconds: DurationOrZero = 30.0
    """Seconds from a delete until the machine is gone; default 30."""
    leftovers: Switch = True
    """If true, the leftovers of machines that ended by themselves stay until they are deleted, as the leftovers of pods
    do; default true."""
    tells_why: Switch = True
    """If true, the place reports why a machine ended; default true."""
    call_seconds: Duration = 0.15
    """Seconds that a call takes; default 0.15. With 32 concurrent calls, the default gives the speed of an API server
    on two processors."""
    calls_at_once: Count = 32
    """Maximum number of concurrent calls; default 32. The number is lower while the place is slow or throttles
    calls."""
    machines_per_call: Count = 1
    """Machines that one call creates or deletes; default 1. A managed instance group takes 100 and more."""
    calls_per_second: Annotated[float | None, Field(gt=0), Expects("a number > 0")] = None
    """Calls that the place accepts in a second; default any number. A further call is throttled."""
    calls: CallsField = Calls.ANSWERED
    """The effect of every call that creates or deletes machines; default answered."""
    lost_answers: Share = 0.0
    """Fraction of the calls that take effect, but whose response is lost; default 0."""
    ignored_creates: Share = 0.0
    """Fraction of the creates that are answered with success, but make no machine; default 0."""
    ignores_deletes: Switch = False
    """If true, deletes are answered with success, but delete no machine; default false."""
    observations: ModeField = ObservationMode.COMPLETE
    """The kind of the pool's observations; default complete."""
    page: Count = 500
    """Number of machines in a truncated observation; default 500."""
    appears_seconds: DurationOrZero = 0.0
    """Seconds from a create until observations list the machine; default 0."""
    watched: Switch = True
    """If true, changes wake the loop at once, as a watch does; default true. If false, the loop sees changes at the
    next observation."""
    price_per_hour: Price = 1.0
    """Cost of a machine for an hour; default 1."""


class Template(TemplateSettings):
    """A template that HostFactory may request, with its settings in provisioner.yaml."""

    pools: Annotated[tuple[Text, ...], Field(strict=False, min_length=1), Expects("a list of pools")]
    """The pools that can make machines of the template, in the order of preference. No default."""
    max_machines: Cap = None
    """HF's maxNumber; default none."""


class Demand(Section):
    """A number of machines of one template that HostFactory wants from a time on. Several demands are added up."""

    template: Text = "T"
    """The template; default T."""
    machines: CountOrZero
    """The number of machines. No default."""
    at_minutes: DurationOrZero = 0.0
    """The start of the demand in minutes; default 0."""
    ramp_minutes: DurationOrZero = 0.0
    """Minutes in which the number grows evenly from zero; default 0: the whole number at once."""
    for_minutes: OptionalDuration = None
    """Minutes after the start at which the machines are no longer wanted; default none: they stay wanted."""
    every_minutes: Annotated[float | None, Field(gt=0), Expects("a number > 0")] = None
    """Minutes from one start of the demand to its next start; default none: the demand starts once."""
    walk: CountOrZero = 0
    """Maximum number of machines by which the number changes at random at each poll; default 0: the number does not
    change at random. The number stays between 0 and ``machines``."""
    levels: tuple[tuple[float, int], ...] = ()
    """Pairs: seconds after ``at_minutes``, and number of ``machines`` wanted from then on. Empty: all machines at once.

    The reader of a trace sets this field. A scenario file cannot set it.
    """

    def level(self, seconds: float) -> int:
        """Return the number of wanted machines at a time in seconds. The random changes of the demand are left out."""
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
    """A demand that is computed from a recorded ``trace`` of HostFactory's calls."""

    trace: Text
    """Path of the trace, relative to the scenario's file. The file has a format that ``provisioner replay`` reads. No
    default."""
    recorded: Annotated[str | None, Expects("a text")] = None
    """Template of the recording whose requests count; default: all templates."""
    template: Text = "T"
    """Template of the scenario whose machines this demand wants; default T."""
    at_minutes: DurationOrZero = 0.0
    """Minute of the scenario at which the trace begins; default 0."""


class HostFactory(Section):
    """The pattern of HostFactory's calls."""

    poll_seconds: Duration = 30.0
    """Seconds between two rounds of calls; default 30."""
    batch: CountOrZero = 100
    """Maximum number of machines in a call of requestMachines or requestReturnMachines; default 100; 0: any number."""
    idle_minutes: DurationOrZero = 0.0
    """Minutes for which HostFactory keeps a machine that is no longer wanted; default 0."""
    hourly_billing: Switch = False
    """If true, HostFactory returns a machine only in minutes 50 to 57 of each hour, counted from the moment at which
    HostFactory got the machine; default false."""


class Act(StrEnum):
    """Acts: events that happen at one moment, unlike changes of settings, which can last."""

    PREEMPT = "preempt"
    """The place takes away ``share`` of the running machines."""
    KILL = "kill"
    """``share`` of the running machines end by themselves."""
    REMOVE = "remove"
    """Another program deletes ``share`` of all machines in the place."""
    UNKNOWN_MACHINES = "unknown_machines"
    """``machines`` machines that are not ours appear. Their names begin like the names of our machines."""
    DOUBLES = "doubles"
    """Another program makes ``machines`` machines with our identity."""
    RESTART = "restart"
    """The loop is killed, and starts again."""
    PAUSE = "pause"
    """The loop's process stops for ``for_minutes``. A batch may be under way."""
    SECOND_LOOP = "second_loop"
    """A second loop takes over the state. The first loop goes on until it reads the new epoch."""
    LOSE_MEMORY = "lose_memory"
    """The loop's memory is deleted, and the loop is killed and starts again."""
    OLD_MEMORY = "old_memory"
    """An old memory, of ``for_minutes`` ago, is restored, and the loop is killed and starts again."""
    LOSE_ANSWERS = "lose_answers"
    """The published answers are deleted."""
    UNREADABLE_INTENT = "unreadable_intent"
    """Intent cannot be read for ``for_minutes``."""
    CLOCK = "clock"
    """The wall clock jumps by ``for_minutes``, which may be negative."""
    HF_RESTART = "hf_restart"
    """HostFactory forgets all requests and machines."""
    HF_SILENT = "hf_silent"
    """HostFactory makes no call for ``for_minutes``."""
    RETURN_UNKNOWN = "return_unknown"
    """HostFactory returns ``machines`` machines that were never made."""
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
"""Acts during which requests cannot end, or HostFactory cannot read their ends."""

END_SLACK = 900.0
"""Seconds after its deadline within which a request or return request has to end."""

ActField = Annotated[Act | None, Field(strict=False), Expects(f"one of {', '.join(Act)}")]


class Event(Section):
    """An event of a scenario: an act (``do``), or a ``change`` of the settings of pools."""

    at_minutes: DurationOrZero
    """The time of the event in minutes. No default."""
    pools: Annotated[tuple[Text, ...], Field(strict=False), Expects("a list of pools")] = ()
    """The pools that the event concerns; default: all."""
    change: Mapping[str, Any] = Field(default={}, strict=False)
    """New settings of the pools, in effect for ``for_minutes``."""
    do: ActField = None
    """The act of the event; default none: the event is a ``change``."""
    for_minutes: Annotated[float | None, Expects("a number")] = None
    """The duration in minutes; default: until the end of the run."""
    share: Share = 1.0
    """Fraction of the machines that the act concerns; default 1, for all."""
    machines: CountOrZero = 0
    """Number of machines that the act concerns; default 0."""

    @property
    def at(self) -> float:
        """Return the time of the event in seconds."""
        return 60 * self.at_minutes

    @property
    def seconds(self) -> float | None:
        """Return the duration in seconds; None: until the end of the run."""
        return None if self.for_minutes is None else 60 * self.for_minutes


class Scenario(Section):
    """Pools, demand and events, which are played with a seed."""

    name: str
    about: Text
    """A sentence that describes the scenario. No default."""
    hours: Duration = 2.0
    """The length in hours; default 2."""
    judge_from_minutes: DurationOrZero = 0.0
    """Minute from which the measures t50, t90, t100 and t90_running count their seconds; default 0."""
    pools: Mapping[str, VirtualPool] = Field(strict=False)
    """The pools by name."""
    templates: Mapping[str, Template] = Field(strict=False)
    """The templates by id; default one template T that may use all pools, in their order."""
    demand: Annotated[tuple[Demand, ...], Field(strict=False), Expects("a list")]
    """The demand of HostFactory."""
    hostfactory: HostFactory = HostFactory()
    """The pattern of HostFactory's calls."""
    events: Annotated[tuple[Event, ...], Field(strict=False), Expects("a list")] = ()
    """The events of the scenario."""
    settings: Mapping[str, Any] = Field(default={}, strict=False)
    """Settings of provisioner.yaml except the pools; default those of provisioner.yaml."""
    goals: Annotated[Mapping[str, float], Expects("a number for each measure")] = Field(default={}, strict=False)
    """The highest allowed value of measures, by measure. The limit applies to every seed."""
    reason: str = ""
    """The class of failure that has to be reported as a reason for missing machines; default: no class has to be
    reported."""

    @property
    def seconds(self) -> float:
        """Return the length in seconds."""
        return 3600 * self.hours

    def is_truthful(self) -> bool:
        """Return True if every successful observation shows the true state. A delay up to the pool's ``lag_seconds`` is
        allowed."""
        late = any(pool.appears_seconds > pool.lag_seconds for pool in self.pools.values())
        observations = [pool.observations for pool in self.pools.values()]
        changed = [event.change.get("observations", ObservationMode.COMPLETE) for event in self.events]
        slower = any("appears_seconds" in event.change for event in self.events)
        truthful = {ObservationMode.COMPLETE, ObservationMode.FAILED}
        return not late and not slower and {*observations, *changed} <= truthful

    def ends_within(self) -> float | None:
        """Return the seconds within which every request has to end; None if requests have no such limit.

        Requests have no limit if the loop may fail to rebuild a lost memory in time.
        """
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
        """Return the settings with which the loop runs."""
        templates = {
            name: template.limits(name, template.pools, template.max_machines)
            for name, template in self.templates.items()
        }
        body = {"id": PROVISIONER, **self.settings, "pools": self.pools, "template_limits": templates}
        return Settings.model_validate(body)

    def limits(self) -> Limits:
        """Return the limits that the plan uses."""
        return self.provisioner().limits()
