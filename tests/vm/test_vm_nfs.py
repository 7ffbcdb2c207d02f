"""The state directory on NFS: the kernel's server, and its client twice."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest

from tests.vm.build import TESTS
from tests.vm.guest import Guest
from tests.vm.shared import ONE, OPTIONS, TWO, VERSIONS, exported, mount

pytestmark = [pytest.mark.vm, pytest.mark.nfs, pytest.mark.timeout(1200)]

USER = "egoadmin"
ENVIRONMENT = f"HF_PYTHON={TESTS}/bin/python PYTHONDONTWRITEBYTECODE=1"


@pytest.fixture
def export(guest: Guest) -> Iterator[None]:
    with exported(guest, USER):
        yield


@pytest.mark.parametrize("versions", VERSIONS.values(), ids=VERSIONS)
@pytest.mark.usefixtures("export")
def test_the_tests_of_a_local_directory_pass_on_two_mounts(guest: Guest, versions: tuple[str, str]) -> None:
    """Run tests/integration/test_shared_state.py on two mounts. Loops on NFS 4 are tested in test_vm_outage.py."""
    chosen = "" if versions == VERSIONS["3"] else "-m 'not slow'"
    for place, version in zip((ONE, TWO), versions, strict=True):
        mount(guest, place, version)
    assert "Permission denied" in guest.call(f"touch {ONE}/of-root").text  # roots are squashed
    printed = guest.run(
        f"cd /opt/repo && {ENVIRONMENT} TEST_NFS_MOUNTS={ONE}:{TWO} {TESTS}/bin/python -m pytest --noconftest "
        f"-p no:cacheprovider -q {chosen} tests/integration/test_shared_state.py",
        user=USER,
        seconds=600,
    )

    assert " passed" in printed
    assert "skipped" not in printed


MOUNTS = {
    "NFS 3 as it has to be": ("3", OPTIONS, "fine: {}: on nfs mounted at {}"),
    "NFS 4.1 as it has to be": ("4.1", OPTIONS, "fine: {}: on nfs4 mounted at {}"),
    "with caches": ("4.1", "hard", "with caches: mount it with lookupcache=none,actimeo=0"),
    "without locks": ("3", f"nolock,{OPTIONS}", "with local locks: mount it without nolock"),
    "soft": ("3", f"soft,{OPTIONS.removeprefix('hard,')}", "soft: mount it with hard"),
}
LOOK = """
import sys
from hf_scripts import host_checks
for place in sys.argv[1:]:
    print(*host_checks.check_filesystem(place), sep="\\n")
"""


@pytest.mark.usefixtures("export")
def test_the_check_of_an_installation_names_each_mount(guest: Guest) -> None:
    """The kernel reports the options of each mount. One process checks all mounts, because Python takes seconds to
    start in the guest."""
    places = {name: f"/mnt/checked-{number}" for number, name in enumerate(MOUNTS)}
    for name, (version, options, _) in MOUNTS.items():
        guest.run(f"install -d {places[name]}")
        mount(guest, places[name], version, options)
    program = f"cd /opt/repo && {ENVIRONMENT} {TESTS}/bin/python -c {shlex.quote(LOOK)} {' '.join(places.values())}"
    printed = guest.call(program, user=USER).text
    guest.run(f"umount {' '.join(places.values())}")

    for name, (_, _, words) in MOUNTS.items():
        place = places[name]
        lines = "\n".join(line for line in printed.splitlines() if f": {place}: " in line)
        assert words.format(place, place) in lines, name
        assert f"fine: {place}: locks of one process are seen by another" in lines, name
