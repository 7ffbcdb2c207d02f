"""Projects, whose pools share lists and a budget of calls."""

from __future__ import annotations

from pathlib import Path

from provisioner.backends.mig.settings import MigPool
from provisioner.backends.mig.shared_lists import Projects
from provisioner.schema.setting_types import Site


def test_pools_of_one_project_share_and_others_do_not() -> None:
    projects = Projects(Site("demo", "hf"))
    pool = MigPool(name="a", project="p", zone="us-central1-a", group="g")
    same = MigPool(name="b", project="p", region="us-east1", group="h")
    other = MigPool(name="c", project="q", zone="us-central1-a", group="g")
    assert projects.get_project(pool) is projects.get_project(same)
    assert projects.get_project(pool) is not projects.get_project(other)
    assert projects.get_project(pool).budget is not projects.get_project(other).budget


def test_a_project_has_one_budget_of_calls_whoever_makes_them() -> None:
    projects = Projects(Site("demo", "hf"))
    pool = MigPool(name="a", project="p", zone="us-central1-a", group="g")
    other = pool.model_copy(update={"name": "b", "credentials": Path("/other/key.json")})
    assert projects.get_project(pool) is not projects.get_project(other)
    assert projects.get_project(pool).budget is projects.get_project(other).budget
    elsewhere = pool.model_copy(update={"name": "c", "endpoint": "http://127.0.0.1:9"})
    assert projects.get_project(pool).budget is not projects.get_project(elsewhere).budget, (
        "another cloud counts for itself"
    )
