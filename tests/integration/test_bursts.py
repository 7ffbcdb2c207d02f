"""Thousands of instances in several groups, in virtual time. Either all instances run, or HF gets the reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.lab.cloud.compute.settings import MigSpec
from provisioner.lab.cloud.world import Fault
from provisioner.model import Limits
from tests.support.clouds.specs import advised
from tests.support.clouds.virtual_site import VirtualSite, limits_of, succeeded

pytestmark = pytest.mark.slow

CREATES, DELETES = "createInstances", "deleteInstances"
A = advised(project="p", name="hf-a", zone="us-central1-a", provisioning_model="SPOT", size_limit=4000)
B = replace(A, name="hf-b", zone="us-central1-b")
R = advised(project="p", name="hf-r", region="us-east1", provisioning_model="SPOT", size_limit=4000)


def limits(*specs: MigSpec, most: int) -> Limits:
    """Return limits of proven pools, which allow a whole burst at once."""
    usual = limits_of([spec.name for spec in specs])
    pools = {
        name: replace(pool, max_machines=most, max_pending=5000, initial_window=5000)
        for name, pool in usual.pools.items()
    }
    return replace(usual, pools=pools)


def pools(site: VirtualSite) -> Counter[str]:
    return Counter(machine["pool"] for machine in site.cloud.state()["machines"])


def target_sizes(site: VirtualSite) -> dict[str, int]:
    return {mig.spec.name: mig.target_size for mig in site.cloud.groups.migs.values()}


def test_a_burst_with_a_stockout_in_one_zone_and_preemptions(tmp_path: Path) -> None:
    count = 2000
    faults = [
        Fault("stockout", "us-central1-b", after=count // 10),
        Fault("preemption", rate=0.05, params={"seconds": 400}),
        Fault("lost_response", f".*{CREATES}", limit=2),
    ]
    with VirtualSite(tmp_path, A, B, R, limits=limits(A, B, R, most=count // 2), faults=faults, pace=60.0) as site:
        answer = site.asked(count)
        names = succeeded(answer)
        assert (answer["status"], len(names)) == ("complete", count)
        assert site.phases() == dict.fromkeys(names, "running") | {
            name: phase for name, phase in site.phases().items() if phase == "stopping"
        }
        calls = site.mutations()
        assert calls[CREATES] <= 12, (
            "1,000 names in a call: five, those that were repeated, and those that spilled over"
        )
        site.run(600)
        lost = site.lost()
        assert 0.03 * count < len(lost) < 0.07 * count
        assert site.phases() == dict.fromkeys(set(names) - lost.keys(), "running")
        assert target_sizes(site) == dict(pools(site)), "no group has more than requested"
        assert pools(site)["hf-b"] <= count // 10
        assert site.mutations()[CREATES] == calls[CREATES], "what is lost after the answer is not made again"
