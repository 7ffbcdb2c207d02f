"""What becomes of scripts and loops when their NFS server is away, forgets or is made anew, and a host is cut off.

Each in a guest of its own: an outage leaves the kernel's client and server in a state that later mounts hang in.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.vm.guest import Guest
from tests.vm.shared import EXPORT, ONE, TWO, VERSIONS, exported, mount
from tests.vm.sides import HF_USER, LOOP_USER, Sides

pytestmark = [pytest.mark.vm, pytest.mark.outage, pytest.mark.timeout(1200)]


@pytest.fixture
def guest(own_guest: Guest) -> Guest:
    return own_guest


@pytest.fixture
def export(guest: Guest) -> Iterator[None]:
    with exported(guest, HF_USER):
        yield


FORGET = {
    "3": f"echo {EXPORT} > /proc/fs/nfsd/unlock_filesystem",
    "4": "grep -l 'minor version: 2' /proc/fs/nfsd/clients/*/info | while read -r of; do "
    'echo expire > "$(dirname "$of")/ctl"; done',
}
"""How the server forgets the locks of the second mount, as of a host that it has not heard of for long."""


LOOKED_UP_ANEW = (
    "systemctl restart nfs-mountd nfs-server && echo $(($(date +%s) + 1)) > /proc/net/rpc/auth.unix.gid/flush"
)
"""mountd takes its settings, and forgets what groups it knew users to be in. The server, which systemd starts anew with
it, is named so that it is waited for: a mount meanwhile hangs."""


@pytest.fixture
def sides(guest: Guest, export: None) -> Iterator[Sides]:
    guest.run(f"chown root:{HF_USER} {EXPORT}")
    guest.write("/etc/nfs.conf.d/groups.conf", "[mountd]\nmanage-gids=n\n")
    guest.run(LOOKED_UP_ANEW)
    made = Sides(guest)
    try:
        yield made
    finally:
        made.end()
        guest.run(f"rm /etc/nfs.conf.d/groups.conf && {LOOKED_UP_ANEW}")


@pytest.mark.parametrize("kind", VERSIONS)
def test_two_users_go_on_after_their_server_was_away_forgot_their_locks_or_lost_their_directory(
    sides: Sides, guest: Guest, kind: str
) -> None:
    for place, version in zip((ONE, TWO), VERSIONS[kind], strict=True):
        mount(guest, place, version)
    sides.start("hosta", TWO)
    names = sides.complete(sides.request(2))
    guest.run("systemctl restart nfs-server")
    more, back = sides.request(1), sides.give_back(names[0])
    sides.complete(back)
    kept = {names[1], *sides.complete(more)}
    guest.until(lambda: sides.cloud() == kept, what="exactly these are left")
    assert sides.asked("getReturnRequests", {"machines": [{"name": name, "machineId": name} for name in kept]})
    group = guest.run(f"id -g {HF_USER}")
    assert sides.owners() <= {f"{user}:{HF_USER} 660" for user in (guest.run(f"id -u {HF_USER}"), LOOP_USER)}

    assert sides.locked()
    guest.run(FORGET[kind])
    guest.until(sides.locked, what="the loop has its lock again")

    guest.run(f"until rm -rf {EXPORT}; do :; done; install -d -m 2770 -g {group} {EXPORT} && exportfs -f")
    refused, said = sides.call("requestMachines", {"template": {"templateId": "T", "machineCount": 1}})
    assert refused == 1
    assert "Its NFS server has another file or directory there by now: mount it anew" in said
    assert "mount it anew" in sides.call("check_install")[1]
    sides.told("hosta", "Its NFS server has another file or directory there by now: mount it anew")


def test_another_host_takes_over_from_one_that_is_cut_off_which_stands_by_when_it_is_back(
    sides: Sides, guest: Guest
) -> None:
    for place, version in zip((ONE, TWO), VERSIONS["4"], strict=True):
        mount(guest, place, version)
    sides.start("hosta", TWO)
    names = sides.complete(sides.request(2))
    cut_off = sides.request(1)
    guest.run("systemctl kill --signal STOP hosta")
    sides.start("hostb", ONE)
    sides.told("hostb", "Standing by")
    guest.run(FORGET["4"])
    sides.told("hostb", "Waiting for the loop before to end")
    back = sides.give_back(names[0])
    kept = {names[1], *sides.complete(cut_off), *sides.complete(sides.request(1))}
    sides.complete(back)
    guest.run("systemctl kill --signal CONT hosta")
    sides.told("hosta", "this one ends")
    sides.told("hosta", "Standing by")
    kept |= {*sides.complete(sides.request(1))}

    guest.until(lambda: sides.cloud() == kept, what="exactly these are left")


@pytest.mark.usefixtures("export")
def test_a_server_that_looks_groups_up_itself_is_named(guest: Guest) -> None:
    """As Debian's does unless it is told otherwise: what groups the loop's user has on his host counts for nothing."""
    mount(guest, ONE, "4.1")
    sides = Sides(guest)
    guest.run(f"chown root:{HF_USER} {EXPORT}")
    said = sides.checked_by_loop()
    sides.end()

    assert f"fix: {ONE}: {LOOP_USER} may not write here" in said
    assert "the file server looks groups up itself" in said
