"""Stories in which memory.json is lost or goes back in time: HF keeps every machine that it was told of."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import rule

from tests.simulation.test_laws import STORIES, Laws

pytestmark = pytest.mark.timeout(900)


class Disasters(Laws):
    """Everything that may happen, and what should not. One of memory.json and status.json is always there."""

    status_is_deleted = None

    @rule()
    def memory_is_lost(self) -> None:
        self.story.lose_memory(put_back=False)

    @rule()
    def memory_is_copied(self) -> None:
        self.story.keep_copy()

    @rule()
    def old_memory_is_put_back(self) -> None:
        self.story.lose_memory(put_back=True)


Disasters.TestCase.settings = settings(Laws.TestCase.settings, max_examples=max(1, STORIES // 2))
TestDisasters = Disasters.TestCase
