"""Simulations whose files a test then loses or restores, while HF goes on."""

from __future__ import annotations

from dataclasses import dataclass

from provisioner.model import BrakeReason, Memory
from tests.simulation.simulation import Simulation


@dataclass
class Site:
    """A simulation that has run for a long time since a copy of its files was made."""

    sim: Simulation
    done: str
    """A request in the copy whose machines HF has returned since, so that it has left the files."""

    def goes_on(self, hours: int, *, lists: bool) -> None:
        """Let HF request machines and poll open requests, once a minute. With ``lists``, HF also calls
        getReturnRequests."""
        for turn in range(hours * 60):
            self.sim.advance(60.0)
            if turn % 20 == 0:
                self.sim.request("pods", 1)
            for id_, wanted in self.sim.requests.items():
                if wanted.reported is None:
                    self.sim.poll(id_)
            if lists:
                self.sim.list_hosts()
            self.sim.cycle()

    def brake(self) -> BrakeReason | None:
        """Return the reason why the brake is latched."""
        brake = self.memory().brake
        return brake.reason if brake else None

    def memory(self) -> Memory:
        """Return the loop's memory."""
        memory = self.sim.memory()
        assert memory is not None
        return memory


def three_requests() -> Simulation:
    """Return a simulation with two requests whose machines run and were reported, and one open request."""
    sim = Simulation()
    sim.request("wide", 2)
    sim.request("vms", 1)
    sim.run(300.0, 15)
    sim.poll_all()
    sim.request("pods", 1)
    sim.cycle()
    return sim
