"""config/slurm-first is as its comments describe it: Slurm before GKE before Spot, real times, caps and prices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from provisioner.commands.cli import run
from provisioner.settings import loader
from provisioner.settings.definitions import Settings

EXAMPLE = Path(__file__).parents[2] / "config" / "slurm-first"


@pytest.fixture(scope="module")
def settings() -> Settings:
    return loader.load(EXAMPLE / "provisioner.yaml", {"HF_PROVIDER_NAME": "gridinst"})


def test_check_misses_only_the_token(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_PROVIDER_NAME", "KUBECONFIG", "PROVISIONER_COMPUTE_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert run(["check", str(EXAMPLE), "-o", "json"]) == 0
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert warning == "pools.onprem.token_file: no such file: '/etc/hostfactory/slurm.jwt'"


def test_an_editor_finds_nothing_to_mark() -> None:
    schema = json.loads((EXAMPLE.parent / "provisioner.schema.json").read_text())
    document = yaml.safe_load((EXAMPLE / "provisioner.yaml").read_text())
    assert [error.message for error in Draft202012Validator(schema).iter_errors(document)] == []


def test_slurm_is_asked_first_then_gke_then_a_group(settings: Settings) -> None:
    (template,) = settings.template_limits.values()
    assert [settings.pools[name].kind for name in template.pools] == ["slurm", "gke", "mig"]
    limits = settings.limits()
    prices = [limits.price("Grid8", name) or 0.0 for name in template.pools]
    assert prices[0] == min(prices), "what is paid already is filled first"


def test_a_queued_machine_moves_on_before_its_request_ends(settings: Settings) -> None:
    for pool in settings.pools.values():
        assert pool.max_machines_total
        spill = pool.limits().spill_after_seconds
        assert spill is not None
        assert 180 <= spill < 60 * settings.request_deadline_minutes


def test_the_script_of_the_jobs_is_a_script_that_stays() -> None:
    first, *lines = (EXAMPLE / "machine.sh").read_text().splitlines()
    assert first == "#!/bin/bash"
    assert lines[-1].startswith("exec ")
