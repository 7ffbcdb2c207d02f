"""The token of a cluster. A metric shows when the token expires, also after it has expired."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from provisioner.backends import Measuring
from provisioner.backends.slurm.kind import KIND
from provisioner.backends.slurm.settings import SlurmPool
from provisioner.schema.setting_types import Site


def backend(directory: Path, token: str) -> Measuring:
    """Return the backend of a pool with this token."""
    (directory / "token").write_text(token)
    (directory / "pilot.sh").write_text("#!/bin/sh\n")
    files = {"token_file": directory / "token", "script_file": directory / "pilot.sh"}
    pool = SlurmPool(name="hpc", endpoint="http://127.0.0.1:9", user="grid", partition="grid", **files)
    made = KIND.factory(Site("demo", "hf"))(pool)
    assert isinstance(made, Measuring)
    return made


def jwt(**claims: float) -> str:
    """Return a token with these claims."""
    parts = (urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in ({"alg": "HS256"}, claims))
    return ".".join((*parts, "c2lnbmF0dXJl"))


@pytest.mark.parametrize("left", [3600.0, -60.0], ids=["ahead", "past"])
def test_the_end_of_the_token_is_a_metric_before_and_after_it(tmp_path: Path, left: float) -> None:
    end = float(int(time.time() + left))
    (measure,) = backend(tmp_path, f"SLURM_JWT={jwt(exp=end, iat=1)}\n").measures()
    assert (measure.name, measure.value) == ("token_end_timestamp_seconds", end)


@pytest.mark.parametrize("token", ["", "no token", "a.b.c", jwt(iat=1)])
def test_a_token_without_an_end_has_no_metric(tmp_path: Path, token: str) -> None:
    made = backend(tmp_path, token)
    assert made.measures() == []
    (tmp_path / "token").unlink()
    assert made.measures() == []
