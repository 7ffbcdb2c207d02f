"""What becomes of machines that grow old.

The loop's own code on real state files and a simulated group, in virtual time; HF's calls by hand.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.support.clouds.virtual_site import PACE, SPEC, VirtualSite, limits_of, succeeded

GROUP = replace(SPEC, provisioning_model="STANDARD")
TWENTY = 20


def test_old_machines_are_offered_and_run_until_hf_gives_them_back(tmp_path: Path) -> None:
    known = limits_of([GROUP.name])
    limits = replace(known, templates={"T": replace(known.templates["T"], max_lifetime=400.0)})
    with VirtualSite(tmp_path, GROUP, limits=limits) as site:
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
