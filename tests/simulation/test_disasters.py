"""Simulations in which state files are lost or replaced by old copies, alone and together.

Reported answers stay, and ended requests are not served again. If the loop cannot know a fact, it reports this to the
operator and does not guess.
"""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from provisioner.lab.cloud.compute.settings import Switches
from tests.simulation.test_laws import RUNS, Laws, play_some
from tests.support.clouds.switches import FLIPS

pytestmark = pytest.mark.timeout(900)

lost_files = st.sets(st.sampled_from(["intent", "memory", "status"]), min_size=1)
old_files = st.sets(st.sampled_from(["intent", "memory", "status"]), min_size=1)


class Disasters(Laws):
    """The events of ``Laws``, and lost, cut and restored files."""

    @rule(kinds=lost_files, restarted=st.booleans())
    def files_are_lost(self, kinds: Collection[str], restarted: bool) -> None:
        self.sim.lose(kinds, restarted=restarted)

    @rule(kinds=lost_files, restarted=st.booleans())
    def files_are_cut(self, kinds: Collection[str], restarted: bool) -> None:
        self.sim.lose(kinds, cut=True, restarted=restarted)

    @rule()
    def directory_is_wiped(self) -> None:
        self.sim.wipe()

    @rule()
    def operator_releases_the_brake(self) -> None:
        self.sim.list_hosts()  # as HF does every 30 s, because a listed machine is no orphan
        self.sim.cycle()
        self.sim.recover()

    @rule()
    def files_are_copied(self) -> None:
        self.sim.keep_copies()

    @rule(kinds=old_files, restarted=st.booleans())
    def old_copies_are_put_back(self, kinds: Collection[str], restarted: bool) -> None:
        self.sim.lose(kinds, put_back=True, restarted=restarted)


Disasters.TestCase.settings = settings(Laws.TestCase.settings, max_examples=max(1, RUNS // 2))
TestDisasters = pytest.mark.slow(Disasters.TestCase)


@pytest.mark.parametrize("switches", FLIPS, indirect=True)
def test_disasters_with_undocumented_behaviours_flipped(switches: Switches) -> None:
    """Play a share of the simulations for each flip in ``FLIPS``. All shares together are as many simulations as a run
    without a flip."""
    play_some(Disasters, switches)
