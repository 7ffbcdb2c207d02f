"""The embedded cloud of the chaos test. It also writes a chronicle: ``python -m tests.chaos.cloud FILE simulator …``.

The chronicle is a file with one JSON object a line. Each creation and each delete of a machine has a line. A fault has
a line when it hits a target for the first time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provisioner.__main__ import main
from provisioner.lab.cloud.compute.group import Mig
from provisioner.lab.cloud.compute.managed_instance_life import MemberLife
from provisioner.lab.cloud.compute.managed_instances import Member
from provisioner.lab.cloud.compute.operations import Document, Operation
from provisioner.lab.cloud.kubernetes import pod_status
from provisioner.lab.cloud.kubernetes.pods import Cluster
from provisioner.lab.cloud.kubernetes.store import Stored
from provisioner.lab.cloud.world import Fault, World


class Chronicle:
    """The chronicle of the cloud in this process. A line is written when its event happens."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", buffering=1)
        self._struck: set[tuple[str, tuple[str, ...]]] = set()

    def keep(self) -> None:
        """Write a line for each event from now on."""
        self._keep_pods()
        self._keep_members()
        self._keep_strikes()

    def note(self, what: str, **fields: Any) -> None:
        self._file.write(json.dumps({"what": what, "at": time.time(), **fields}) + "\n")

    def _keep_pods(self) -> None:
        create, delete = Cluster.create, Cluster.delete

        def created(
            cluster: Cluster, namespace: str, document: Document, *, dry_run: bool = False, **options: Any
        ) -> Stored:
            pod = create(cluster, namespace, document, dry_run=dry_run, **options)
            if not dry_run:
                present = [[one.name, one.labels] for one in cluster.pods.select(namespace)]
                self.note("made", name=pod.name, pool=namespace, labels=pod.labels, held=present)
            return pod

        def deleted(cluster: Cluster, pod: Stored, grace: int | None = None) -> Stored:
            phase = pod_status.machine_phase(pod.document)
            self.note("delete", name=pod.name, pool=pod.namespace, labels=pod.labels, phase=phase)
            return delete(cluster, pod, grace)

        Cluster.create, Cluster.delete = created, deleted  # type: ignore[method-assign, assignment]

    def _keep_members(self) -> None:
        create, delete = MemberLife.create, Mig.delete

        def created(life: MemberLife, names: Sequence[str], preserved: Mapping[str, Document]) -> None:
            members = life._group.members
            new = [name for name in names if name not in members]
            create(life, names, preserved)
            for name in new:
                present = [[one, {}] for one in members]
                self.note("made", name=name, pool=life._group.spec.name, labels={}, held=present)

        def deleted(mig: Mig, urls: Sequence[str], *, skip_invalid: bool, request_id: str = "") -> Operation:
            for name in (url.rpartition("/")[2] for url in urls):
                if name in mig.members:
                    phase = _phase(mig.members[name])
                    self.note("delete", name=name, pool=mig.spec.name, labels={}, phase=phase)
            return delete(mig, urls, skip_invalid=skip_invalid, request_id=request_id)

        MemberLife.create, Mig.delete = created, deleted  # type: ignore[method-assign]

    def _keep_strikes(self) -> None:
        strikes = World.strikes

        def struck(world: World, mode: str, *targets: str, **chance: Any) -> Fault | None:
            fault = strikes(world, mode, *targets, **chance)
            if fault is not None and (mode, targets) not in self._struck:
                self._struck.add((mode, targets))
                self.note("struck", mode=mode, targets=targets)
            return fault

        World.strikes = struck  # type: ignore[method-assign, assignment]


def _phase(member: Member) -> str:
    runs = member.vm is not None and member.vm.status == "RUNNING" and member.action == "NONE"
    return "running" if runs else "other"


if __name__ == "__main__":
    Chronicle(Path(sys.argv.pop(1))).keep()
    main()
