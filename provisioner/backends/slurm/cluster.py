"""The parts of a cluster that all pools with the same address and user share: calls, the list of jobs, and addresses of
nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

from provisioner.backends.host_addresses import HostAddresses
from provisioner.backends.http import Document
from provisioner.backends.responses import translated_errors
from provisioner.backends.shared_list import SharedList
from provisioner.backends.slurm.api import CALL_SECONDS, SlurmApi
from provisioner.backends.slurm.settings import SlurmPool
from provisioner.names import group_by

JobsByName = Mapping[str, Sequence[Document]]


class Cluster:
    """A Slurm cluster. The constructor sends no call."""

    def __init__(self, pool: SlurmPool, seconds: float = CALL_SECONDS) -> None:
        """Prepare the calls. ``pool``: any pool of the cluster. Raise BackendError if the file of certificate
        authorities (``ca_file``) cannot be used."""
        self.api = SlurmApi(pool, seconds)
        self.list: SharedList[JobsByName] = SharedList(lambda _: self.read_list())
        self.addresses = HostAddresses(self.api.node_address)

    @translated_errors()
    def read_list(self) -> JobsByName:
        """Return the records of all jobs that the user sees, by name. Raise BackendError if the call fails or the list
        may lack jobs."""
        return group_by(itemgetter("name"), self.api.jobs())
