"""The state directory on NFS: the kernel's server, and its client twice."""

from __future__ import annotations

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


@pytest.mark.usefixtures("export")
def test_two_mounts_that_are_one_client_to_the_server_are_no_proof(guest: Guest) -> None:
    """Seen once the server lets clients keep files: its lock daemon first waits for locks from before its start."""
    for place in (ONE, TWO):
        mount(guest, place, "4.1")
    printed: list[str] = []

    def refused() -> bool:
        ended = guest.call(
            f"cd /opt/repo && {ENVIRONMENT} TEST_NFS_MOUNTS={ONE}:{TWO} {TESTS}/bin/python -m pytest --noconftest "
            "-p no:cacheprovider -q tests/integration/test_shared_state.py -k lock_of_one_side",
            user=USER,
        )
        printed.append(ended.text)
        return ended.code == 1

    guest.until(refused, what="the server lets clients keep files")
    assert "are one client to the server" in printed[-1]


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
