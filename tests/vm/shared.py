"""A directory of the guest's NFS server. Two mounts act like two hosts, and two hosts have separate networks."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from tests.vm.guest import SECONDS, Guest

EXPORT = "/srv/export"
OPTIONS = "hard,lookupcache=none,actimeo=0"
"""Mount options from docs/deploy-gke.md."""

ONE, TWO = "/mnt/one", "/mnt/two"

VERSIONS = {"3": ("3", "3"), "4": ("4.1", "4.2")}
"""NFS versions of both mounts, by major version.

For the server two mounts of the same version 4.x are one client, which may keep old files.
"""


@contextmanager
def exported(guest: Guest, owner: str) -> Iterator[None]:
    """Run the server with an empty export. At the end, unmount the export."""
    guest.run(f"rm -rf {EXPORT} && install -d -m 2770 -o {owner} -g {owner} {EXPORT} && install -d {ONE} {TWO}")
    guest.run("systemctl restart nfs-server")
    try:
        yield
    finally:
        # From the kernel's list, because a mount whose directory is gone is no mount point for other tools.
        guest.run(f'for place in {ONE} {TWO}; do ! grep -q " $place nfs" /proc/mounts || umount $place || exit; done')


def mount(guest: Guest, place: str, version: str, options: str = OPTIONS) -> None:
    """Mount with ``nosharecache``, so that each mount has its own caches, as on two hosts."""
    guest.run(f"mount -t nfs -o vers={version},nosharecache,{options} 127.0.0.1:{EXPORT} {place}")


class Host:
    """A simulated host in the guest, with its own network, name and mount. To the NFS server it is another client.

    NFS 4 in the kernel keeps its state by network. So a fault of one host's server or network disturbs no other mount.
    NFS 3 cannot be used, because all networks share the kernel's one lock daemon.
    """

    def __init__(self, guest: Guest, name: str, place: str, number: int) -> None:
        self.name, self.place = name, place
        self._guest, self._server = guest, f"10.9.{number}.1"
        guest.run(
            f"ip netns add {name} && ip link add {name} type veth peer name eth0 netns {name} && "
            f"ip address add {self._server}/24 dev {name} && ip link set {name} up && "
            f"ip -n {name} address add 10.9.{number}.2/24 dev eth0 && ip -n {name} link set eth0 up && "
            f"ip -n {name} link set lo up"
        )

    def mount(self) -> None:
        """Mount the export with NFS 4.1 and our options over this host's network. All processes of the guest see it."""
        command = f"hostname {self.name} && mount -t nfs -o vers=4.1,{OPTIONS} {self._server}:{EXPORT} {self.place}"
        self._guest.run(f"nsenter --net=/run/netns/{self.name} unshare --uts sh -c {shlex.quote(command)}")

    def unmount(self) -> None:
        """Unmount cleanly, which fails while a process uses the mount."""
        self._guest.run(f"umount {self.place}")

    def cut_off(self) -> None:
        """Cut the host off from its server."""
        self._guest.run(f"ip link set {self.name} down")

    def reconnect(self) -> None:
        """Connect the host again; has no effect if it was not cut off."""
        self._guest.run(f"ip link set {self.name} up")

    def end(self) -> None:
        """Unmount in any state of the mount."""
        self._guest.run(f"umount --force --lazy {self.place}; ip netns delete {self.name}")


def machines_at(guest: Guest, port: int) -> set[str]:
    """Return the names of the machines that a simulated cloud holds.

    Use bash, because Python takes seconds to start in the guest.
    """
    ask = f"exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET /control/state HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
    _, _, document = guest.run(f"bash -c {shlex.quote(ask)}").partition("{")
    return {machine["name"] for machine in json.loads("{" + document)["machines"]}


def until_ended(guest: Guest, state: str, id_: str, seconds: float = SECONDS) -> None:
    """Wait until status.json shows the end of a request. A script would take seconds to read it."""

    def ended() -> bool:
        published = guest.call(f"cat {state}/status.json")
        return not published.code and json.loads(published.text)["answers"].get(id_, {}).get("ended", False)

    guest.until(ended, seconds, what=f"{id_} has ended")
