"""What becomes of the last machines of a request, of those that never run, and of those that grow old.

The loop's own code on real state files and a simulated group, in virtual time; HF's calls by hand.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.model import Limits
from provisioner.simulator.world import Fault
from tests.support.clouds.virtual_site import PACE, SPEC, VirtualSite, limits_of, messages, succeeded

GROUP = replace(SPEC, provisioning_model="STANDARD")
TWENTY = 20


def patient(boot_deadline: float = 3000.0, **template: float) -> Limits:
    """A request may take an hour; ``template``: what its template has of its own."""
    known = limits_of([GROUP.name])
    pool = replace(known.pools[GROUP.name], boot_deadline=boot_deadline)
    one = replace(known.templates["T"], **template)
    return replace(
        known,
        pools={pool.name: pool},
        templates={"T": one},
        request_deadline=3600.0,
        backoff_first=1.0,
        backoff_last=1.0,
    )


@pytest.mark.parametrize(
    ("straggler_after", "lasts"),
    [
        pytest.param(60.0, (60.0, 180.0), id="they are given up"),
        pytest.param(0.0, (3000.0, 4000.0), id="they are waited for"),
    ],
)
def test_two_of_twenty_that_never_boot(tmp_path: Path, straggler_after: float, lasts: tuple[float, float]) -> None:
    limits = patient(straggler_after=straggler_after, tries=1)
    stuck = Fault("stuck_provisioning", limit=2)
    with VirtualSite(tmp_path, GROUP, limits=limits, faults=[stuck]) as site:
        began, id_ = site.now(), site.request(TWENTY)
        site.until(lambda: site.ended(id_), seconds=4000.0, what="the end of the request")
        least, most = lasts
        assert least <= site.now() - began <= most
        answer = site.answer(id_)
        assert answer["status"] == "complete_with_error"
        assert len(succeeded(answer)) == TWENTY - 2
        assert sum(machine["result"] == "fail" for machine in answer["machines"]) == 2
        assert "did not run within" in messages(answer)
        site.until(lambda: sorted(site.phases()) == succeeded(answer), what="the end of the machines that came late")


@pytest.mark.parametrize("tries", [1, 3])
def test_a_machine_that_never_boots_is_made_so_often_and_then_given_up(tmp_path: Path, tries: int) -> None:
    limits = patient(boot_deadline=60.0, tries=tries)
    with VirtualSite(tmp_path, GROUP, limits=limits, faults=[Fault("stuck_provisioning")]) as site:
        began, id_ = site.now(), site.request(2)
        site.until(lambda: site.ended(id_), what="the end of the request")
        assert site.now() - began < limits.request_deadline / 2
        memory = site.reports[-1].memory
        assert memory is not None
        slots = memory.requests[id_].slots.values()
        assert sum(slot.submitted is not None for slot in slots) == 2 * tries
        answer = site.answer(id_)
        assert [machine["result"] for machine in answer["machines"]] == ["fail", "fail"]
        assert "boot deadline" in messages(answer)


def test_old_machines_are_offered_and_run_until_hf_gives_them_back(tmp_path: Path) -> None:
    with VirtualSite(tmp_path, GROUP, limits=patient(max_lifetime=400.0)) as site:
        id_ = site.request(TWENTY)
        site.until(lambda: site.ended(id_), what="the end of the request")
        site.hf.told.tell(id_, site.hf.status.read_answers([id_])[id_].text)
        began, hosts = site.now(), set(succeeded(site.answer(id_)))
        site.until(site.lost, what="the first offer")
        assert 400.0 - 2 * PACE <= site.now() - began <= 400.0 + 2 * PACE
        for most in (2, 1):  # a tenth of twenty, and of the eighteen that are left
            site.run(3 * PACE)
            offered = site.lost()
            assert len(offered) == most
            assert set(offered.values()) == {3600}
            site.run(300.0)
            assert site.lost() == offered, "no more are offered before these are given back"
            assert hosts <= site.phases().keys(), "none is deleted before"
            back = site.give_back(sorted(offered))
            site.until(lambda back=back: site.ended(back), what="the end of the return")
            hosts -= offered.keys()
            assert hosts == site.phases().keys(), "only those that were given back are gone"
            assert not offered.keys() & site.lost().keys()
        site.restart()
        before = site.lost()
        site.run(100.0)
        assert site.lost() == before, "a loop that starts anew offers the same"
