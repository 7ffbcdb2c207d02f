"""The provisioner's metrics. Each metric has a type, a name, labels and a meaning. The name is written out in full, so
that a search finds it.

Time stamps are in epoch seconds, durations in seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Set
from functools import partial
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

from provisioner.files.version import full_version
from provisioner.loop.cycle_report import CycleResult
from provisioner.loop.wakeups import Wake
from provisioner.model import (
    BrakeReason,
    Create,
    DeleteReason,
    ErrorClass,
    HoldKind,
    Limits,
    LossCause,
    Outcome,
    PendingReason,
    Phase,
    RequestStatus,
)
from provisioner.state.refused_calls import SCRIPTS
from provisioner.telemetry.metric_collectors import CONFIGURED, CountedTable, Group, Metric, Table, timed

Operation = Literal["observe", "create", "delete"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
RESULTS = ("ok", "failed")
"""Possible results of one create or delete."""
LOGIN_REJECTIONS = ("token", "rate")
"""Reasons for which the HTTP server refuses a login: a wrong token, or a wrong token after too many from the same
client."""

Pair = tuple[str, str]
"""A pool and a template that the pool can make."""

POOL = {"pool": CONFIGURED}
PAIR = {"pool": CONFIGURED, "template": CONFIGURED}
EXPECTED_DEFERRALS = (PendingReason.WINDOW, PendingReason.CAP, PendingReason.BACKOFF, PendingReason.PAUSED)
"""Deferral reasons whose series are exported as zero from the start. The budget is left out, because few sites have
one."""


class EventMetrics(Group):
    """Metrics of Pub/Sub messages, which are exported only if a subscription is configured. The caller passes the
    values of ``pubsub_events.Worth``, because an import here would load Pub/Sub's client."""

    # fmt: off
    events = Metric(Counter, "hf_provisioner_events_total", {"worth": CONFIGURED},
        "Pub/Sub messages by their use.")
    breaks = Metric(Counter, "hf_provisioner_event_stream_breaks_total", {},
        "Pub/Sub streams that ended by themselves and were opened again.")
    # fmt: on


