"""config/production is as its comments describe it: no warning, real times, caps, and Spot before on demand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from provisioner.commands.cli import run
from provisioner.settings import loader
from provisioner.settings.definitions import Settings

EXAMPLE = Path(__file__).parents[2] / "config" / "production"
SPOT = {"gke-spot", "mig-spot"}


@pytest.fixture(scope="module")
def settings() -> Settings:
    return loader.load(EXAMPLE / "provisioner.yaml", {"HF_PROVIDER_NAME": "gridinst"})


def test_check_finds_nothing_to_say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_PROVIDER_NAME", "KUBECONFIG", "PROVISIONER_COMPUTE_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert run(["check", str(EXAMPLE), "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["warnings"] == []


def test_an_editor_finds_nothing_to_mark() -> None:
    schema = json.loads((EXAMPLE.parent / "provisioner.schema.json").read_text())
    document = yaml.safe_load((EXAMPLE / "provisioner.yaml").read_text())
    assert [error.message for error in Draft202012Validator(schema).iter_errors(document)] == []


def test_times_are_those_of_a_real_cloud(settings: Settings) -> None:
    for pool in settings.pools.values():
        assert pool.boot_deadline_seconds >= 600
        assert pool.boot_deadline_seconds > pool.limits().spill_after_seconds >= 180
        assert pool.mass_loss_seconds == 60
        assert pool.lag_seconds >= (30 if pool.kind == "mig" else 0)


def test_each_pool_has_a_cap_and_a_price_within_the_budget(settings: Settings) -> None:
    limits = settings.limits()
    most = 0.0
    for name, pool in settings.pools.items():
        assert pool.max_machines_total is not None
        assert pool.price_per_hour is not None
        most += pool.max_machines_total * pool.price_per_hour
        assert {limits.price(template, name) for template in settings.template_limits} == {pool.price_per_hour}
    assert settings.budget.per_hour is not None
    assert settings.budget.per_hour > most, "the budget is for mistakes: caps bind before it"


def test_spot_is_asked_first_and_what_must_not_wait_is_on_demand(settings: Settings) -> None:
    pools = {name: limits.pools for name, limits in settings.template_limits.items()}
    assert set(pools["Batch8"][:2]) == SPOT
    assert pools["Batch8"][2] == "gke-ondemand"
    assert not SPOT & set(pools["Urgent8"])
    assert {pool.kind for pool in settings.pools.values()} == {"gke", "mig"}
    assert settings.pools["gke-ondemand"].max_machines == 600, "room is left for Urgent8"


def test_a_spot_pod_asks_for_spot_and_ends_within_its_notice() -> None:
    specs = {path.stem: yaml.safe_load(path.read_text()) for path in (EXAMPLE / "pod-specs").iterdir()}
    spot, ondemand = specs["spot"]["spec"], specs["ondemand"]
    assert spot["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert spot["tolerations"][0]["key"] == "cloud.google.com/gke-spot"
    assert spot["terminationGracePeriodSeconds"] <= 15 < ondemand["terminationGracePeriodSeconds"]
    assert "cloud.google.com/gke-spot" not in ondemand["nodeSelector"]
