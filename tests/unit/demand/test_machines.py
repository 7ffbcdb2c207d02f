"""Our requests and machines, recovered from intent and answers."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.demand.plan import Ours, recover
from provisioner.demand.sources import Running
from provisioner.model import Request

RESULTS = {"+": "succeed", "-": "fail", "?": "executing"}


def recovered(status: str, machines: str, *, count: int = 4, gone: frozenset[str] = frozenset()) -> Ours:
    """Return our machines if there is one request. ``machines``: a letter for the result of each machine; the machines'
    names are m0, m1, and so on."""
    entries: list[dict[str, Any]] = [
        {"name": f"m{number}", "result": RESULTS[result], "launchtime": 50 + number}
        for number, result in enumerate(machines)
    ]
    return recover([Request("r", "Small", count, 10.0)], {"r": {"status": status, "machines": entries}}, gone)


@pytest.mark.parametrize(
    ("status", "machines", "gone", "asked", "running", "settled"),
    [
        pytest.param("running", "", set(), 4, set(), set(), id="an open request without an answer"),
        pytest.param("running", "+?", set(), 4, {"m0"}, set(), id="an open request counts whole"),
        pytest.param("running", "+--", set(), 2, {"m0"}, set(), id="without its failed machines"),
        pytest.param("running", "++?", {"m0"}, 3, {"m1"}, set(), id="without its returned machines"),
        pytest.param(
            "running", "-+", {"m0"}, 3, {"m1"}, set(), id="a machine that failed and was returned counts once"
        ),
        pytest.param(
            "complete", "++++", set(), 4, {"m0", "m1", "m2", "m3"}, {"m0", "m1", "m2", "m3"}, id="an ended one"
        ),
        pytest.param("complete_with_error", "+---", set(), 1, {"m0"}, {"m0"}, id="ended with failures"),
        pytest.param(
            "complete", "++++", {"m0", "m3"}, 2, {"m1", "m2"}, {"m1", "m2"}, id="ended with returned machines"
        ),
        pytest.param("complete_with_error", "", set(), 0, set(), set(), id="a request that the scripts do not know"),
    ],
)
def test_a_request(
    status: str, machines: str, gone: set[str], asked: int, running: set[str], settled: set[str]
) -> None:
    ours = recovered(status, machines, gone=frozenset(gone))
    assert ours.asked == {"Small": asked}
    assert ours.running.keys() == running
    assert ours.settled == settled


def test_a_machine_runs_since_its_launch() -> None:
    assert recovered("complete", "++").running["m1"] == Running("Small", 51.0)


def test_an_unknown_launch_is_the_request() -> None:
    entry = {"status": "complete", "machines": [{"name": "m0", "result": "succeed", "launchtime": 0}]}
    assert recover([Request("r", "Small", 1, 10.0)], {"r": entry}, frozenset()).running["m0"].since == 10.0
