"""``slurm_nodes.json``: the request and the machine of each node of Slurm. Slurm's programs and the demand service
write the file under its lock.

The file may be lost. The demand service then finds each running node's machine again, because Slurm keeps the machine's
name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from provisioner.state.atomic import Located, parse, read_if_present, replace
from provisioner.state.errors import StateUnreadable
from provisioner.state.locks import DataLock

ADVICE = "Remove the file: the demand service makes it again from Slurm's own records."


class NodeRecord(NamedTuple):
    """The record of a node that Slurm wants to run."""

    request: str
    """Id of the request that was made for the node."""
    machine: str = ""
    """Name of the machine, which contains its slot; empty until a machine runs."""


class SlurmNodes(Located):
    """The file with the record of each node."""

    def read(self) -> dict[str, NodeRecord]:
        """Return the record of each node; empty if there is no file. Raises StateUnreadable."""
        content = read_if_present(self.path, ADVICE)
        rows = {} if content is None else parse(self.path, content, ADVICE)
        try:
            return {node: NodeRecord(**record) for node, record in rows.items()}
        except (AttributeError, TypeError) as error:
            raise StateUnreadable(f"{self.path}: {error}. {ADVICE}") from error

    @contextmanager
    def changing(self) -> Iterator[dict[str, NodeRecord]]:
        """Yield the records, which the block may change. Hold the file's lock during the block. If the block has
        changed the records, write them durably at the end. Raises StateError."""
        with DataLock(f"{self.path}.lock") as lock:
            records = self.read()
            before = dict(records)
            yield records
            if records != before:
                rows = {node: record._asdict() for node, record in records.items()}
                replace(self.path, json.dumps(rows).encode(), check=lock.check)

    def change(self, before: Mapping[str, NodeRecord], after: Mapping[str, NodeRecord]) -> dict[str, NodeRecord]:
        """Replace the records that differ between ``before`` and ``after``. Return the record of each node. Raises
        StateError.

        A record stays if another process has changed it since ``before`` was read.
        """
        with self.changing() as records:
            for node in [node for node in {**before, **after} if records.get(node) == before.get(node)]:
                records.pop(node, None)
                records |= {node: after[node]} if node in after else {}
            return records