class Metrics(Group):
    """All metrics of the provisioner and its process, except the metrics of Pub/Sub messages."""

    # fmt: off
    # The loop
    build_info = Metric(Gauge, "hf_provisioner_build_info", {"version": ()},
        "The version that runs; always 1.")
    active = Metric(Gauge, "hf_provisioner_active", {"provisioner": ()},
        "1 once this process has run a cycle of its provisioner's loop; 0 while the process is a standby, or works on "
        "a state directory without records although machines exist.")
    cycles = Metric(Counter, "hf_provisioner_cycles_total", {"result": get_args(CycleResult)},
        "Cycles; partial: some action or pool failed.")
    cycle_duration = Metric(timed(0.01, 0.05, 0.25, 1, 3, 10), "hf_provisioner_cycle_duration_seconds", {},
        "Duration of a cycle.")
    last_success = Metric(Gauge, "hf_provisioner_last_success_timestamp_seconds", {},
        "End of the last ok cycle; begins with the start of the process.")
    config_ok = Metric(Gauge, "hf_provisioner_config_ok", {},
        "0 while a bad new configuration is refused.")
    config_differs = Metric(Table[str], "hf_provisioner_config_differs", {"file": ()},
        "1 if scripts and loop use different contents of a file of HostFactory, and the loop does not refuse the file.")
    operator_needed = Metric(Table[str], "hf_provisioner_operator_needed", {"alarm": ()},
        "Problems that an operator has to fix, by the words in capitals with which status shows them.")
    wakeups = Metric(Counter, "hf_provisioner_wakeups_total", {"source": Wake},
        "Wake-ups of the loop, by cause.")

    # Machines wanted and observed, counted again in each cycle
    desired = Metric(Table[Pair], "hf_provisioner_machines_desired", PAIR,
        "Slots that should have a machine.")
    observed = Metric(Table[tuple[str, str, Phase]], "hf_provisioner_machines",
        {**PAIR, "phase": (Phase.PENDING, Phase.RUNNING)}, "Machines observed.")
    deferred = Metric(Table[tuple[str, str, PendingReason]], "hf_provisioner_machines_deferred",
        {**PAIR, "reason": EXPECTED_DEFERRALS}, "Machines that are wanted, missing and held back.")
    refused = Metric(Table[tuple[str, str, ErrorClass]], "hf_provisioner_machines_refused",
        {"pool": (), "template": (), "error": ()},
        "Machines that are wanted and wait because their place refuses to create them.")
    window = Metric(Table[str], "hf_provisioner_window", POOL,
        "Machines that may be pending now, all templates together.")
    oldest_unmet = Metric(partial(Table[str], empty=lambda: math.nan), "hf_provisioner_oldest_unmet_timestamp_seconds",
        {"template": CONFIGURED}, "Time at which the oldest open request was read; NaN if there is none.")
    brake = Metric(Table[tuple[str, BrakeReason]], "hf_provisioner_brake_engaged",
        {"pool": [""], "reason": BrakeReason}, "1 while orphans are not deleted; an empty pool means all pools.")
    holds = Metric(Table[tuple[HoldKind, str]], "hf_provisioner_hold", {"hold": (), "pool": ()},
        "Holds that operators set; an empty pool means all pools, or a cancel that is not done yet.")
    unlisted = Metric(Table[str], "hf_provisioner_machines_unlisted", POOL,
        "Machines of ours that run and were in no list of HostFactory for 24 h.")
    stuck = Metric(Table[str], "hf_provisioner_machines_stuck", POOL,
        "Machines of ours that still exist a minute after the end of their grace period.")
    down = Metric(Table[str], "hf_provisioner_machines_down", POOL,
        "Machines that were reported to HostFactory and do not run now.")

    queued = Metric(Table[str], "hf_provisioner_machines_queued", {"pool": ()},
        "Machines that their place holds in a queue.")
    queued_since = Metric(Table[str], "hf_provisioner_oldest_queued_timestamp_seconds", {"pool": ()},
        "Time at which the queued machine with the longest wait was requested.")

    # Ends of slots
    set_aside = Metric(Gauge, "hf_provisioner_slots_set_aside", {},
        "Slots for which the program requested a forbidden transition.")
    startup = Metric(timed(5, 30, 60, 180, 600), "hf_provisioner_machine_startup_seconds", {"pool": (), "template": ()},
        "Seconds from the reading of a request until its machine runs.")
    shutdown = Metric(timed(10, 60, 300, 3600), "hf_provisioner_machine_shutdown_seconds", {"pool": ()},
        "Seconds from a machine's return until it is gone.")
    lost = Metric(Counter, "hf_provisioner_machines_lost_total",
        {**PAIR, "cause": set(LossCause) - {LossCause.EXPIRES}},  # loops expect this end; no alert uses it
        "Machines that succeeded and then vanished, or that HostFactory returned because their end was announced.")
    failed = Metric(Counter, "hf_provisioner_slots_failed_total", {"pool": (), "template": (), "error": ()},
        "Slots that failed.")
    refusals = Metric(Counter, "hf_provisioner_refusals_total",
        {**POOL, "error": [error for error in ErrorClass if error.is_refusal]},
        "Machines that their place refused, whatever the end of their slots.")

    # Observations of pools, and actions in them
    observation = Metric(partial(Table[str], empty=lambda: time.time()), "hf_provisioner_observation_timestamp_seconds",
        POOL, "Time of the last complete observation; begins with the start of the process.")
    creates = Metric(Counter, "hf_provisioner_creates_total", {**POOL, "result": RESULTS},
        "Machines in create calls, by result.")
    deletes = Metric(Counter, "hf_provisioner_deletes_total", {**POOL, "reason": DeleteReason, "result": RESULTS[:1]},
        "Machines in delete calls, by result.")
    calls = Metric(timed(0.1, 1, 10), "hf_provisioner_backend_call_seconds", {"pool": (), "operation": ()},
        "Duration of an observation of a pool, or of a batch of creates or deletes.")
    errors = Metric(Counter, "hf_provisioner_backend_errors_total",
        {**POOL, "operation": OPERATIONS, "error": [ErrorClass.DENIED]},
        "Observations, creates and deletes that failed.")

    # HostFactory's calls, state files, and the HTTP server
    last_call = Metric(Table[str], "hf_provisioner_hostfactory_last_call_timestamp_seconds", {"script": ()},
        "Time at which HostFactory last polled a request (getRequestStatus) or listed its hosts (getReturnRequests).")
    refused_calls = Metric(CountedTable[str], "hf_provisioner_script_calls_refused_total", {"script": SCRIPTS},
        "Calls of HostFactory that a script refused because of a local problem, as the state directory records them.")
    requests = Metric(Table[tuple[str, RequestStatus]], "hf_provisioner_requests",
        {"kind": ("request", "return"), "status": RequestStatus}, "Requests and returns in the state files.")
    lock_wait = Metric(timed(0.001, 0.01, 0.1, 1, 10), "hf_provisioner_store_lock_wait_seconds", {},
        "Time for which the loop waits for the lock of intent.json.")
    bytes = Metric(Table[str], "hf_provisioner_store_bytes", {"file": ()},
        "Size of a state file.")
    rejections = Metric(Counter, "hf_provisioner_server_rejections_total", {"reason": ()},
        "Logins, requests and connections that the HTTP server turned away.")

    # Usage and costs
    seconds = Metric(CountedTable[str], "hf_provisioner_machine_seconds_total", {"pool": ()},
        "Seconds for which machines existed, summed over all machines, since the count of usage began.")
    per_hour = Metric(Table[tuple[()]], "hf_provisioner_cost_per_hour", {},
        "Cost per hour of the machines that exist.")
    month = Metric(Table[tuple[()]], "hf_provisioner_cost_this_month", {},
        "Cost of all machines in this calendar month (UTC).")
    budget = Metric(Table[str], "hf_provisioner_budget", {"per": ()},
        "Configured limit of the machines' cost in an hour or in a month.")

    # fmt: on

    def __init__(self, registry: CollectorRegistry, provisioner: str = "") -> None:
        """Register the metrics. ``provisioner``: the id by which alerts distinguish several provisioners in one
        Prometheus."""
        super().__init__(registry)
        ProcessCollector(registry=registry)
        self.build_info.labels(full_version()).set(1)
        self._active = self.active.labels(provisioner)
        self.last_success.set(time.time())
        self.config_ok.set(1)
        self._limits = Limits("", {}, {})
        self._used: frozenset[Pair] = frozenset()

    def configure(self, limits: Limits) -> None:
        """Export the series of all pools and templates in ``limits`` as zero until they have values."""
        if limits is not self._limits:
            self._limits = limits
            self._begin_configured()

    def use_pairs(self, pairs: Set[Pair]) -> None:
        """Export the series of ``pairs``, as well as the series of the configured pairs. Each of ``pairs`` is a pool
        and a template of which the pool has, or had, machines."""
        if not pairs <= self._used:
            self._used |= pairs
            self._begin_configured()

    def expect_logins(self) -> None:
        """Export the series of failed logins as zero."""
        for reason in LOGIN_REJECTIONS:
            self.rejections.labels(reason)

    def count_cycle(self, result: CycleResult, seconds: float, ended: float, *, is_active: bool = True) -> None:
        """Count a cycle. ``seconds``: its duration. ``ended``: its end in epoch seconds. ``is_active``: True if this
        process is the active loop, False if it is a standby."""
        self._active.set(is_active)
        self.cycles.labels(result).inc()
        self.cycle_duration.observe(seconds)
        if result == "ok":
            self.last_success.set(ended)

    def count_outcome(self, outcome: Outcome) -> None:
        """Count a create or delete, by its result."""
        result, action = RESULTS[outcome.failure is not None], outcome.action
        if isinstance(action, Create):
            self.creates.labels(action.pool, result).inc()
        else:
            self.deletes.labels(action.pool, action.reason, result).inc()

    def _begin_configured(self) -> None:
        # A template with many pools fills its first pool first, and most of its other pools are never used. So only the
        # first pool's series begin as zero.
        pairs = [
            (pool, template.id)
            for template in self._limits.templates.values()
            for pool in template.pools
            if pool == template.pools[0] or (pool, template.id) in self._used
        ]
        pools, ids = ([(name,) for name in names] for names in (self._limits.pools, self._limits.templates))
        self._begin({("pool",): pools, ("template",): ids, ("pool", "template"): pairs})
