"""A story after which files are lost or put back, and HF that goes on."""

from __future__ import annotations

from dataclasses import dataclass

from provisioner.model import BrakeReason, Memory
from tests.simulation.story import Story


@dataclass
class Site:
    """A story told so far that a copy of its files lacks much of it."""

    story: Story
    done: str
    """A request that the copy knows; HF has given its machines back since, and it has left the files."""

    def goes_on(self, hours: int, *, lists: bool) -> None:
        """HF asks for more and polls what it waits for; only with ``lists`` does it call getReturnRequests."""
        for turn in range(hours * 60):
            self.story.advance(60.0)
            if turn % 20 == 0:
                self.story.request("pods", 1)
            for id_, wanted in self.story.requests.items():
                if wanted.told is None:
                    self.story.poll(id_)
            if lists:
                self.story.list_hosts()
            self.story.cycle()

    def brake(self) -> BrakeReason | None:
        """Why it is latched."""
        brake = self.memory().brake
        return brake.reason if brake else None

    def memory(self) -> Memory:
        """What the loop remembers."""
        memory = self.story.memory()
        assert memory is not None
        return memory


def three_requests() -> Story:
    """Two requests whose machines run and were told, then one that is still open."""
    story = Story()
    story.request("wide", 2)
    story.request("vms", 1)
    story.run(300.0, 15)
    story.poll_all()
    story.request("pods", 1)
    story.cycle()
    return story
