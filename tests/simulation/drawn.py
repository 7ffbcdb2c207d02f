"""Small random scenarios, with any combination of settings and events that a user could write.

The possible values come from the types of the scenario's fields. ``test_search.py`` fails if a setting or an act has no
values here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from hypothesis import strategies as st

from provisioner.lab.virtual.scenario import Act, Calls, Demand, HostFactory, ObservationMode, Template, VirtualPool
from provisioner.schema.setting_types import Pool

Body = dict[str, Any]
"""A scenario, or a part of a scenario, as it stands in YAML."""

Values = Mapping[str, Sequence[object]]
"""The possible values of settings, by name."""

HOURS = 1.25
"""Trouble ends within half an hour; the rest of the run is longer than all deadlines together."""

MACHINES = 16
"""Most machines of one demand: a run takes a third of a second at most."""

SHORT: Body = {
    "retention_hours": 0.1,
    "backoff": {"last_seconds": 300.0},
    "request_deadline_minutes": 20.0,
    "return_deadline_minutes": 20.0,
    "cancel_after_minutes": 8.0,
}
"""Settings of provisioner.yaml by which half an hour is a long time."""

GIVEN: Mapping[type, Values] = {
    VirtualPool: {
        "max_machines": (1, 4, 12),
        "max_machines_total": (1, 6, 12),
        "max_pending": (1, 3, 10),
        "initial_window": (1, 3, 10),
        "boot_deadline_seconds": (60.0, 300.0),
        "spill_after_seconds": (10.0, 60.0),
        "lag_seconds": (10.0, 100.0),
        "early_loss_seconds": (0.0, 30.0),
        "mass_loss_seconds": (0.0, 30.0, 90.0),
        "observe_seconds": (10.0, 50.0),
        "boot_seconds": (0.0, 20.0, 90.0, 240.0),
        "boot_p95_seconds": (300.0, 700.0),
        "dies_after_seconds": (1.0, 200.0),
        "capacity": (0, 3, 12),
        "quota": (0, 3, 12),
        "stop_seconds": (0.0, 100.0, 400.0),
        "call_seconds": (0.01, 5.0, 40.0),
        "calls_at_once": (1, 3),
        "machines_per_call": (7, 100),
        "calls_per_second": (0.2, 3.0),
        "page": (1, 8),
        "appears_seconds": (5.0, 90.0),
    },
    Template: {
        "max_machines": (1, 6),
        "straggler_seconds": (0.0, 30.0),
        "tries": (0, 1),
        "max_lifetime_seconds": (600.0,),
    },
    HostFactory: {"poll_seconds": (10.0, 120.0), "batch": (0, 3), "idle_minutes": (2.0,)},
    Demand: {
        "at_minutes": (5.0, 20.0),
        "ramp_minutes": (10.0,),
        "for_minutes": (1.0, 4.0, 15.0),
        "every_minutes": (10.0,),
        "walk": (3,),
    },
}
"""Values of settings whose types leave their values open."""

ELSEWHERE: Mapping[type, frozenset[str]] = {
    VirtualPool: frozenset(
        {"name", "kind", "announce_seconds", "down_seconds", "least_life_seconds", "require_dns", "price_per_hour"}
    ),
    Template: frozenset({"pools", "price_per_hour"}),
    HostFactory: frozenset(),
    Demand: frozenset({"template", "machines", "levels"}),
}
"""Settings that are drawn elsewhere, or have no effect in virtual time."""

RULES: Values = {
    "request_deadline_minutes": (15.0, 60.0),
    "return_deadline_minutes": (5.0, 60.0),
    "orphan_grace_minutes": (1.0,),
    "cancel_after_minutes": (3.0, 30.0),
    "retention_hours": (0.0, 24.0),
    "loop": ({"act_seconds": 0.5}, {"floor_seconds": 3.0}),
}
"""Settings of provisioner.yaml other than pools."""

ACTS: Mapping[Act, Values] = {
    Act.PREEMPT: {"share": (0.1, 0.5, 1.0)},
    Act.KILL: {"share": (0.1, 0.5, 1.0)},
    Act.REMOVE: {"share": (0.1, 0.5, 1.0)},
    Act.UNKNOWN_MACHINES: {"machines": (1, 8)},
    Act.DOUBLES: {"machines": (1, 8)},
    Act.RESTART: {},
    Act.PAUSE: {"for_minutes": (0.2, 2.0, 10.0)},
    Act.SECOND_LOOP: {},
    Act.LOSE_MEMORY: {},
    Act.OLD_MEMORY: {"for_minutes": (1.0, 10.0)},
    Act.LOSE_ANSWERS: {},
    Act.UNREADABLE_INTENT: {"for_minutes": (0.2, 2.0, 10.0)},
    Act.CLOCK: {"for_minutes": (-1440.0, -3.0, 3.0, 100.0)},
    Act.HF_RESTART: {},
    Act.HF_SILENT: {"for_minutes": (0.2, 5.0, 10.0)},
    Act.RETURN_UNKNOWN: {"machines": (1, 8)},
    Act.HOLD: {"for_minutes": (0.2, 2.0, 10.0)},
    Act.DRAIN: {"for_minutes": (0.2, 2.0, 10.0)},
    Act.STOP_ALL: {"for_minutes": (0.2, 2.0, 10.0)},
    Act.CANCEL_REQUESTS: {},
    Act.CANCEL_MACHINES: {"share": (0.1, 0.5, 1.0)},
}
"""The settings that each act needs."""

KEEP_AWAY = frozenset({
    "boot_failures", "hangs", "dies", "preempted_per_hour", "capacity", "quota", "calls", "calls_per_second",
    "lost_answers", "ignored_creates", "ignores_deletes", "observations", "appears_seconds", "paused",
    "max_machines", "max_machines_total", "max_pending", "boot_deadline_seconds", "max_lifetime_seconds",
    "every_minutes", "walk", "hourly_billing",
})  # fmt: skip
"""Settings that may keep machines away for ever, or let them come and go for ever."""


@cache
def open_values(model: type) -> Values:
    """Return the possible values of each setting of a part of the scenario; empty if none are known."""
    fields: Mapping[str, Any] = vars(model)["__pydantic_fields__"]
    values = {name: GIVEN[model].get(name) or _typed(field) for name, field in fields.items()}
    return {name: some for name, some in values.items() if name not in ELSEWHERE[model]}


def _typed(field: Any) -> Sequence[object]:
    if field.annotation is bool:
        return (True, False)
    if field.annotation in (ObservationMode, Calls):
        return tuple(map(str, field.annotation))
    is_share = field.annotation is float and any(getattr(bound, "le", None) == 1 for bound in field.metadata)
    return (0.05, 0.5, 1.0) if is_share else ()


def values(model: type, *, heals: bool) -> Values:
    """Return the possible values of each setting. If ``heals``, leave out settings that may keep some machines from
    running for ever."""
    return {name: some for name, some in open_values(model).items() if not (heals and name in KEEP_AWAY)}


def some_of(values: Values, most: int, *, least: int = 0) -> st.SearchStrategy[Body]:
    """Draw a few of these settings, each with one of its values."""
    one = st.sampled_from(sorted(values)).flatmap(lambda name: st.tuples(st.just(name), st.sampled_from(values[name])))
    return st.lists(one, min_size=least, max_size=most, unique_by=lambda pair: pair[0]).map(dict)


def all_of(values: Values) -> st.SearchStrategy[Body]:
    """Draw all of these settings, each with one of its values."""
    return st.fixed_dictionaries({name: st.sampled_from(some) for name, some in values.items()})


MOMENTS = st.one_of(
    st.integers(0, 60).map(lambda number: number / 20),
    st.integers(3, 15).map(float),
)
"""Minutes, often while the first machines boot."""


BEHAVIOUR = {name: some for name, some in open_values(VirtualPool).items() if name not in Pool.model_fields}
"""The changes of a place's behaviour for a while."""

