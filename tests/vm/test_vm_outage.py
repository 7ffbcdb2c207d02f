"""Scripts and loops while their NFS server is down or restarted, after its export was replaced, and while a host is cut
off.

The tests run in order, because a loop starts slowly in emulation. Each test begins with the state of the test before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.vm.guest import Guest
from tests.vm.shared import EXPORT, ONE, TWO, Host, exported
from tests.vm.sides import HF_USER, LOOP_USER, Sides, wanted

pytestmark = [pytest.mark.vm, pytest.mark.nfs, pytest.mark.timeout(1200)]

LOST_LOCKS = re.compile(r"lost \d+ locks")
STALE = "The NFS server has another file or directory there by now: mount the file system again"
FORGET = "systemctl stop nfs-server nfsdcld && rm /var/lib/nfs/nfsdcld/* && systemctl start nfsdcld nfs-server"
"""Restart the server without its list of clients that may claim their locks again. A new host of the server lacks this
list."""


@pytest.fixture(scope="module")
def hosts(guest: Guest) -> Iterator[tuple[Host, Host]]:
    """Yield HostFactory's host, and another."""
    with exported(guest, HF_USER):
        made = Host(guest, "hosta", ONE, 1), Host(guest, "hostb", TWO, 2)
        for host in made:
            host.mount()
        yield made
        for host in made:
            host.end()


@pytest.fixture(scope="module")
def sides(guest: Guest, hosts: tuple[Host, Host]) -> Iterator[Sides]:
    made = Sides(guest)
    yield made
    guest.run("systemctl start nfs-server")
    for host in hosts:
        host.reconnect()
    made.stop()
    made.end()


@pytest.fixture(scope="module")
def loop(sides: Sides, hosts: tuple[Host, Host]) -> str:
    """Return the first loop's unit. It runs on the other host, and is in charge."""
    unit = sides.start(hosts[1])
    sides.wait_for_log(unit, "Provisioner started")
    return unit


@pytest.fixture(scope="module")
def standby(sides: Sides, hosts: tuple[Host, Host], loop: str) -> str:
    """Start a standby on HostFactory's host, after the test in which the loop is alone."""
    unit = sides.start(hosts[0])
    sides.wait_for_log(unit, "Standing by")
    return unit


@pytest.mark.usefixtures("loop")
def test_the_loop_takes_a_lock_again_that_its_server_forgot(sides: Sides, guest: Guest) -> None:
    names = sides.complete(sides.request(2))
    signed = sides.signed()
    guest.run(f"dmesg --clear && {FORGET}")
    # A slow host may be in the middle of a write, which holds a second one.
    guest.until(lambda: LOST_LOCKS.search(guest.run("dmesg")), what="the kernel logs that a lock is lost")
    guest.until(sides.locked, what="the loop has its lock again")
    more = sides.complete(sides.request(1))

    sides.holds(names | more)
    assert sides.signed() == signed


def test_nothing_is_lost_while_the_server_is_away_and_one_loop_stays_the_loop(
    sides: Sides, guest: Guest, standby: str
) -> None:
    names, signed = sides.cloud(), sides.signed()
    returned_name = names.pop()
    guest.run("systemctl stop nfs-server")
    sides.call_in_parallel("requestMachines", [wanted(1)] * 2)
    waiting = "ps -eo stat,args | grep -c '^D.*[r]equestMachines'"
    guest.until(lambda: guest.call(waiting).text.strip() == "2", what="both wait for the server")
    guest.run("systemctl start nfs-server")
    asked = {str(answer["requestId"]) for answer in sides.collect_parallel(2)}
    returned = sides.return_machines(returned_name)
    made = {name for id_ in asked for name in sides.complete(id_)}
    sides.complete(returned)

    assert len(made) == 2
    sides.holds(names | made)
    assert sides.signed() == signed
    assert "Waiting for the previous loop to end" not in sides.log(standby)
    assert sides.owners() <= {f"{user}:{HF_USER} 660" for user in (guest.run(f"id -u {HF_USER}"), LOOP_USER)}


def test_the_lock_goes_to_another_host_from_one_that_is_cut_off_and_back_from_one_that_is_killed(
    sides: Sides, hosts: tuple[Host, Host], loop: str, standby: str
) -> None:
    names, epoch = sides.cloud(), sides.signed()["epoch"]
    hosts[1].cut_off()
    asked = sides.request(1)
    sides.wait_for_log(standby, "Waiting for the previous loop to end")
    cut_off_for = sides.signed()
    hosts[1].reconnect()
    sides.wait_for_log(loop, "This loop ends", "Standing by")
    sides.kill(standby)
    sides.wait_for_log(loop, "Standing by", "Waiting for the previous loop to end")
    made = sides.complete(asked)

    sides.holds(names | made)
    signed = sides.signed()
    assert (cut_off_for["host"], cut_off_for["epoch"]) == ("hosta", epoch + 1)
    assert (signed["host"], signed["epoch"]) == ("hostb", epoch + 2)


def test_of_an_export_that_was_made_anew_all_say_so_until_it_is_mounted_anew(
    sides: Sides, guest: Guest, hosts: tuple[Host, Host], loop: str
) -> None:
    names = sides.cloud()
    guest.run(f"systemctl kill --signal STOP {loop}")
    guest.run(f"mv {EXPORT} {EXPORT}.old && cp -a {EXPORT}.old {EXPORT} && rm -rf {EXPORT}.old && exportfs -f")
    guest.run(f"systemctl kill --signal CONT {loop}")
    refused, output = sides.call("requestMachines", wanted(1))
    assert refused == 1
    assert STALE in output
    assert STALE in sides.call("check_install")[1]
    sides.wait_for_log(loop, STALE)
    sides.stop(loop)
    for host in hosts:
        host.unmount()
        host.mount()
    sides.start(hosts[1])
    made = sides.complete(sides.request(1))

    sides.holds(names | made)
