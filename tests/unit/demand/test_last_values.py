"""The last values of sources, and the numbers of machines that all sources together want."""

from __future__ import annotations

import pytest

from provisioner.demand.plan import UNDECIDED, LastValue, combine
from provisioner.demand.sources import Reading
from provisioner.names import NO_TEMPLATE
from tests.unit.demand.wishes import demand

LIMITS = {"Small": 100, "Big": 100}


def read(*wanted: dict[str, int] | str, value: LastValue | None = None) -> LastValue:
    """Return the last value after these reads. Each is the numbers that were read or, for a failed read, a text with
    the problem."""
    value = value or LastValue()
    for now, one in enumerate(wanted):
        value = value.after_failure(one) if isinstance(one, str) else value.after_reading(Reading(one), float(now))
    return value


@pytest.mark.parametrize(
    ("reads", "number"),
    [
        pytest.param([{"Small": 5}], 5, id="a number counts at once"),
        pytest.param([{"Small": 5}, "no answer", "no answer"], 5, id="a failed source keeps its last value"),
        pytest.param([{"Small": 5}, {"Small": 0}], 5, id="one zero does not count"),
        pytest.param([{"Small": 5}, {}], 5, id="a missing template is a zero"),
        pytest.param([{"Small": 5}, {"Small": 0}, {}], 0, id="two zeros count"),
        pytest.param([{"Small": 5}, {}, "no answer", {}], 5, id="a failure between two zeros begins anew"),
        pytest.param([{"Small": 5}, {}, "no answer", {}, {}], 0, id="two zeros after a failure count"),
        pytest.param([{"Small": 5}, {}, {"Small": 3}, {}], 3, id="a number between two zeros begins anew"),
        pytest.param([{"Small": 5}, {}, {}, {"Small": 2}], 2, id="a number after a zero counts at once"),
    ],
)
def test_the_last_value(reads: list[dict[str, int] | str], number: int) -> None:
    reading = read(*reads).reading
    assert reading is not None
    assert reading.wanted.get("Small", 0) == number


@pytest.mark.parametrize(
    ("reads", "words"),
    [
        pytest.param([], "source one is new", id="never read"),
        pytest.param([{}], "source one is new", id="read once"),
        pytest.param([{}, {}], None, id="read twice"),
        pytest.param([{}, {}, "refused"], "source one failed: refused", id="failed"),
        pytest.param(
            [{}, {}, "refused", {}], "source one was read only once since it failed", id="read once since a failure"
        ),
        pytest.param([{}, {}, "refused", {}, {}], None, id="read twice since a failure"),
    ],
)
def test_templates_fall_only_by_two_reads_of_a_healthy_source(
    reads: list[dict[str, int] | str], words: str | None
) -> None:
    assert combine({"one": read(*reads)}, LIMITS, demand()).frozen.get("Small") == words


def test_a_source_freezes_only_its_own_templates() -> None:
    values = {
        "good": read({"Small": 1}, {"Small": 1}, value=LastValue(frozenset({"Small"}))),
        "bad": read("no answer", value=LastValue(frozenset({"Big"}))),
    }
    wish = combine(values, LIMITS | {"Other": 9}, demand())
    assert wish.frozen == {"Big": "source bad failed: no answer", "Other": UNDECIDED}
    assert wish.wanted == {"Small": 1, "Big": 0}


@pytest.mark.parametrize(
    ("settings", "number"),
    [
        pytest.param({}, 30, id="the sum"),
        pytest.param({"combine": "max"}, 20, id="the maximum"),
        pytest.param({"templates": {"Small": {"most": 25}}}, 25, id="at most"),
        pytest.param({"templates": {"Small": {"least": 40}}}, 40, id="at least"),
        pytest.param({"templates": {"Small": {"least": 400, "most": 500}}}, 100, id="never above maxNumber"),
    ],
)
def test_several_sources(settings: dict[str, object], number: int) -> None:
    values = {"one": read({"Small": 10}), "two": read({"Small": 20}), "new": LastValue()}
    assert combine(values, LIMITS, demand(**settings)).wanted["Small"] == number


def test_a_source_decides_about_each_template_that_it_has_named() -> None:
    value = read({"Big": 2}, {}, {}, value=LastValue(frozenset({"Small"})))
    wish = combine({"one": value}, LIMITS | {"Other": 9}, demand())
    assert wish.wanted == {"Small": 0, "Big": 0}
    assert wish.frozen == {"Other": UNDECIDED}


def test_no_machine_of_a_lost_template_is_wanted() -> None:
    """If the template of a request is unknown, no machine of the request may count as wanted. `provisioner recover`
    makes such requests from answers, which do not name the template."""
    value = read({"Small": 1}, {"Small": 1}, value=LastValue(frozenset({"Small"})))
    wish = combine({"one": value}, {NO_TEMPLATE: 0}, demand())
    assert (wish.wanted, wish.frozen) == ({NO_TEMPLATE: 0}, {})


@pytest.mark.parametrize(
    ("value", "idle"),
    [
        pytest.param(LastValue(), {}, id="never read"),
        pytest.param(LastValue().after_reading(Reading({}, {"a": 5.0}), 0.0).after_failure("no"), {}, id="failed"),
        pytest.param(LastValue().after_reading(Reading({}, {"a": 5.0}), 0.0), {"a": 5.0}, id="read"),
        pytest.param(LastValue().after_reading(Reading({}), 0.0).after_failure("no"), None, id="knows no machines"),
    ],
)
def test_a_machine_is_idle_only_by_the_present_reading(value: LastValue, idle: dict[str, float] | None) -> None:
    assert combine({"one": value}, LIMITS, demand()).idle.get("Small") == idle


def test_a_template_without_a_source_has_its_least_machines() -> None:
    wish = combine({}, LIMITS, demand(templates={"Big": {"least": 2}}))
    assert wish.wanted == {"Big": 2}


def test_a_machine_is_idle_only_if_each_source_that_knows_machines_says_so() -> None:
    values = {
        "one": LastValue().after_reading(Reading({}, idle={"a": 5.0, "b": 9.0}), 0.0),
        "two": LastValue().after_reading(Reading({}, idle={"b": 7.0, "c": 1.0}), 0.0),
        "three": LastValue().after_reading(Reading({}), 0.0),
    }
    assert combine(values, LIMITS, demand()).idle["Small"] == {"b": 7.0}
    assert combine({"three": values["three"]}, LIMITS, demand()).idle == {}
