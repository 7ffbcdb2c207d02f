"""Requests on managed instance groups, from HostFactory's call to its answer, while the cloud misbehaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.simulator.compute.settings import Duplicate, Switches
from provisioner.simulator.world import Fault
from tests.support.clouds.mig_grid import FIRST, SECOND, Grid, spot

CREATES, DELETES = ".createInstances", ".deleteInstances"


# --- machines that cannot be made -----------------------------------------------------------------------------------


def test_a_stock_out_in_one_zone_is_made_up_for_in_the_other(tmp_path: Path) -> None:
    with Grid(tmp_path, [FIRST, SECOND]) as grid:
        grid.faults(Fault("stockout", "us-central1-a", after=3))
        request = grid.request(8)
        answer = grid.ended(request)
        assert answer["status"] == "complete"
        assert len(answer["machines"]) == len(set(grid.running(request))) == 8
        grid.until(lambda: (grid.size(FIRST), grid.size(SECOND)) == (3, 5), 300, "target sizes that follow")
        assert len(grid.made) == 8


def test_what_no_zone_has_ends_in_time_with_googles_words(tmp_path: Path) -> None:
    words = "ZONE_RESOURCE_POOL_EXHAUSTED: The zone"
    with Grid(tmp_path, [FIRST, SECOND], request_deadline=400.0, boot_deadline=120.0, spill_after=30.0) as grid:
        grid.faults(Fault("stockout"))
        answer = grid.ended(grid.request(3), seconds=410.0)
        assert answer["status"] == "complete_with_error"
        assert any(words in machine["message"] for machine in answer["machines"]) or words in answer["message"]
        grid.until(lambda: grid.size(FIRST) == grid.size(SECOND) == 0, 300, "empty groups")
        assert grid.made == []


def test_a_group_that_refuses_creates_says_what_to_do(tmp_path: Path) -> None:
    with Grid(tmp_path, [replace(FIRST, update_type="PROACTIVE")], request_deadline=120.0) as grid:
        answer = grid.ended(grid.request(2))
        assert answer["status"] == "complete_with_error"
        assert "Set replacementMethod to RECREATE" in answer["message"] + str(answer["machines"])


# --- nothing is doubled ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 5])
def test_a_response_that_is_lost_after_the_group_took_the_names(tmp_path: Path, count: int) -> None:
    """And before any list shows them: the create is sent again, first for one machine, as the probe of the back-off."""
    with Grid(tmp_path, [FIRST], operation=40.0) as grid:
        grid.faults(Fault("lost_response", f".*{CREATES}", limit=1))
        request = grid.request(count)
        assert grid.ended(request)["status"] == "complete"
        assert sorted(grid.made) == sorted(grid.running(request))
        assert grid.calls(CREATES) == 2 + (count > 1)
        if count == 1:
            assert grid.operations(CREATES) == 1, "the same names are the same request to Compute"


@pytest.mark.parametrize("duplicate", Duplicate)
def test_names_that_the_group_has_already(tmp_path: Path, duplicate: Duplicate) -> None:
    """The response was lost, the request id is forgotten, and the lists do not show the names yet."""
    switches = Switches(duplicate_name=duplicate, request_id_seconds=0.0)
    with Grid(tmp_path, [FIRST], switches=switches) as grid:
        lost = Fault("lost_response", f".*{CREATES}", limit=1)
        lag = Fault("list_lag", ".*listManagedInstances|.*instances.list", limit=8, params={"seconds": 25.0})
        grid.faults(lost, lag)
        request = grid.request(4)
        assert grid.ended(request)["status"] == "complete"
        assert sorted(grid.made) == sorted(grid.running(request))
        assert grid.size(FIRST) == 4


def test_a_crash_between_the_create_and_the_next_record(tmp_path: Path) -> None:
    with Grid(tmp_path, [FIRST], operation=40.0) as grid:
        grid.cycle()
        request = grid.request(5)
        grid.until(lambda: grid.operations(CREATES), 60, "the create")
        grid.restart()
        assert grid.ended(request)["status"] == "complete"
        assert sorted(grid.made) == sorted(grid.running(request))
        assert grid.calls(CREATES) == 2
        assert grid.operations(CREATES) == 1, "Compute took the second call for the first"
        assert grid.size(FIRST) == 5


@pytest.mark.parametrize("applied", [True, False], ids=["took effect", "took none"])
def test_an_operation_that_is_stuck_holds_up_nothing(tmp_path: Path, applied: bool) -> None:
    with Grid(tmp_path, [FIRST, SECOND], boot_deadline=60.0) as grid:
        grid.faults(Fault("op_stuck", "hf-a", limit=1, params={"applied": applied}))
        request = grid.request(4)
        assert grid.ended(request)["status"] == "complete"
        grid.run(60.0)
        assert sorted(grid.made) == sorted(grid.running(request))
        assert grid.size(FIRST) + grid.size(SECOND) == 4


# --- what the lists do not show -------------------------------------------------------------------------------------


def test_lists_that_are_half_a_minute_late(tmp_path: Path) -> None:
    with Grid(tmp_path, [FIRST]) as grid:
        grid.faults(Fault("list_lag", ".*", params={"seconds": 29.0}))
        request = grid.request(6)
        assert grid.ended(request)["status"] == "complete"
        names = grid.running(request)
        assert sorted(grid.made) == sorted(names)
        grid.run(60.0)
        assert grid.lost() == set()
        back = grid.give_back(names[:4])
        assert grid.ended(back)["status"] == "complete"
        assert grid.members(FIRST) == set(names[4:])
        assert len(grid.made) == 6


def test_pages_that_move_lose_no_machine(tmp_path: Path) -> None:
    with Grid(tmp_path, [FIRST], step=10.0) as grid:
        request = grid.request(600)
        assert grid.ended(request)["status"] == "complete"
        grid.faults(Fault("moved_page", ".*instances.list", params={"items": 1}))
        grid.run(90.0)
        assert grid.lost() == set()
        assert len(grid.made) == len(grid.members(FIRST)) == 600


def test_a_group_that_is_deleted_under_us(tmp_path: Path) -> None:
    with Grid(tmp_path, [FIRST, SECOND]) as grid:
        request = grid.request(3)
        names = grid.ended(request)["machines"]
        groups = grid.cloud.groups
        grid.cloud.do(lambda: [groups.vms.delete(vm) for one in names for vm in groups.vms.named(one["name"])])
        grid.faults(Fault("mig_gone", "hf-a"))
        grid.until(lambda: grid.lost() == {one["name"] for one in names}, 300, "the losses")
        again = grid.request(2)
        assert grid.ended(again)["status"] == "complete"
        assert set(grid.running(again)) == grid.members(SECOND)


# --- Spot -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_storm_that_preempts_a_fifth_of_two_thousand_machines(tmp_path: Path) -> None:
    specs = [
        spot(spec, default_action_on_failure="REPAIR", termination_action=end)
        for spec, end in ((FIRST, "STOP"), (SECOND, "DELETE"))
    ]
    with Grid(tmp_path, specs, step=10.0, max_machines=1000) as grid:
        request = grid.request(2000)
        assert grid.ended(request)["status"] == "complete"
        names = sorted(grid.running(request))
        assert len(names) == 2000
        taken = set(names[::5])
        grid.cloud.do(lambda: grid.cloud.groups.preempt(taken))
        grid.until(lambda: grid.lost() == taken, 300, "every loss, and no other")
        kept = set(names) - taken
        grid.until(lambda: grid.members(specs[0]) | grid.members(specs[1]) == kept, 300, "the remains to go")
        assert grid.size(specs[0]) + grid.size(specs[1]) == 1600
        grid.run(30.0)
        assert grid.lost() == taken
        assert {name for name, phase in grid.cloud.state().items() if phase == "running"} == kept
