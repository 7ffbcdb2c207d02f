"""Requests on managed instance groups, from HostFactory's call to its answer, while the cloud misbehaves."""

from __future__ import annotations

from pathlib import Path

from provisioner.lab.cloud.world import Fault
from tests.support.clouds.mig_grid import FIRST, SECOND, Grid

CREATES, DELETES = ".createInstances", ".deleteInstances"


def test_a_stock_out_in_one_zone_is_made_up_for_in_the_other(tmp_path: Path) -> None:
    with Grid(tmp_path, [FIRST, SECOND]) as grid:
        grid.faults(Fault("stockout", "us-central1-a", after=3))
        request = grid.request(8)
        answer = grid.ended(request)
        assert answer["status"] == "complete"
        assert len(answer["machines"]) == len(set(grid.running(request))) == 8
        grid.until(lambda: (grid.size(FIRST), grid.size(SECOND)) == (3, 5), 300, "target sizes that follow")
        assert len(grid.made) == 8


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