WHILE: Sequence[Body] = ({"for_minutes": 2.0}, {"for_minutes": 15.0})


@st.composite
def events(draw: st.DrawFn, pools: Sequence[str], *, heals: bool) -> Body:
    """Draw an event that begins in the first 15 minutes of the run.

    If ``heals``, each change of a pool ends after at most 15 minutes. Otherwise a change may last until the end of the
    run.
    """
    event: Body = {"at_minutes": draw(MOMENTS)}
    if draw(st.booleans()):
        change = draw(some_of(BEHAVIOUR, 2, least=1))
        event |= {"change": change} | draw(st.sampled_from(WHILE if heals else (*WHILE, {})))
    else:
        act = draw(st.sampled_from(Act))
        event |= {"do": str(act)} | draw(all_of(ACTS[act]))
    if len(pools) > 1 and draw(st.booleans()):
        event["pools"] = [draw(st.sampled_from(pools))]
    return event


@st.composite
def bodies(draw: st.DrawFn, *, heals: bool = False) -> Body:
    """Draw a scenario as a YAML file would contain it. If ``heals``, all trouble ends early enough for the wanted
    machines to run."""
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    templates = ["T", "U"][: draw(st.integers(1, 2))]
    return {
        "about": "Drawn.",
        "hours": HOURS,
        "pools": {name: draw(some_of(values(VirtualPool, heals=heals), 4)) for name in names},
        "templates": {
            name: {
                "pools": draw(st.lists(st.sampled_from(names), min_size=1, unique=True)),
                **draw(some_of(values(Template, heals=heals), 1)),
            }
            for name in templates
        },
        "demand": [
            {
                "template": name,
                "machines": draw(st.integers(1, MACHINES)),
                **draw(some_of(values(Demand, heals=heals), 2)),
            }
            for name in templates
        ],
        "hostfactory": draw(some_of(values(HostFactory, heals=heals), 1)),
        "events": draw(st.lists(events(names, heals=heals), max_size=5)),
        "settings": SHORT | draw(some_of(RULES, 2)),
    }
