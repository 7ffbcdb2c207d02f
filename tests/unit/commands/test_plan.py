"""`provisioner plan`: a line for each pool, template and reason, for any number of machines; their names on request."""

from __future__ import annotations

import pytest

from provisioner.commands.plan import plan_document, plan_is_fine, plan_lines
from provisioner.model import (
    NEVER,
    Create,
    Delete,
    DeleteReason,
    Distrusted,
    DistrustReason,
    LossCause,
    PendingReason,
    Plan,
    Verdict,
    Window,
)
from tests.unit.core import REQUEST, STOCKOUT, TEMPLATE, ended, failed_observation, memory, name, record, slot, snapshot

MANY = 10_000
WORDS = "ZONE_RESOURCE_POOL_EXHAUSTED"
HELD = memory(
    record(*(slot(number) for number in range(4))),
    windows={("b", TEMPLATE): Window(1, level=1, failure=STOCKOUT)},
)
PLAN = Plan(
    HELD,
    creates=(
        *(Create(name(number), "a", TEMPLATE, REQUEST) for number in range(10, 10 + MANY)),
        Create(name(5), "b", TEMPLATE, REQUEST, is_repeated=True),
    ),
    deletes=(
        Delete(name(0), "a", DeleteReason.RETURNED),
        Delete(name(1), "a", DeleteReason.RETURNED),
        Delete(name(2), "a", DeleteReason.FAILED),
        Delete("hf-zzzzzzzzzz-000000", "a", DeleteReason.ORPHANED),
    ),
    transitions=(
        ended(2, Verdict.FAILED, STOCKOUT),
        ended(3, Verdict.LOST, cause=LossCause.PREEMPTED),
        ended(1, Verdict.RETURNED),
    ),
    deferred={("a", TEMPLATE, PendingReason.CAP): 3, ("b", TEMPLATE, PendingReason.BACKOFF): 40},
)
DOCUMENT = plan_document(PLAN, {"a": snapshot()})

LINES = [
    "The next cycle would:",
    "  pool a: 0 machines",
    f"  create {MANY} of {TEMPLATE} in a: wanted",
    f"  create 1 of {TEMPLATE} in b: repeated",
    f"  delete 2 of {TEMPLATE} in a: returned",
    f"  delete 1 of {TEMPLATE} in a: failed",
    "  delete 1 in a: orphaned",
    f"  close  1 of {TEMPLATE} in a: failed, stockout: {WORDS}",
    f"  close  1 of {TEMPLATE} in a: lost, preempted",
    f"  close  1 of {TEMPLATE} in a: returned",
    f"  defer  3 of {TEMPLATE} in a: cap",
    f"  defer  40 of {TEMPLATE} in b: backoff: {WORDS}",
]


def test_machines_are_shown_by_pool_template_and_reason_and_named_on_request() -> None:
    assert [*plan_lines(DOCUMENT)] == LINES
    named = [*plan_lines(DOCUMENT, named=True)]
    assert [line for line in named if not line.startswith("    ")] == LINES
    at = named.index(LINES[4])
    assert named[at + 1 : at + 3] == [f"    {name(0)}", f"    {name(1)}"]
    assert sum(line.startswith("    ") for line in named) == MANY + 1 + 4 + 3
    assert len(DOCUMENT["creates"]) == MANY + 1
    assert DOCUMENT["creates"][0] == {"machine": name(10), "pool": "a", "template": TEMPLATE, "reason": "wanted"}
    stray = {"machine": "hf-zzzzzzzzzz-000000", "pool": "a", "template": "", "reason": "orphaned"}
    assert DOCUMENT["deletes"][-1] == stray


@pytest.mark.parametrize("plan", [None, Plan(HELD)], ids=["before the first request", "all is as wanted"])
def test_a_plan_of_nothing_says_so(plan: Plan | None) -> None:
    shown = "\n".join(plan_lines(plan_document(plan, {"a": snapshot(), "b": failed_observation("b")})))
    assert shown.splitlines() == [
        "The next cycle has no action.", "  pool b: UNSEEN, no route to host", "  pool a: 0 machines"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("distrusted", "error", "said"),
    [
        pytest.param(
            Distrusted(DistrustReason.POOL_MOVED, 0.0, NEVER, detail="is now there, but has machines in here"),
            "invalid",
            "UNSEEN, pools.a is now there, but has machines in here: restore the setting and start again",
            id="moved",
        ),
        pytest.param(
            Distrusted(DistrustReason.WRONG_ENDPOINT, 0.0, NEVER, detail="is two now"),
            "invalid",
            "UNSEEN, pools.a is two now: ",
            id="of another endpoint",
        ),
        pytest.param(
            Distrusted(DistrustReason.MASS_LOSS, 0.0, 60.0, 9, 10),
            "unavailable",
            "UNSEEN, 9 of 10 machines are missing since 1970-01-01T00:00:00Z",
            id="that lacks many machines",
        ),
    ],
)
def test_why_a_pool_is_not_trusted_is_said(distrusted: Distrusted, error: str, said: str) -> None:
    document = plan_document(Plan(HELD, distrusted={"a": distrusted}), {"a": snapshot(), "b": snapshot(pool="b")})
    shown = [*plan_lines(document)][1:]
    assert (shown[0].startswith(f"  pool a: {said}"), shown[1]) == (True, "  pool b: 0 machines"), shown
    assert document["pools"]["a"]["error"] == error
    assert not plan_is_fine(document)
