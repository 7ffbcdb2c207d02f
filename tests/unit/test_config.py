"""The configuration: what it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from provisioner.backends.gke.settings import GkePool
from provisioner.backends.mig.settings import MigPool
from provisioner.model import PoolLimits, TemplateLimits
from provisioner.settings import loader
from tests.support.hostfactory.sites import Site, small_site, template

EXAMPLES = Path(__file__).parents[2] / "config" / "demoinst"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return small_site(tmp_path)


def test_the_example_is_right_and_says_what_the_plan_needs() -> None:
    promised = loader.load(EXAMPLES / "provisioner.yaml", {"HF_PROVIDER_NAME": "demoinst"}).limits()

    assert list(promised.pools) == ["gke-main", "gke-spare", "mig-a", "mig-b"]
    assert promised.prefix == "hf"
    assert {name: limits.pools for name, limits in promised.templates.items()} == {
        "GkePod": ("gke-main", "gke-spare"),
        "GceVm": ("mig-a", "mig-b"),
        "Mixed": ("gke-main", "mig-a"),
    }
    assert (promised.pools["gke-main"].max_machines, promised.pools["gke-main"].initial_window) == (200, 50)


def test_minutes_and_hours_become_seconds(site: Site) -> None:
    site.settings |= {
        "request_deadline_minutes": 2,
        "return_deadline_minutes": 3,
        "orphan_grace_minutes": 0.5,
        "cancel_after_minutes": 4,
        "retention_hours": 2,
        "orphan_cap_per_hour": 7,
        "backoff": {"first_seconds": 1, "last_seconds": 9},
        "adopt_prefixes": ["sym-"],
        "delete_unlisted_after_hours": 48,
    }

    limits = site.load().limits()

    assert limits.delete_unlisted_after == 48 * 3600
    assert (limits.request_deadline, limits.return_deadline, limits.orphan_grace) == (120, 180, 30)
    assert (limits.cancel_after, limits.retention, limits.orphan_cap_per_hour) == (240, 7200, 7)
    assert (limits.backoff_first, limits.backoff_last, limits.adopt_prefixes) == (1, 9, ("sym-",))


def test_every_limit_of_a_pool_comes_from_its_settings(site: Site) -> None:
    site.settings["pools"]["mig-a"] |= {
        "max_machines": 5,
        "max_machines_total": 6,
        "max_pending": 4,
        "initial_window": 3,
        "boot_deadline_seconds": 60,
        "early_loss_seconds": 0,
        "spill_after_seconds": 20,
        "lag_seconds": 2,
        "mass_loss_seconds": 30,
        "observe_seconds": 15,
        "paused": True,
    }

    assert site.load().limits().pools["mig-a"] == PoolLimits(
        name="mig-a",
        max_machines=5,
        max_machines_total=6,
        max_pending=4,
        initial_window=3,
        boot_deadline=60,
        early_loss=0,
        spill_after=20,
        lag=2,
        mass_loss=30,
        stale_after=90,
        paused=True,
        where="group hf-a in us-central1-a of project demo-project",
    )


def test_where_machines_are_does_not_depend_on_how_the_place_is_reached(site: Site) -> None:
    first = site.load().limits().pools
    assert first["gke-main"].where == "namespace grid"
    site.settings["pools"]["gke-main"]["context"] = "renamed"
    site.settings["pools"]["mig-a"]["endpoint"] = "https://compute.example.com"
    assert {name: pool.where for name, pool in site.load().limits().pools.items()} == {
        name: pool.where for name, pool in first.items()
    }


def test_gates_have_their_own_deadline_where_there_are_gates(site: Site) -> None:
    pools = site.settings["pools"]
    name = next(name for name, one in pools.items() if one["kind"] == "gke")
    pools[name]["gated_deadline_seconds"] = 7200
    limits = site.load().limits().pools
    assert limits[name].gated_deadline == 7200
    assert {one.gated_deadline for other, one in limits.items() if other != name} == {3600}


def test_a_window_never_begins_above_max_pending(site: Site) -> None:
    site.settings["pools"]["mig-a"]["max_pending"] = 10

    assert site.load().limits().pools["mig-a"].initial_window == 10


def test_a_look_at_a_mig_lags_half_a_minute_and_a_pod_cache_not_at_all(site: Site) -> None:
    pools = site.load().limits().pools

    assert (pools["gke-main"].lag, pools["mig-a"].lag) == (0, 30)


def test_what_a_template_has_of_its_own_comes_from_its_settings_and_the_rest_has_the_defaults(site: Site) -> None:
    site.templates.append(template("Other", pools=["mig-a"]))
    site.settings["templates"] = {
        "Other": {"straggler_seconds": 45, "straggler_share": 0.5, "tries": 0, "max_lifetime_seconds": 86400}
    }

    limits = site.load().limits().templates

    assert limits["Other"] == TemplateLimits(
        "Other", ("mig-a",), 10, straggler_after=45, straggler_share=0.5, tries=0, max_lifetime=86400
    )
    assert limits["Mixed"] == TemplateLimits("Mixed", ("gke-main", "mig-a"), 10, straggler_after=180.0)


def test_maxnumber_minus_one_is_no_cap_and_zero_is_none(site: Site) -> None:
    site.templates = [
        template("Any", pools=["mig-a"]) | {"maxNumber": -1},
        template("None", pools=["mig-a"]) | {"maxNumber": 0},
    ]

    limits = site.load().template_limits

    assert (limits["Any"].max_machines, limits["None"].max_machines) == (None, 0)


def test_paths_are_relative_to_the_configuration_and_absolute_ones_stay(site: Site) -> None:
    site.settings["pools"]["gke-main"]["kubeconfig"] = "keys/kubeconfig"
    site.settings["pools"]["mig-a"]["credentials"] = "/etc/key.json"
    site.settings["server"] = {"token_file": "keys/token"}
    site.settings["ca_bundle"] = "keys/all.pem"

    settings = site.load()
    pools: Mapping[str, Any] = settings.pools

    assert settings.ca_bundle == site.directory / "keys/all.pem"
    assert settings.server.token_file == site.directory / "keys/token"
    assert pools["gke-main"].pod_spec == site.directory / "spec.yaml"
    assert pools["gke-main"].kubeconfig == site.directory / "keys/kubeconfig"
    assert pools["mig-a"].credentials == Path("/etc/key.json")


def test_an_empty_file_takes_every_default_and_googles_fields(site: Site) -> None:
    site.settings = {}
    site.provider = {
        "GCP_PROJECT_ID": "their-project",
        "GCP_CREDENTIALS_FILE": "key.json",
        "GCP_INSTANCE_PREFIX": "Sym-",
        "GKE_CRD_NAMESPACE": "their-pods",
        "GKE_KUBECONFIG": "kubeconfig",
    }
    site.templates = [
        template("Pod", podSpecYaml="spec.yaml"),
        template("Vm", gcp_zone="us-central1-a", gcp_instance_group="group"),
        template("Vms", gcp_region="us-central1", gcp_instance_group="group"),
    ]

    settings = site.load()

    assert (settings.id, settings.name_prefix) == ("t", "sym")
    assert settings.pools == {
        "Pod": GkePool(
            name="Pod",
            namespace="their-pods",
            pod_spec=site.directory / "spec.yaml",
            kubeconfig=site.directory / "kubeconfig",
        ),
        "Vm": MigPool(
            name="Vm",
            project="their-project",
            zone="us-central1-a",
            group="group",
            credentials=site.directory / "key.json",
        ),
        "Vms": MigPool(
            name="Vms",
            project="their-project",
            region="us-central1",
            group="group",
            credentials=site.directory / "key.json",
        ),
    }
    assert settings.template_limits["Vm"].pools == ("Vm",)


def test_templates_whose_fields_name_one_place_share_its_pool(site: Site) -> None:
    site.provider = {"GCP_PROJECT_ID": "demo-project"}
    site.templates = [
        template("Written", gcp_zone="us-central1-a", gcp_instance_group="hf-a"),
        template("First", gcp_zone="us-central1-b", gcp_instance_group="hf-b"),
        template("Second", gcp_zone="us-central1-b", gcp_instance_group="hf-b"),
    ]

    limits = site.load().template_limits

    assert [limits[name].pools for name in ("Written", "First", "Second")] == [("mig-a",), ("First",), ("First",)]


def test_pools_that_a_template_names_win_over_googles_fields(site: Site) -> None:
    site.templates = [template("Both", pools=["mig-a"], podSpecYaml="absent.yaml")]

    assert site.load().template_limits["Both"].pools == ("mig-a",)


def test_the_environment_gives_endpoints_only_where_the_file_is_silent(site: Site) -> None:
    site.environment = {"KUBECONFIG": "/env/kubeconfig", "PROVISIONER_COMPUTE_ENDPOINT": "http://127.0.0.1:1"}
    pools = site.settings["pools"]
    pools["gke-own"] = pools["gke-main"] | {"kubeconfig": "/own/kubeconfig"}
    pools["mig-own"] = pools["mig-a"] | {"endpoint": "http://127.0.0.1:2"}

    by_name: Mapping[str, Any] = site.load().pools

    assert by_name["gke-main"].kubeconfig == Path("/env/kubeconfig")
    assert by_name["gke-own"].kubeconfig == Path("/own/kubeconfig")
    assert by_name["mig-a"].endpoint == "http://127.0.0.1:1"
    assert by_name["mig-own"].endpoint == "http://127.0.0.1:2"


def test_a_pool_with_an_endpoint_takes_credentials_and_no_kubeconfig_from_elsewhere(site: Site) -> None:
    site.environment = {"KUBECONFIG": "/env/kubeconfig"}
    site.provider = {"GKE_KUBECONFIG": "kubeconfig", "GCP_CREDENTIALS_FILE": "key.json"}
    site.settings["pools"]["gke-main"] |= {"endpoint": "https://10.0.0.1", "ca_file": "ca.pem"}

    pool: Any = site.load().pools["gke-main"]

    assert (pool.kubeconfig, pool.context) == (None, None)
    assert (pool.credentials, pool.ca_file) == (site.directory / "key.json", site.directory / "ca.pem")


def test_two_endpoints_are_two_places(site: Site) -> None:
    for name, endpoint in (("gke-east", "https://10.0.0.1"), ("gke-west", "https://10.0.0.2")):
        site.settings["pools"][name] = site.settings["pools"]["gke-main"] | {"endpoint": endpoint}

    assert {"gke-east", "gke-west"} <= site.load().pools.keys()


def test_pods_are_forced_only_where_that_is_configured_and_instances_never(site: Site) -> None:
    site.settings["pools"]["gke-hard"] = site.settings["pools"]["gke-main"] | {"namespace": "other"}
    site.settings["pools"]["gke-hard"]["force_delete_after_seconds"] = 90

    pools = site.load().limits().pools

    assert {name: (pool.stuck_after, pool.force_after) for name, pool in pools.items()} == {
        "gke-main": (60.0, None),
        "gke-hard": (60.0, 90.0),
        "mig-a": (None, None),
    }


def test_a_section_without_content_takes_its_defaults(site: Site) -> None:
    site.settings |= {"loop": None, "backoff": None, "events": None}

    settings = site.load()

    assert (settings.loop, settings.backoff, settings.events) == (loader.Loop(), loader.Backoff(), None)


def test_a_lower_limit_may_be_the_upper_one(site: Site) -> None:
    site.settings |= {"loop": {"floor_seconds": 5}, "backoff": {"first_seconds": 2, "last_seconds": 2}}

    assert site.load().loop.floor_seconds == 5


def test_a_full_manifest_and_a_spec_body_are_both_pods(site: Site) -> None:
    site.settings["pools"]["gke-full"] = {"kind": "gke", "namespace": "grid", "pod_spec": "full.yaml"}
    (site.directory / "full.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: a, image: b}]}\n"
    )

    pools: Mapping[str, Any] = site.load().pools

    assert pools["gke-full"].pod_spec == site.directory / "full.yaml"


def test_a_directory_of_links_as_kubernetes_mounts_it_is_read(site: Site) -> None:
    inner = site.directory / "..data"
    inner.mkdir()
    (site.directory / "spec.yaml").rename(inner / "spec.yaml")
    (site.directory / "spec.yaml").symlink_to(Path("..data") / "spec.yaml")

    assert "gke-main" in site.load().pools


def test_settings_cannot_be_changed(site: Site) -> None:
    settings = site.load()

    with pytest.raises(ValueError, match="frozen"):
        settings.listen = "0.0.0.0:1"  # type: ignore[misc]
