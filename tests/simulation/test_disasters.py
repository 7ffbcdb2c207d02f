"""Stories in which state files are lost or go back in time, alone and together: what HF was told of is kept, nothing
that ended is made again, and what cannot be known is shown to a person instead of being guessed.
"""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from provisioner.lab.cloud.compute.settings import Switches
from tests.simulation.test_laws import STORIES, Laws, tell_some
from tests.support.clouds.switches import FLIPS

pytestmark = pytest.mark.timeout(900)

lost_files = st.sets(st.sampled_from(["intent", "memory", "status"]), min_size=1)
old_files = st.sets(st.sampled_from(["intent", "memory", "status"]), min_size=1)


class Disasters(Laws):
    """Everything that may happen, and what should not."""

    @rule(kinds=lost_files, restarted=st.booleans())
    def files_are_lost(self, kinds: Collection[str], restarted: bool) -> None:
        self.story.lose(kinds, restarted=restarted)

    @rule(kinds=lost_files, restarted=st.booleans())
    def files_are_cut(self, kinds: Collection[str], restarted: bool) -> None:
        self.story.lose(kinds, cut=True, restarted=restarted)

    @rule()
    def directory_is_wiped(self) -> None:
        self.story.wipe()

    @rule()
    def person_releases_the_brake(self) -> None:
        self.story.list_hosts()  # as HF does every 30 s: what it lists is no orphan
        self.story.cycle()
        self.story.recover()

    @rule()
    def files_are_copied(self) -> None:
        self.story.keep_copies()

    @rule(kinds=old_files, restarted=st.booleans())
    def old_copies_are_put_back(self, kinds: Collection[str], restarted: bool) -> None:
        self.story.lose(kinds, put_back=True, restarted=restarted)


Disasters.TestCase.settings = settings(Laws.TestCase.settings, max_examples=max(1, STORIES // 2))
TestDisasters = pytest.mark.slow(Disasters.TestCase)


@pytest.mark.parametrize("switches", FLIPS, indirect=True)
def test_disasters_whatever_is_true_of_what_nobody_documents(switches: Switches) -> None:
    """All together as many stories as without."""
    tell_some(Disasters, switches)
