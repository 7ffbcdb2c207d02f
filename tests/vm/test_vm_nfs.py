"""The state directory on NFS: the kernel's server, and its client twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.vm.build import TESTS
from tests.vm.guest import Guest
from tests.vm.shared import EXPORT, ONE, OPTIONS, TWO, VERSIONS, exported, mount
from tests.vm.sides import LOOP_USER, Sides

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1200)]

USER = "egoadmin"
ENVIRONMENT = f"HF_PYTHON={TESTS}/bin/python PYTHONDONTWRITEBYTECODE=1"


@pytest.fixture
def export(guest: Guest) -> Iterator[None]:
    with exported(guest, USER):
        yield


@pytest.mark.parametrize("versions", VERSIONS.values(), ids=VERSIONS)
@pytest.mark.usefixtures("export")
def test_what_holds_on_a_local_directory_holds_on_two_mounts(guest: Guest, versions: tuple[str, str]) -> None:
    for place, version in zip((ONE, TWO), versions, strict=True):
        mount(guest, place, version)
    assert "Permission denied" in guest.call(f"touch {ONE}/of-root").text  # roots are squashed
    printed = guest.run(
        f"cd /opt/repo && {ENVIRONMENT} TEST_NFS_MOUNTS={ONE}:{TWO} {TESTS}/bin/python -m pytest --noconftest "
        "-p no:cacheprovider -q tests/integration/test_shared_state.py",
        user=USER,
        seconds=600,
    )

    assert " passed" in printed
    assert "skipped" not in printed


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
    guest.run(f"chown root:{USER} {EXPORT}")
    guest.write("/etc/nfs.conf.d/groups.conf", "[mountd]\nmanage-gids=n\n")
    guest.run(LOOKED_UP_ANEW)
    made = Sides(guest)
    try:
        yield made
    finally:
        made.end()
        guest.run(f"rm /etc/nfs.conf.d/groups.conf && {LOOKED_UP_ANEW}")


@pytest.mark.outage
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
    group = guest.run(f"id -g {USER}")
    assert sides.owners() <= {f"{user}:{USER} 660" for user in (guest.run(f"id -u {USER}"), LOOP_USER)}

    assert sides.locked()
    guest.run(FORGET[kind])
    guest.until(sides.locked, what="the loop has its lock again")

    guest.run(f"until rm -rf {EXPORT}; do :; done; install -d -m 2770 -g {group} {EXPORT} && exportfs -f")
    refused, said = sides.call("requestMachines", {"template": {"templateId": "T", "machineCount": 1}})
    assert refused == 1
    assert "Its NFS server has another file or directory there by now: mount it anew" in said
    assert "mount it anew" in sides.call("check_install")[1]
    sides.told("hosta", "Its NFS server has another file or directory there by now: mount it anew")


@pytest.mark.outage
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


@pytest.mark.outage
@pytest.mark.usefixtures("export")
def test_a_server_that_looks_groups_up_itself_is_named(guest: Guest) -> None:
    """As Debian's does unless it is told otherwise: what groups the loop's user has on his host counts for nothing."""
    mount(guest, ONE, "4.1")
    sides = Sides(guest)
    guest.run(f"chown root:{USER} {EXPORT}")
    said = sides.checked_by_loop()
    sides.end()

    assert f"fix: {ONE}: {LOOP_USER} may not write here" in said
    assert "the file server looks groups up itself" in said


@pytest.mark.usefixtures("export")
def test_two_mounts_that_are_one_client_to_the_server_are_no_proof(guest: Guest) -> None:
    for place in (ONE, TWO):
        mount(guest, place, "4.1")
    ended = guest.call(
        f"cd /opt/repo && {ENVIRONMENT} TEST_NFS_MOUNTS={ONE}:{TWO} {TESTS}/bin/python -m pytest --noconftest "
        "-p no:cacheprovider -q tests/integration/test_shared_state.py -k lock_of_one_side",
        user=USER,
    )

    assert ended.code == 1
    assert "are one client to the server" in ended.text


@pytest.mark.parametrize(
    ("version", "options", "words"),
    [
        pytest.param("3", OPTIONS, f"fine: {ONE}: on nfs mounted at {ONE}", id="NFS 3 as it has to be"),
        pytest.param("4.1", OPTIONS, f"fine: {ONE}: on nfs4 mounted at {ONE}", id="NFS 4.1 as it has to be"),
        pytest.param("4.1", "hard", "with caches: mount it with lookupcache=none,actimeo=0", id="with caches"),
        pytest.param("3", f"nolock,{OPTIONS}", "with local locks: mount it without nolock", id="without locks"),
        pytest.param("3", f"soft,{OPTIONS.removeprefix('hard,')}", "soft: mount it with hard", id="soft"),
    ],
)
@pytest.mark.usefixtures("export")
def test_the_check_of_an_installation_names_the_mount(guest: Guest, version: str, options: str, words: str) -> None:
    mount(guest, ONE, version, options)
    printed = guest.call(
        f"{ENVIRONMENT} HF_PROVIDER_NAME=demoinst HF_PROVIDER_CONFDIR=/opt/repo/config/demoinst "
        f"HF_PROVIDER_WORKDIR={ONE} HF_PROVIDER_LOGDIR=/tmp /opt/repo/hf_scripts/check_install.sh",
        user=USER,
    ).text

    assert words in printed
    locked = f"fine: {ONE}: locks of one process are seen by another"
    assert locked in printed
