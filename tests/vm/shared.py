"""One directory of the guest's NFS server, mounted twice, as two hosts have it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.vm.guest import Guest

EXPORT = "/srv/export"
OPTIONS = "hard,lookupcache=none,actimeo=0"
"""Those of docs/deploy-gke.md."""

ONE, TWO = "/mnt/one", "/mnt/two"

VERSIONS = {"3": ("3", "3"), "4": ("4.1", "4.2")}
"""Of both mounts. To the server two mounts of one version 4.x are one client, which it lets keep old files."""


@contextmanager
def exported(guest: Guest, owner: str) -> Iterator[None]:
    """An empty export, its server running; all that was mounted of it goes."""
    guest.run(f"rm -rf {EXPORT} && install -d -m 2770 -o {owner} -g {owner} {EXPORT} && install -d {ONE} {TWO}")
    guest.run("systemctl restart nfs-server")
    try:
        yield
    finally:
        # Asked of the kernel's list: one that has no directory any more is no mount point to who looks at it.
        guest.run(f'for place in {ONE} {TWO}; do ! grep -q " $place nfs" /proc/mounts || umount $place || exit; done')


def mount(guest: Guest, place: str, version: str, options: str = OPTIONS) -> None:
    """``nosharecache``: each mount has caches of its own, as on two hosts."""
    guest.run(f"mount -t nfs -o vers={version},nosharecache,{options} 127.0.0.1:{EXPORT} {place}")
