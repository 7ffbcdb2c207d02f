"""Bodies of submissions, checked by the models that SchedMD's own description of the API gives."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from provisioner.backends.slurm.settings import SlurmPool
from provisioner.backends.slurm.submission import GUARD, Identity, job_script, read_identity, submission
from provisioner.model import Create

CREATE = Create("hf-abcdefghij-000001", "hpc", "small", "abcdefghij")
OWNER = Identity("desk", "hpc", "abcdefghij", "small")
WITH_MODELS = (41, 42, 43, 44)
ALL = range(36, 46)


def pool(**settings: object) -> SlurmPool:
    """Return a pool with values for all that a job may have."""
    given: dict[str, Any] = {
        "name": "hpc",
        "endpoint": "https://slurm:6820",
        "user": "grid",
        "token_file": Path("token"),
        "script_file": Path("pilot.sh"),
        "partition": "batch",
        "account": "bank",
        "qos": "high",
        "reservation": "night",
        "constraints": "avx512",
        "tres_per_node": "gres/gpu:1",
        "cpus": 8,
        "memory_mb": 16_000,
        "time_limit_minutes": 600,
        "environment": {"EGO": "/opt/ego"},
    }
    return SlurmPool(**(given | settings))


def body(version: int, **settings: object) -> dict[str, Any]:
    return submission(pool(**settings), CREATE, OWNER, "#!/bin/sh\nexec pilot\n", version)


@pytest.mark.parametrize("version", WITH_MODELS)
@pytest.mark.parametrize("exclusive", [True, False])
def test_the_body_has_the_form_that_the_version_documents(version: int, exclusive: bool) -> None:
    """The version's model refuses wrong types, and drops unknown fields. So a body that the model keeps whole has the
    documented form."""
    model = getattr(import_module(f"slurmrestapi.models.v00{version}_job_submit_req"), f"V00{version}JobSubmitReq")
    sent = body(version, exclusive=exclusive)
    read = model.from_dict(sent).to_dict()
    assert {name: read["job"].get(name) for name in sent["job"]} == sent["job"]
    assert read["script"] == sent["script"]


@pytest.mark.parametrize("version", ALL)
def test_the_environment_names_the_machine(version: int) -> None:
    environment = body(version)["job"]["environment"]
    read = environment if version < 39 else dict(line.split("=", 1) for line in environment)
    assert read["HF_MACHINE_NAME"] == CREATE.name
    assert read["EGO"] == "/opt/ego"


@pytest.mark.parametrize("version", ALL)
def test_slurm_may_not_begin_a_job_again(version: int) -> None:
    """The body must forbid Slurm to requeue the job. Up to v0.0.38 it does so by ``no_requeue``, because ``requeue:
    false`` has no effect there (tried on 22.05.8)."""
    job = body(version)["job"]
    assert job.get("no_requeue" if version < 39 else "requeue") is (version < 39)


@pytest.mark.parametrize("version", ALL)
def test_a_whole_node_is_asked_for_in_the_words_of_the_version(version: int) -> None:
    job = body(version)["job"]
    asked = {name: job[name] for name in ("exclusive", "shared") if name in job}
    expected = {"shared": ["none"]} if version >= 42 else {"exclusive": ["true"] if version >= 40 else "exclusive"}
    assert asked == expected
    assert not {"exclusive", "shared"} & body(version, exclusive=False)["job"].keys()


def test_what_the_settings_leave_open_is_left_to_slurm() -> None:
    names = ("account", "qos", "reservation", "constraints", "tres_per_node", "cpus", "memory_mb", "time_limit_minutes")
    job = body(45, **dict.fromkeys(names))["job"]
    assert not {"account", "memory_per_node", "time_limit", "cpus_per_task", "qos"} & job.keys()


def test_a_script_ends_at_once_if_its_job_was_requeued() -> None:
    assert job_script("#!/bin/bash -l\nexec pilot\n") == f"#!/bin/bash -l\n{GUARD}exec pilot\n"
    assert job_script("exec pilot\n") == f"#!/bin/sh\n{GUARD}exec pilot\n"


def test_the_comment_contains_the_owner() -> None:
    assert OWNER.comment == "hf:desk/hpc/abcdefghij/small"
    assert read_identity(OWNER.comment) == OWNER
    for comment in ("", "hf:desk/hpc", "by hand: desk/hpc/abcdefghij/small"):
        assert read_identity(comment) is None
