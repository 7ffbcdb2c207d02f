"""Shards: which loop has a pool, by the key of the provider config and by hash."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from provisioner.hostfactory.shards import SHARD_VARIABLE, find_shard, parse, read_shard, serving_shards
from tests.support.hostfactory.sites import Site, small_site, template

POOLS = [f"pool-{number}" for number in range(800)]


def test_pools_spread_evenly_and_few_move_with_another_number_of_shards() -> None:
    eight = {pool: find_shard(pool, [()] * 8) for pool in POOLS}
    counts = Counter(eight.values())
    assert set(counts) == set(range(8))
    assert max(counts.values()) < 1.4 * 100
    moved = [pool for pool in POOLS if find_shard(pool, [()] * 9) != eight[pool]]
    assert len(moved) < 800 / 9 * 1.4
    assert {find_shard(pool, [()] * 9) for pool in moved} == {8}


def test_the_setting_gives_a_pool_to_a_shard() -> None:
    shards = parse([[], ["pool-1"], ["pool-2", "pool-3"]])
    assert shards is not None
    assert [find_shard(f"pool-{number}", shards) for number in (1, 2, 3)] == [1, 2, 2]
    assert serving_shards(["pool-1", "pool-3", "pool-2"], shards) == [1, 2]
    assert serving_shards(POOLS, shards) == [0, 1, 2]


@pytest.mark.parametrize("value", [0, 36, True, "3", {}, [], [["a"], "b"], [[1]], [["a"], ["a"]], [[]] * 36, 1.0])
def test_other_values_are_refused(value: object) -> None:
    assert parse(value) is None


def test_the_loop_reads_its_number_from_the_environment() -> None:
    assert [read_shard([()] * 3, {SHARD_VARIABLE: text}) for text in ("", "0", "2")] == [None, 0, 2]
    for text in ("3", "-1", "x", "٣"):
        with pytest.raises(ValueError, match=r"PROVISIONER_SHARD: expected the number of this loop's shard, 0 to 2"):
            read_shard([()] * 3, {SHARD_VARIABLE: text})
    with pytest.raises(ValueError, match="no value, without STATE_SHARDS, got '0'"):
        read_shard((), {SHARD_VARIABLE: "0"})


@pytest.fixture
def sharded(tmp_path: Path) -> Site:
    """A site with two loops: one has the GKE pool, the other the MIG."""
    site = small_site(tmp_path)
    site.provider = {"STATE_SHARDS": [["gke-main"], ["mig-a"]]}
    site.settings["budget"] = {"per_hour": 10, "per_month": 1000}
    site.settings["pools"] = {name: {**pool, "price_per_hour": 1} for name, pool in site.settings["pools"].items()}
    site.templates.append(template("Pods", pools=["gke-main"]))
    return site


def test_a_shard_has_its_own_pools_names_and_part_of_the_budget(sharded: Site) -> None:
    whole = sharded.load()
    parts = []
    for number in ("0", "1"):
        sharded.environment = {SHARD_VARIABLE: number}
        parts.append(sharded.load())
    assert [list(part.pools) for part in (whole, *parts)] == [["gke-main", "mig-a"], ["gke-main"], ["mig-a"]]
    assert [part.id for part in (whole, *parts)] == ["demo", "demo-s0", "demo-s1"]
    assert [part.instance for part in (whole, *parts)] == ["t", "t-s0", "t-s1"]
    assert [{id_: limits.pools for id_, limits in part.template_limits.items()} for part in parts] == [
        {"Mixed": ("gke-main",), "Pods": ("gke-main",)},
        {"Mixed": ("mig-a",)},
    ]
    assert [(part.budget.per_hour, part.budget.per_month) for part in parts] == [(5, 500), (5, 500)]
    assert [part.limits().prefix for part in parts] == [whole.limits().prefix] * 2


def test_mistakes_are_named(sharded: Site) -> None:
    sharded.provider = {"STATE_SHARDS": [["gke-mian"], []]}
    assert sharded.problems() == ["tprov_config.json: STATE_SHARDS: unknown pool 'gke-mian'; did you mean 'gke-main'?"]
    sharded.provider = {"STATE_SHARDS": "two"}
    [problem] = sharded.problems()
    assert "STATE_SHARDS: expected a number of loops, 1 to 35, or for each a list of pool names, got" in problem
    sharded.provider, sharded.environment = {"STATE_SHARDS": 2}, {SHARD_VARIABLE: "2"}
    [problem] = sharded.problems()
    assert "PROVISIONER_SHARD: expected the number of this loop's shard, 0 to 1, got '2'" in problem


def test_a_template_names_the_pools_that_the_scripts_cannot_find(sharded: Site) -> None:
    place = {"gcp_zone": "us-central1-a", "gcp_instance_group": "hf-a"}
    sharded.templates.append(template("Google", **place))
    sharded.provider["GCP_PROJECT_ID"] = "demo-project"
    [problem] = sharded.problems()
    assert problem.endswith("templates.Google.pools: Google uses pool mig-a; with STATE_SHARDS, name it here")
