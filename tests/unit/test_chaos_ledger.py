"""The chaos ledger is fed histories, sound and broken: it names the law of each that is broken, and of no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from provisioner.backends.gke.pods import ID_LABEL, REQUEST_LABEL
from provisioner.simulator.cloud import MODES
from tests.chaos import monkey
from tests.chaos.ledger import PROVISIONER, STILL_WELL, Ledger
from tests.simulation.laws import Law
from tests.support.hostfactory.provider import Called

POOL, REQUEST, RETURN = "symphony", "abcdefghij", "ret-abcdefghij"
FIRST, SECOND = f"hf-{REQUEST}-000000", f"hf-{REQUEST}-000001"
OURS = {ID_LABEL: PROVISIONER, REQUEST_LABEL: REQUEST}
LATER = 1e12
"""Epoch seconds after anything that a test does."""


class Story:
    """One history, told to a ledger line by line."""

    def __init__(self) -> None:
        self.ledger = Ledger({POOL: 1})

    def call(self, script: str, document: dict[str, Any], printed: Any, *, code: int = 0, killed: bool = False) -> None:
        text = printed if isinstance(printed, str) else json.dumps(printed) + "\n"
        self.ledger.ends(self.ledger.begins(script, document), Called(code, text, ""), killed=killed)

    def request(self, count: int = 1) -> None:
        document = {"template": {"templateId": "Pods", "machineCount": count}}
        self.call("requestMachines", document, {"requestId": REQUEST})
        self.ledger.records({REQUEST: ("Pods", count)}, [])

    def told(self, *names: str, status: str = "complete", id_: str = REQUEST) -> None:
        succeeded = [
            {"machineId": name, "name": name, "result": "succeed", "privateIpAddress": "10.0.0.1", "launchtime": 1}
            for name in names
        ]
        entry = {"requestId": id_, "status": status, "message": "", "machines": succeeded}
        self.call("getRequestStatus", {"requests": [{"requestId": id_}]}, {"requests": [entry]})

    def give_back(self, *names: str) -> None:
        self.call("requestReturnMachines", {"machines": [{"name": name} for name in names]}, {"requestId": RETURN})
        self.ledger.records({}, [RETURN])

    def made(self, name: str, *beside: str) -> None:
        held = [[one, OURS] for one in (name, *beside)]
        self.ledger.happens({"what": "made", "at": 0.0, "name": name, "pool": POOL, "labels": OURS, "held": held})

    def deleted(self, name: str, labels: dict[str, str] = OURS) -> None:
        event = {"what": "delete", "at": LATER, "name": name, "pool": POOL, "labels": labels, "phase": "running"}
        self.ledger.happens(event)

    def struck(self, mode: str, *targets: str) -> None:
        self.ledger.happens({"what": "struck", "at": 0.0, "mode": mode, "targets": list(targets)})

    def has(self) -> None:
        """HF has one machine."""
        self.request()
        self.made(FIRST)
        self.told(FIRST)


def machine(name: str, phase: str = "running") -> dict[str, Any]:
    return {"name": name, "pool": POOL, "phase": phase, "labels": OURS}


# --- broken -----------------------------------------------------------------------------------------------------------


def a_terminal_answer_changes(story: Story) -> None:
    story.has()
    story.told(status="complete_with_error")


def a_name_is_made_twice(story: Story) -> None:
    story.has()
    story.made(FIRST)


def a_taken_machine_that_hf_has_is_made_again(story: Story) -> None:
    story.has()
    story.ledger.taken.add(FIRST)
    story.made(FIRST)


def a_create_that_hung_excuses_no_other_name(story: Story) -> None:
    story.has()
    story.struck("hang", POOL, SECOND, "pods.create")
    story.made(FIRST)


def what_hf_has_is_deleted(story: Story) -> None:
    story.has()
    story.deleted(FIRST)


def what_hf_has_forgotten_is_deleted(story: Story) -> None:
    story.has()
    story.ledger.restarted()
    story.deleted(FIRST)


def a_list_that_lags_costs_a_machine(story: Story) -> None:
    story.has()
    story.struck("list_lag", FIRST)
    story.deleted(FIRST)


def a_foreign_pod_is_deleted(story: Story) -> None:
    story.deleted(SECOND, {ID_LABEL: "another"})


def a_healthy_machine_is_reported_lost(story: Story) -> None:
    story.has()
    story.ledger.reclaims([FIRST], {FIRST: "running"})


def more_machines_than_the_cap(story: Story) -> None:
    story.request(2)
    story.made(FIRST)
    story.made(SECOND, FIRST)


def more_machines_than_were_asked_for(story: Story) -> None:
    story.request(1)
    story.told(FIRST, SECOND)


def complete_with_less(story: Story) -> None:
    story.request(2)
    story.told(FIRST)


def a_machine_of_another_request(story: Story) -> None:
    story.request()
    story.told("hf-bbbbbbbbbb-000000")


def an_id_that_is_not_recorded(story: Story) -> None:
    document = {"template": {"templateId": "Pods", "machineCount": 1}}
    story.call("requestMachines", document, {"requestId": REQUEST})
    story.ledger.wound_up()


def a_refusal_that_recorded(story: Story) -> None:
    story.call("requestMachines", {"template": {"templateId": "Pods", "machineCount": 1}}, "No.\n", code=1)
    story.ledger.records({REQUEST: ("Pods", 1)}, [])
    story.ledger.wound_up()


def two_lines_for_a_refusal(story: Story) -> None:
    story.call("getRequestStatus", {"requests": []}, "No.\nNo.\n", code=1)


def a_killed_script_that_nobody_killed(story: Story) -> None:
    story.call("getRequestStatus", {"requests": []}, "", code=-9)


def an_answer_out_of_form(story: Story) -> None:
    story.call("getRequestStatus", {"requests": []}, {"requests": [{"requestId": REQUEST}]})


BROKEN: dict[Callable[[Story], None], Law] = {
    a_terminal_answer_changes: Law.STAYS,
    a_name_is_made_twice: Law.NAMED_ONCE,
    a_taken_machine_that_hf_has_is_made_again: Law.NAMED_ONCE,
    a_create_that_hung_excuses_no_other_name: Law.NAMED_ONCE,
    what_hf_has_is_deleted: Law.PROVEN,
    what_hf_has_forgotten_is_deleted: Law.PROVEN,
    a_list_that_lags_costs_a_machine: Law.PROVEN,
    a_foreign_pod_is_deleted: Law.REASONED,
    a_healthy_machine_is_reported_lost: Law.PROVEN,
    more_machines_than_the_cap: Law.PROVEN,
    more_machines_than_were_asked_for: Law.PROVEN,
    complete_with_less: Law.PROVEN,
    a_machine_of_another_request: Law.NAMED_ONCE,
    an_id_that_is_not_recorded: Law.INTENT,
    a_refusal_that_recorded: Law.INTENT,
    two_lines_for_a_refusal: Law.ANSWERED,
    a_killed_script_that_nobody_killed: Law.ANSWERED,
    an_answer_out_of_form: Law.ANSWERED,
}


@pytest.mark.parametrize("history", BROKEN, ids=lambda history: history.__name__.replace("_", " "))
def test_a_broken_law_is_named(history: Callable[[Story], None]) -> None:
    story = Story()
    history(story)
    [line] = story.ledger.broken
    assert line.startswith(f"{BROKEN[history]}: ")


# --- sound ------------------------------------------------------------------------------------------------------------


def a_machine_comes_and_goes_back(story: Story) -> None:
    story.has()
    story.give_back(FIRST)
    story.deleted(FIRST)


def the_cloud_took_it(story: Story) -> None:
    story.has()
    story.struck("preemption", FIRST, POOL)
    story.ledger.reclaims([FIRST], {FIRST: "running"})
    story.deleted(FIRST)


def a_create_that_hung_comes_late(story: Story) -> None:
    story.has()
    story.struck("hang", POOL, FIRST, "pods.create")
    story.made(FIRST)


def a_killed_script_recorded(story: Story) -> None:
    document = {"template": {"templateId": "Pods", "machineCount": 1}}
    story.call("requestMachines", document, "", code=-9, killed=True)
    story.ledger.records({REQUEST: ("Pods", 1)}, [])


def one_that_hf_never_heard_of_is_deleted(story: Story) -> None:
    story.request()
    story.made(FIRST)
    story.deleted(FIRST)


SOUND = [
    a_machine_comes_and_goes_back,
    the_cloud_took_it,
    a_create_that_hung_comes_late,
    a_killed_script_recorded,
    one_that_hf_never_heard_of_is_deleted,
]


@pytest.mark.parametrize("history", SOUND, ids=lambda history: history.__name__.replace("_", " "))
def test_a_sound_history_breaks_nothing(history: Callable[[Story], None]) -> None:
    story = Story()
    history(story)
    story.ledger.wound_up()
    assert story.ledger.broken == []


# --- at rest ----------------------------------------------------------------------------------------------------------


def test_the_world_is_at_rest_when_the_cloud_holds_what_hf_has() -> None:
    story = Story()
    story.has()
    assert story.ledger.unsettled([machine(FIRST)]) == []
    assert story.ledger.unsettled([]) == [f"{Law.PROVEN}: HF has {FIRST}, which is not there, and is not told"]
    [line] = story.ledger.unsettled([machine(FIRST), machine(SECOND)])
    assert line == f"{Law.PROVEN}: {SECOND} exists (running) and nobody wants it"
    story.ledger.restarted()
    assert story.ledger.unsettled([machine(FIRST)]) == [], "it is not ours to delete what HF has forgotten"


def test_a_request_that_has_not_ended_is_not_at_rest() -> None:
    story = Story()
    story.request()
    assert story.ledger.unsettled([]) == [f"{Law.ENDS}: {REQUEST} has not ended"]


def test_what_the_cloud_never_ends_holds_up_nothing() -> None:
    story = Story()
    story.has()
    story.give_back(FIRST)
    assert story.ledger.unsettled([machine(FIRST, "stopping")]) != []
    story.struck("stuck_stopping", FIRST)
    assert story.ledger.unsettled([machine(FIRST, "stopping")]) == []


# --- the programme ----------------------------------------------------------------------------------------------------


def test_a_seed_brings_the_same_programme_and_another_seed_another() -> None:
    def names(seed: int) -> list[tuple[float, str]]:
        return [(one.at, one.name) for one in monkey.programme(seed, 60.0)]

    assert names(1) == names(1)
    assert names(1) != names(2)


def test_a_round_of_a_minute_brings_every_act_and_every_fault_of_the_simulator() -> None:
    programme = monkey.programme(7, 60.0)
    acts = {act.__name__.replace("_", " ") for act in monkey.ACTS}
    assert {one.name for one in programme} == {*acts, "faults"}
    assert sum(one.name == "faults" for one in programme) * monkey.AT_ONCE >= len(MODES)


def test_the_faults_that_are_named_here_are_faults_of_the_simulator() -> None:
    assert STILL_WELL | monkey.SECONDS.keys() <= MODES
