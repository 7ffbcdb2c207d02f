"""A week of machines that Compute Engine ends after a day. HF is asked to return each machine before its end, and gets
the seconds that are left."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.model import LossCause
from tests.support.clouds.virtual_site import SPEC, VirtualSite

DAY = 86_400.0
MACHINES = 12
PACE = 120.0


class Week:
    """A HostFactory that keeps a number of machines. If a machine's end was reported, HostFactory returns the machine
    once the work on it is done."""

    def __init__(self, site: VirtualSite, chance: random.Random, patience: float) -> None:
        self.site, self.chance, self._patience = site, chance, patience
        self.reported: dict[str, float] = {}
        """World time at which the end of each machine was first reported to HF."""
        self.ends: dict[str, float] = {}
        """World time at which Compute ends each machine."""
        self.drained: dict[str, float] = {}
        """World time at which the work on each machine with a known end is done."""
        self.returned: set[str] = set()
        self.requests: set[str] = set()

    def step(self) -> None:
        """Play two minutes: HF reads which machines will end, and returns those whose work is done."""
        self.site.run(PACE)
        site, now = self.site, self.site.now()
        for id_ in self.requests - site.hf.terminal_answers.ids():
            if site.ended(id_):
                site.hf.terminal_answers.settle_reported(id_, site.hf.status.read_answers([id_])[id_].text)
        for vm in site.cloud.groups.vms:
            if vm.terminates is not None:
                self.ends[vm.name] = vm.terminates - site.world.start_wall
        for name, loss in site.hf.status.read_lost().items():
            if loss.grace > 0 and name not in self.reported:
                assert loss.cause == LossCause.EXPIRES
                assert abs(self.ends[name] - now - loss.grace) <= 2 * PACE, f"{name}: not the seconds that are left"
                self.reported[name] = now
                self.drained[name] = now + self.chance.uniform(0, self._patience)
        done_names = [name for name, done in self.drained.items() if done <= now and name not in self.returned]
        if done_names:
            self.returned.update(done_names)
            site.return_machines(done_names)
            self.requests.add(site.request(len(done_names)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "patience"),
    [
        pytest.param("DELETE", 1800.0, id="what runs is done in time"),
        pytest.param("STOP", 9000.0, id="what runs takes too long"),
    ],
)
def test_a_week_has_no_end_that_was_not_reported_before(tmp_path: Path, action: str, patience: float) -> None:
    spec = replace(SPEC, provisioning_model="STANDARD", max_run_seconds=DAY, termination_action=action)
    with VirtualSite(tmp_path, spec, pace=PACE) as site:
        week = Week(site, random.Random(action), patience)
        week.requests.add(site.request(MACHINES))
        while site.now() < 7 * DAY:
            week.step()
            if week.chance.random() < 0.001:
                site.restart()
        ended = {name for name, end in week.ends.items() if end <= site.now()}
        late = {name for name in ended if week.reported.get(name, end := week.ends[name]) >= end}
        assert not (late - week.returned), "an end that was not reported"
        assert len(week.reported) >= 6 * MACHINES
        if patience < 3000:
            assert ended <= week.returned, "HF had returned each before its end"
        closed = [close for report in site.reports for close in report.closes if close.slot.observed.cause is not None]
        assert {close.slot.observed.cause for close in closed} == {LossCause.EXPIRES}
        site.run(1200.0)
        assert site.reconciler.memory is not None
        assert all(record.ended for record in site.reconciler.memory.requests.values())
