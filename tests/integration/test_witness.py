"""Test that each response of a simulated Compute API is checked.

The API runs in the tests' process or in a process that a test starts.
"""

from __future__ import annotations

from tests.support.checks.liar import GROUPS, ask, lying_elsewhere, lying_here
from tests.support.checks.simulators import Notes

LIED = f"GET {GROUPS}/g is answered 200: instanceGroupManagers.get: "


def test_a_wrong_response_of_this_process_is_noted(notes: Notes) -> None:
    with lying_here({"id": 42}) as compute:
        ask(compute)
        assert notes.take_faults() == [f"{LIED}.id: expected string, got 42"]
        ask(compute, f"{GROUPS}?fild=1")
        (problem,) = notes.take_faults()
        assert "unknown parameter fild; " in problem
        assert ".id: expected string, got 42" in problem, "also in a list"


def test_a_wrong_response_of_another_process_is_noted(notes: Notes) -> None:
    with lying_elsewhere({"id": 42}) as compute:
        ask(compute)
    assert notes.take_faults() == [f"{LIED}.id: expected string, got 42"]
