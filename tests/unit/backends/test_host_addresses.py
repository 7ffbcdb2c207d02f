"""Addresses of hosts. If a host's address is not found, only the machine on this host is held back."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from provisioner.backends import BackendError, host_addresses
from provisioner.backends.host_addresses import ADDRESS_SECONDS, RETRY_SECONDS, HostAddresses
from provisioner.model import ErrorClass, Fingerprint, Machine, Phase

MACHINE = Machine("hf-abcdefghij-000001", Phase.RUNNING, Fingerprint(uid="7"), launched=5)


class Names:
    """A clock, and a look-up of hosts' addresses that moves the clock on by ``seconds``."""

    def __init__(self) -> None:
        self.now, self.seconds = 1000.0, 0.0
        self.known = {"n1": "10.0.0.1", "n2": "10.0.0.2"}
        self.asked: list[str] = []

    def monotonic(self) -> float:
        return self.now

    def look_up(self, host: str) -> str:
        self.asked.append(host)
        self.now += self.seconds
        if host not in self.known:
            raise BackendError(ErrorClass.DENIED, f"{host} is unknown")
        return self.known[host]


@pytest.fixture
def names() -> Names:
    return Names()


@pytest.fixture
def addresses(names: Names) -> HostAddresses:
    with patch.object(host_addresses, "time", names):
        yield HostAddresses(names.look_up)


def test_a_host_is_looked_up_again_after_a_while(names: Names, addresses: HostAddresses) -> None:
    machine = addresses.locate(MACHINE, "n1")
    assert (machine.phase, machine.ip, machine.fingerprint) == (
        Phase.RUNNING,
        "10.0.0.1",
        Fingerprint("7", ip=machine.ip),
    )
    names.known["n1"] = "10.0.0.9"
    assert addresses.locate(MACHINE, "n1").ip == "10.0.0.1"
    names.now += ADDRESS_SECONDS
    assert addresses.locate(MACHINE, "n1").ip == "10.0.0.9"


def test_a_host_without_an_address_holds_back_its_own_machine_only(names: Names, addresses: HostAddresses) -> None:
    machine = addresses.locate(MACHINE, "n3")
    assert (machine.phase, machine.is_nameless, machine.ip) == (Phase.PENDING, True, "")
    assert machine.failure is not None
    assert (machine.failure.error, machine.failure.text) == (ErrorClass.OTHER, "n3 is unknown"), "it fails no slot"
    assert addresses.locate(MACHINE, "n1").ip == "10.0.0.1"
    names.known["n3"] = "10.0.0.3"
    assert addresses.locate(MACHINE, "n3").ip == ""
    names.now += RETRY_SECONDS
    assert addresses.locate(MACHINE, "n3") == addresses.locate(MACHINE, "", "10.0.0.3")


def test_a_name_that_no_resolver_takes_holds_back_its_own_machine_only(addresses: HostAddresses) -> None:
    addresses._look_up = str
    assert "answer not understood" in str(addresses.locate(MACHINE, "a" * 64 + ".test").failure)


def test_an_address_stays_if_it_cannot_be_renewed(names: Names, addresses: HostAddresses) -> None:
    addresses.locate(MACHINE, "n1")
    names.now += ADDRESS_SECONDS
    del names.known["n1"]
    assert addresses.locate(MACHINE, "n1").ip == "10.0.0.1"


def test_slow_failures_take_at_most_half_of_the_time(names: Names, addresses: HostAddresses) -> None:
    """A dead name server must not delay an observation of a thousand hosts by hours."""
    names.known, names.seconds = {}, 10.0
    for number in range(1000):
        machine = addresses.locate(MACHINE, f"n{number}")
        assert machine.is_nameless
        assert machine.failure is not None
    assert names.asked == ["n0"]
    names.now += 10.0
    addresses.locate(MACHINE, "n2")
    assert names.asked == ["n0", "n2"]
