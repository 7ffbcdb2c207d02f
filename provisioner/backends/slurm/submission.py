"""The body of a job's submission in each version of slurmrestd's API. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from provisioner.backends.slurm.settings import SlurmPool
from provisioner.model import Create

MARK = "hf"
GUARD = (
    '[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 75  # A requeued job would be another machine under the same name.\n'
)
NAME_VARIABLE = "HF_MACHINE_NAME"
STRUCTS, LISTS, SHARED = 39, 40, 42
"""Last numbers of three versions of the API: the first that writes numbers as objects, the first that writes words as
lists, and the first without the field ``exclusive``."""


class Identity(NamedTuple):
    """The owner of a job, from the job's comment: provisioner, pool, request and template."""

    provisioner: str
    pool: str
    request: str = ""
    template: str = ""

    @property
    def comment(self) -> str:
        """Return the comment of the job: ``hf:PROVISIONER/POOL/REQUEST/TEMPLATE``."""
        return f"{MARK}:{'/'.join(self)}"


def read_identity(comment: str) -> Identity | None:
    """Return the owner that a comment names; None if the comment is not ours."""
    mark, _, rest = comment.partition(":")
    parts = rest.split("/", 3)
    return Identity(*parts) if mark == MARK and len(parts) == 4 else None


def job_script(text: str) -> str:
    """Return the batch script ``text`` with an addition: the script ends at once if Slurm has requeued its job."""
    first, _, rest = text.partition("\n") if text.startswith("#!") else ("#!/bin/sh", "", text)
    return f"{first}\n{GUARD}{rest}"


def submission(pool: SlurmPool, create: Create, identity: Identity, script: str, version: int) -> dict[str, Any]:
    """Return the body of the submission of a machine's job."""
    variables = {"PATH": "/usr/bin:/bin", **pool.environment, NAME_VARIABLE: create.name}
    has_lists = version >= STRUCTS
    job: dict[str, Any] = {
        "name": create.name,
        "comment": identity.comment,
        "partition": pool.partition,
        "account": pool.account,
        "qos": pool.qos,
        "reservation": pool.reservation,
        "constraints": pool.constraints,
        "tres_per_node": pool.tres_per_node,
        "cpus_per_task": pool.cpus,
        "memory_per_node": _number(pool.memory_mb, version),
        "time_limit": _number(pool.time_limit_minutes, version),
        "environment": [f"{name}={value}" for name, value in variables.items()] if has_lists else variables,
        "current_working_directory": pool.working_directory,
        "standard_output": "/dev/null",
        "standard_error": "/dev/null",
        "tasks": 1,
        **_whole_node(pool.exclusive, version),
        # Up to v0.0.38, ``requeue: false`` is accepted and has no effect.
        **({"requeue": False} if version >= STRUCTS else {"no_requeue": True}),
    }
    return {"job": {name: value for name, value in job.items() if value is not None}, "script": job_script(script)}


def _number(value: int | None, version: int) -> int | Mapping[str, object] | None:
    return value if value is None or version < STRUCTS else {"set": True, "infinite": False, "number": value}


def _whole_node(is_exclusive: bool, version: int) -> Mapping[str, object]:
    """Return the field that gives the job a node for itself; empty if the job may share its node."""
    if not is_exclusive:
        return {}
    if version >= SHARED:
        return {"shared": ["none"]}
    return {"exclusive": ["true"] if version >= LISTS else "exclusive"}
