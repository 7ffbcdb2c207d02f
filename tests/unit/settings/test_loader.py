"""The configuration: its settings, and a message about each mistake, for any bytes of a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provisioner.backends.gke.settings import GkePool
from provisioner.backends.mig.settings import MigPool
from provisioner.commands import cli
from provisioner.files.yaml_text import TOO_DEEP
from provisioner.lab.cloud.cloud import Conditions
from provisioner.model import PoolLimits, TemplateLimits
from provisioner.schema.validation import NAMES_SHOWN
from provisioner.settings import loader
from provisioner.settings.definitions import Backoff, Loop
from provisioner.settings.warnings import find_warnings
from tests.support.hostfactory.sites import SPEC, Site, small_site, template
from tests.support.hostfactory.wrong_texts import BYTES, RANDOM, changed

EXAMPLES = Path(__file__).parents[3] / "config" / "demoinst"

WHERE = "group hf-a in us-central1-a of project demo-project"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A configuration that is valid until the test breaks it."""
    made = small_site(tmp_path)
    made.write()
    return made


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
    assert limits.orphans.unlisted_after_seconds == 48 * 3600
    assert (limits.request_deadline_seconds, limits.return_deadline_seconds, limits.orphans.grace_seconds) == (
        120,
        180,
        30,
    )
    assert (limits.cancel_after_seconds, limits.retention_seconds, limits.orphans.cap_per_hour) == (240, 7200, 7)
    assert (limits.backoff.first_seconds, limits.backoff.last_seconds, limits.adopt_prefixes) == (1, 9, ("sym-",))


def test_every_limit_of_a_pool_comes_from_its_settings(site: Site) -> None:
    site.settings["pools"]["mig-a"] |= {
        "max_machines": 5,
        "max_machines_total": 6,
        "max_pending": 4,
        "initial_window": 3,
        "boot_deadline_seconds": 60,
        "early_loss_seconds": 0,
        "announce_seconds": 120,
        "least_life_seconds": 70,
        "down_seconds": 80,
        "price_per_hour": 0.5,
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
        boot_deadline_seconds=60,
        early_loss_seconds=0,
        announce_seconds=120,
        least_life_seconds=70,
        down_seconds=80,
        price_per_hour=0.5,
        spill_after_seconds=20,
        queue_spill_seconds=20,
        lag_seconds=2,
        mass_loss_seconds=30,
        stale_after_seconds=90,
        is_paused=True,
        where=WHERE,
    )


LIMITS_OF_POOLS = {
    "another pool takes a machine after three minutes": ("mig-a", {}, "spill_after_seconds", 180),
    "but none out of a queue": ("gke-main", {}, "queue_spill_seconds", None),
    "unless the setting is set": ("gke-main", {"spill_after_seconds": 60}, "queue_spill_seconds", 60),
    "a window never begins above max_pending": ("mig-a", {"max_pending": 10}, "initial_window", 10),
    "a pod cache does not lag": ("gke-main", {}, "lag_seconds", 0),
    "an observation at a MIG lags half a minute": ("mig-a", {}, "lag_seconds", 30),
    "a pod is stuck after a minute": ("gke-main", {}, "stuck_after_seconds", 60.0),
    "so is an instance": ("mig-a", {}, "stuck_after_seconds", 60.0),
    "a pod is not forced": ("gke-main", {}, "force_after_seconds", None),
    "a pod is forced where that is configured": (
        "gke-main",
        {"force_delete_after_seconds": 90},
        "force_after_seconds",
        90.0,
    ),
    "where pods are does not depend on the way there": ("gke-main", {"context": "renamed"}, "where", "namespace grid"),
    "nor does where instances are": ("mig-a", {"endpoint": "https://compute.example.com"}, "where", WHERE),
}


@pytest.mark.parametrize(("pool", "more", "limit", "value"), LIMITS_OF_POOLS.values(), ids=LIMITS_OF_POOLS)
def test_of_a_pool(site: Site, pool: str, more: dict[str, object], limit: str, value: object) -> None:
    site.settings["pools"][pool] |= more
    assert getattr(site.load().limits().pools[pool], limit) == value


def test_what_a_template_has_of_its_own_comes_from_its_settings_and_the_rest_has_the_defaults(site: Site) -> None:
    site.templates.append(template("Other", pools=["mig-a"]))
    site.settings["templates"] = {
        "Other": {"straggler_seconds": 45, "straggler_share": 0.5, "tries": 0, "max_lifetime_seconds": 86400}
    }
    limits = site.load().limits().templates
    assert limits["Other"] == TemplateLimits(
        "Other", ("mig-a",), 10, straggler_after_seconds=45, straggler_share=0.5, tries=0, max_lifetime_seconds=86400
    )
    assert limits["Mixed"] == TemplateLimits("Mixed", ("gke-main", "mig-a"), 10, straggler_after_seconds=180.0)


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


@pytest.mark.parametrize(
    "login",
    [
        {"endpoint": "https://10.0.0.1", "ca_file": "ca.pem", "credentials": "key.json"},
        {"kubeconfig": "kubeconfig", "context": "site"},
        {},
    ],
)
def test_the_embedded_cloud_replaces_every_pool_s_address_and_login(site: Site, login: dict[str, str]) -> None:
    site.environment = {"KUBECONFIG": "/env/kubeconfig", "PROVISIONER_EMBEDDED_CLOUD": "http://127.0.0.1:1"}
    site.settings["pools"]["gke-main"] |= login
    site.settings["pools"]["mig-a"] |= {"endpoint": "https://compute.example"}
    by_name: Mapping[str, Any] = site.load().pools
    pods, group = by_name["gke-main"], by_name["mig-a"]
    assert (pods.endpoint, pods.kubeconfig, pods.context, pods.ca_file) == ("http://127.0.0.1:1", None, None, None)
    assert group.address == "http://127.0.0.1:1"


def test_a_pool_with_an_endpoint_takes_credentials_and_no_kubeconfig_from_elsewhere(site: Site) -> None:
    site.environment = {"KUBECONFIG": "/env/kubeconfig"}
    site.provider = {"GKE_KUBECONFIG": "kubeconfig", "GCP_CREDENTIALS_FILE": "key.json"}
    site.settings["pools"]["gke-main"] |= {"endpoint": "https://10.0.0.1", "ca_file": "ca.pem"}
    pool: Any = site.load().pools["gke-main"]
    assert (pool.kubeconfig, pool.context) == (None, None)
    assert (pool.credentials, pool.ca_file) == (site.directory / "key.json", site.directory / "ca.pem")


def test_a_section_without_content_takes_its_defaults(site: Site) -> None:
    site.settings |= {"loop": None, "backoff": None, "events": None}
    settings = site.load()
    assert (settings.loop, settings.backoff, settings.events) == (Loop(), Backoff(), None)


POD = {"kind": "gke", "namespace": "grid", "pod_spec": "spec.yaml"}
USABLE: dict[str, tuple[dict[str, Any], dict[str, dict[str, str]]]] = {
    "two endpoints": (
        {},
        {"one": POD | {"endpoint": "https://10.0.0.1"}, "two": POD | {"endpoint": "https://10.0.0.2"}},
    ),
    "a namespace for pools of different pod specs": ({}, {"other": POD | {"pod_spec": "other.yaml"}}),
    "a full manifest": ({}, {"full": POD | {"pod_spec": "full.yaml"}}),
    "a directory of links, as Kubernetes mounts it": ({}, {"linked": POD | {"pod_spec": "link.yaml"}}),
    "a lower limit that is the upper one": (
        {"loop": {"floor_seconds": 5}, "backoff": {"first_seconds": 2, "last_seconds": 2}},
        {},
    ),
}


@pytest.mark.parametrize(("settings", "pools"), USABLE.values(), ids=USABLE)
def test_usable(site: Site, settings: dict[str, Any], pools: dict[str, dict[str, str]]) -> None:
    (site.directory / "..data").mkdir()
    (site.directory / "..data" / "link.yaml").write_text(SPEC)
    (site.directory / "link.yaml").symlink_to(Path("..data") / "link.yaml")
    (site.directory / "other.yaml").write_text(SPEC)
    (site.directory / "full.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: a, image: b}]}\n"
    )
    site.settings |= settings
    site.settings["pools"] |= pools
    assert set(pools) <= set(site.load().pools)


def test_settings_cannot_be_changed(site: Site) -> None:
    settings = site.load()
    with pytest.raises(ValueError, match="frozen"):
        settings.listen = "0.0.0.0:1"  # type: ignore[misc]


def test_every_mistake_is_said_at_once_in_the_promised_form(site: Site) -> None:
    site.settings["loop"] = {"interval_secs": 5}
    site.settings["pools"]["gke-main"]["max_pending"] = "ten"
    site.templates.append(template("Pod", pools=["gke-man"]))
    site.write()
    with pytest.raises(loader.ConfigError) as caught:
        loader.load(site.path, {})
    assert str(caught.value) == (
        f"{site.path}: 2 problems\n"
        "  pools.gke-main.max_pending: expected a whole number ≥ 1, got 'ten'\n"
        "  loop.interval_secs: unknown setting; did you mean 'interval_seconds'?\n"
        f"{site.directory}/tprov_templates.json: 1 problem\n"
        "  templates.Pod.pools: unknown pool 'gke-man'; did you mean 'gke-main'?"
    )


GKE = "pools.gke-main"
MIG = "pools.mig-a"
NAME = "1 to 63 letters, digits, '-', '_' or '.', beginning and ending with a letter or digit"
PREFIX = "a lower-case letter, then letters, digits or '-', not ending in '-', at most 45 in all"
NO_PLACE = ".T.pools: expected names of pools, or podSpecYaml, or gcp_instance_group with gcp_zone or gcp_region"
PLACE = "lower-case letters, digits and '-', beginning with a letter"

ADDRESS = "expected an address beginning with http:// or https://"
ADOPTED = "expected a list of name prefixes such as [sym-]"
COVERED = "and name_prefix 'hf' overlap; choose a name_prefix that no adopted name begins with"
BOTH_HALVES = "tls_cert and tls_key need one another: name both, or neither"
PLACED = {"kind": "mig", "project": "demo-project", "group": "hf-a", "zone": "us-east1-a", "region": "us-east1"}

WRONG_SETTINGS = {
    "a misspelt top-level setting": ("lisen", "x:1", ": unknown setting; did you mean 'listen'?"),
    "a pool's name is its key, not a setting": (f"{GKE}.name", "a", ": unknown setting; did you mean 'namespace'?"),
    "a text for a number": ("orphan_cap_per_hour", "many", ": expected a whole number ≥ 0, got 'many'"),
    "a number that is too small": (f"{MIG}.max_pending", 0, ": expected a whole number ≥ 1, got 0"),
    "a fraction for a whole number": (f"{MIG}.initial_window", 1.5, ": expected a whole number ≥ 1, got 1.5"),
    "a number for a switch": (f"{MIG}.paused", 1, ": expected true or false, got 1"),
    "a duration of nothing": ("loop.interval_seconds", 0, ": expected a number > 0, at most 15, got 0"),
    "a setting without a value": ("request_deadline_minutes", None, ": expected a number > 0, got nothing"),
    "a value for a section": ("backoff", 7, ": expected a mapping of settings, got 7"),
    "a value for a pool": (GKE, 3, ": expected a mapping of settings, got 3"),
    "a pool without a kind": (MIG, {"group": "hf-a"}, ".kind: missing; expected gke or mig"),
    "an unknown kind": (f"{MIG}.kind", "vm", ": expected gke or mig or command or slurm or ray, got 'vm'"),
    "an id that is no label value": ("id", "-demo", f": expected {NAME}, got '-demo'"),
    "an id that is too long": ("id", "x" * 64, f": expected {NAME}, got '{'x' * 58}…"),
    "a prefix in capitals": ("name_prefix", "Hf", f": expected {PREFIX}, got 'Hf'"),
    "a prefix that leaves no room": ("name_prefix", "h" * 46, f": expected {PREFIX}, got '{'h' * 46}'"),
    "one adopted prefix that is no list": ("adopt_prefixes", "sym-", f": {ADOPTED}, got 'sym-'"),
    "an adopted prefix that matches everything": ("adopt_prefixes", [""], f".0: {ADOPTED}, got ''"),
    "an adopted prefix that our own names begin with": ("adopt_prefixes", ["sym-", "hf"], f".1: 'hf' {COVERED}"),
    "an adopted prefix that begins like our own names": ("adopt_prefixes", ["hf-old-"], f".0: 'hf-old-' {COVERED}"),
    "a port without a host": ("listen", "9464", ": expected HOST:PORT such as 127.0.0.1:9464, got '9464'"),
    "a floor above the interval": ("loop.floor_seconds", 6, ": expected at most interval_seconds (5), got 6"),
    "a first back-off above the last": (
        "backoff",
        {"last_seconds": 1},
        ".first_seconds: expected at most last_seconds (1), got 5.0",
    ),
    "a namespace in capitals": (f"{GKE}.namespace", "G", ": expected the name of a Kubernetes namespace, got 'G'"),
    "a number for a path": (f"{GKE}.kubeconfig", 5, ": expected a path, got 5"),
    "nothing for a path": ("ca_bundle", "", ": expected a path, got ''"),
    "a region for a zone": (f"{MIG}.zone", "us-east1", ": expected a zone such as us-central1-a, got 'us-east1'"),
    "a zone and a region": (
        MIG,
        PLACED | {"zone": "us-east1-a", "region": "us-east1"},
        ".zone: expected either zone or region, got both",
    ),
    "a group with a slash": (f"{MIG}.group", "a/b", f": expected {PLACE}, got 'a/b'"),
    "an endpoint without a scheme": (
        f"{MIG}.endpoint",
        "10.0.0.1:80",
        ": expected an address beginning with http:// or https://, got '10.0.0.1:80'",
    ),
    "events without a project": ("events", {"subscription": "s"}, f".project: missing; expected {PLACE}"),
    "a pool named by a number": ("pools.7", {"kind": "gke"}, f": expected {NAME}, got 7"),
    "a pool's name that is no label": (
        "pools.a b",
        {"kind": "gke", "pod_spec": "spec.yaml"},
        f".name: expected {NAME}, got 'a b'",
    ),
    "a value for templates": ("templates", 5, ": expected a mapping of templates, got 5"),
    "settings of templates in a list": ("templates", ["M"], ": expected a mapping of templates, got ['M']"),
    "settings of a template that HF does not have": ("templates.Mixd", {}, ": no such template; did you mean 'Mixed'?"),
    "settings of a template that are none": ("templates.Mixed", 3, ": expected a mapping of settings, got 3"),
    "an unknown setting of a template": (
        "templates.Mixed.straggler_secs",
        3,
        ": unknown setting; did you mean 'straggler_seconds'?",
    ),
    "the pool of a template that is not of this file": ("template_limits", {}, ": unknown setting; "),
    "a misspelt setting of the server": ("server.token", "x", ": unknown setting; did you mean 'token_file'?"),
    "a certificate without its key": ("server", {"tls_cert": "a"}, f": {BOTH_HALVES}"),
    "a key without its certificate": ("server", {"tls_key": "a"}, f": {BOTH_HALVES}"),
}
"""The path to set, its value, and the message after the path. Bounds are in config/provisioner.schema.json."""


def put(tree: dict[Any, Any], path: str, value: object) -> None:
    """Set the value at a dotted path. A part of the path that has only digits is a number, as in YAML."""
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    for name in parents:
        tree = tree.setdefault(name, {})
    tree[last] = value


@pytest.mark.parametrize(("path", "value", "text"), WRONG_SETTINGS.values(), ids=WRONG_SETTINGS)
def test_a_wrong_setting_is_named_with_what_is_expected(site: Site, path: str, value: object, text: str) -> None:
    put(site.settings, path, value)
    own = [problem for problem in site.problems() if problem.startswith("provisioner.yaml: ")]
    assert len(own) == 1
    assert own[0].startswith(f"provisioner.yaml: {path}{text}")


def test_an_unknown_setting_lists_every_setting(site: Site) -> None:
    site.settings["pools"]["gke-main"]["zz"] = 1
    names = [repr(name) for name in GkePool.model_fields if name != "name"]
    assert len(names) > NAMES_SHOWN
    assert site.problems() == [
        f"provisioner.yaml: {GKE}.zz: unknown setting; there are {', '.join(names)}",
    ]


def test_an_unknown_pool_lists_some_of_many_pools(site: Site) -> None:
    mig = site.settings["pools"]["mig-a"]
    site.settings["pools"] = {f"m{number}": mig | {"group": f"g{number}"} for number in range(NAMES_SHOWN + 1)}
    site.templates = [template("T", pools=["zz"])]
    (problem,) = site.problems()
    assert (f"'m{NAMES_SHOWN - 1}' and more" in problem, f"'m{NAMES_SHOWN}'" in problem) == (True, False)


def test_an_unknown_pool_lists_no_pools_if_there_are_none(site: Site) -> None:
    site.settings["pools"] = {}
    site.templates = [template("T", pools=["zz"])]
    assert "tprov_templates.json: templates.T.pools: unknown pool 'zz'" in site.problems()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (f"{GKE}.pod_spec", "pod_spec: missing; expected a path"),
        (f"{MIG}.project", f"project: missing; expected {PLACE}"),
        (f"{MIG}.group", f"group: missing; expected {PLACE}"),
        (f"{MIG}.zone", "zone: expected either zone or region, got neither"),
    ],
    ids=["pod_spec", "project", "group", "zone"],
)
def test_a_setting_without_default_has_to_be_there(site: Site, path: str, text: str) -> None:
    _, pool, name = path.split(".")
    del site.settings["pools"][pool][name]
    assert site.problems() == [f"provisioner.yaml: pools.{pool}.{text}"]


def test_unknown_templates_are_named_in_the_order_of_the_file(site: Site) -> None:
    names = [f"z{number}" for number in (3, 1, 2, 9, 5, 7)]
    site.settings["templates"] = {name: {} for name in ("z3", "Mixed", *names[1:])}
    assert [problem.split(": ")[1] for problem in site.problems()] == [f"templates.{name}" for name in names]


def test_one_mistake_does_not_hide_another(site: Site) -> None:
    site.settings |= {"id": "-", "loop": {"floor_seconds": 9, "act_seconds": "x", "bogus": 1}, "listen": 1}
    site.settings["pools"]["gke-main"] |= {"pod_spec": "absent.yaml", "paused": "x"}
    assert sorted(problem.split(": ")[1] for problem in site.problems()) == [
        "id",
        "listen",
        "loop.act_seconds",
        "loop.bogus",
        "loop.floor_seconds",
        "pools.gke-main.paused",
        "pools.gke-main.pod_spec",
    ]


POD_SPECS = {
    "that is absent": (None, "no such file: 'pod.yaml'"),
    "that is not YAML": ("a: [", "'pod.yaml': line 1, column 5: expected the node content, but found '<stream end>'"),
    "with a repeated key": (
        "containers: []\ncontainers: []\n",
        "'pod.yaml': containers: given twice, in lines 1 and 2",
    ),
    "of another kind": ("kind: Deployment\nspec: {}\n", "'pod.yaml': kind: expected Pod, got 'Deployment'"),
    "of another namespace": (
        "metadata: {namespace: other}\nspec: {containers: [{name: a, image: b}]}\n",
        "'pod.yaml': metadata.namespace: expected 'grid' (the pool), got 'other'",
    ),
    "with a date": (
        "containers: [{name: a, image: b}]\nuntil: 2030-01-01\n",
        "'pod.yaml': a value that JSON cannot hold (quote dates and times): "
        "Object of type date is not JSON serializable",
    ),
}


@pytest.mark.parametrize(("content", "text"), POD_SPECS.values(), ids=POD_SPECS)
def test_a_pod_spec(site: Site, content: str | None, text: str) -> None:
    site.settings["pools"]["gke-main"]["pod_spec"] = "pod.yaml"
    if content is not None:
        (site.directory / "pod.yaml").write_text(content)
    assert site.problems() == [f"provisioner.yaml: pools.gke-main.pod_spec: {text}"]


@pytest.mark.parametrize("written", ["../outside.yaml", "/etc/passwd", "link.yaml", "specs/spec.yaml"])
def test_a_pod_spec_outside_the_directory_is_refused(
    site: Site, written: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "spec.yaml").write_text(SPEC)
    (site.directory / "specs").symlink_to(outside)
    (site.directory / "link.yaml").symlink_to("/etc/passwd")
    site.templates = [template("Pod", podSpecYaml=written)]
    assert site.problems() == [
        f"tprov_templates.json: templates.Pod.podSpecYaml: {written!r} is outside the configuration's directory"
    ]


ONE_OF = "not used with an endpoint; leave out one of them"
ALONE = "used only with an endpoint; name one, or leave this out"
COMPUTE = "https://compute.googleapis.com/compute/v1/"
WRONG_POOLS = {
    "a twin of a MIG": ("mig-a", {}, {"": "the same place as pool 'mig-a'"}),
    "a twin of a MIG by another address": (
        "mig-a",
        {"endpoint": COMPUTE},
        {"": "the same place as pool 'mig-a'"},
    ),
    "a twin of a namespace with one pod spec": ("gke-main", {}, {"": "the same place as pool 'gke-main'"}),
    "a kubeconfig and an endpoint": (
        "gke-main",
        {"endpoint": "https://10.0.0.1", "kubeconfig": "kubeconfig", "context": "c"},
        {".kubeconfig": ONE_OF, ".context": ONE_OF},
    ),
    "an authority and credentials without an endpoint": (
        "gke-main",
        {"namespace": "other", "ca_file": "ca.pem", "credentials": "key.json"},
        {".ca_file": ALONE, ".credentials": ALONE},
    ),
    "credentials that would be sent in the clear": (
        "gke-main",
        {"endpoint": "http://10.0.0.1", "credentials": "key.json"},
        {".credentials": "not used with an endpoint of http://; leave this out"},
    ),
    "an endpoint without a scheme": ("gke-main", {"endpoint": "10.0.0.1"}, {".endpoint": f"{ADDRESS}, got '10.0.0.1'"}),
}


@pytest.mark.parametrize(("pool", "otherwise", "texts"), WRONG_POOLS.values(), ids=WRONG_POOLS)
def test_another_pool_that_is(site: Site, pool: str, otherwise: dict[str, str], texts: dict[str, str]) -> None:
    site.settings["pools"]["twin"] = site.settings["pools"][pool] | otherwise
    assert site.problems() == [f"provisioner.yaml: pools.twin{name}: {text}" for name, text in texts.items()]


WRONG_TEMPLATES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "an unknown pool": ({"pools": ["mig-q"]}, [".T.pools: unknown pool 'mig-q'; did you mean 'mig-a'?"]),
    "no place at all": ({}, [NO_PLACE]),
    "two kinds of place": ({"podSpecYaml": "spec.yaml", "gcp_instance_group": "g"}, [NO_PLACE]),
    "a group without a zone, and no project": (
        {"gcp_instance_group": "g"},
        [
            f".T.(GCP_PROJECT_ID): missing; expected {PLACE}",
            ".T.gcp_zone: expected either zone or region, got neither",
        ],
    ),
    "a maxNumber beyond HF's": (
        {"pools": ["mig-a"], "maxNumber": 10_001},
        ["[1].maxNumber: expected a whole number from -1 to 10000, got 10001"],
    ),
}


@pytest.mark.parametrize(("fields", "texts"), WRONG_TEMPLATES.values(), ids=WRONG_TEMPLATES)
def test_a_template_with(site: Site, fields: dict[str, Any], texts: list[str]) -> None:
    site.templates.append(template("T") | fields)
    assert site.problems() == [f"tprov_templates.json: templates{text}" for text in texts]


def test_a_template_of_pods_alone_needs_an_id_that_is_a_label_value(site: Site) -> None:
    site.templates = [template("_T", pools=["mig-a"])]
    assert "_T" in site.load().template_limits
    site.templates = [template("_T", pools=["gke-main"])]
    assert site.problems() == [f"tprov_templates.json: templates._T.templateId: expected {NAME}, got '_T'"]


def test_a_configuration_without_a_pool_says_how_to_make_one(site: Site) -> None:
    site.settings["pools"] = {}
    assert site.problems()[0] == (
        "provisioner.yaml: pools: none; name one here, or give a template podSpecYaml or gcp_instance_group"
    )


TEXTS = {
    "broken YAML says where": (
        "id: demo\npools: [\n",
        "line 3, column 1: expected the node content, but found '<stream end>'",
    ),
    "a repeated key says both lines": ("id: a\nloop: {}\nid: b\n", "id: given twice, in lines 1 and 3"),
    "a repeated key inside says its path": (
        "loop:\n  act_seconds: 1\n  act_seconds: 2\n",
        "loop.act_seconds: given twice, in lines 2 and 3",
    ),
    "a date that no calendar has": ("id: 2021-13-40\n", "line 1, column 5: this is no date"),
    "a list is no configuration": ("- a\n", "expected a mapping of settings, got ['a']"),
    "a setting named by a number": ("5: a\n", "5: a setting's name has to be a text"),
    "an alias into itself": ("id: &a [*a]\nid: x\n", f"line 1, column 5: {TOO_DEEP}"),
}


@pytest.mark.parametrize(("content", "text"), TEXTS.values(), ids=TEXTS)
def test_in_a_file_that_cannot_be_read_as_settings(site: Site, content: str, text: str) -> None:
    assert site.problems(content) == [f"provisioner.yaml: {text}"]


def test_a_file_that_is_not_there_is_not_an_empty_one(site: Site) -> None:
    site.write()
    site.path.unlink()
    with pytest.raises(loader.ConfigError, match="1 problem\n  no such file; create it and name the pools"):
        loader.load(site.path, {})


def test_a_templates_file_that_cannot_be_read_is_said_beside_the_settings(site: Site) -> None:
    site.write("a: [")
    (site.directory / "tprov_templates.json").write_text("{")
    with pytest.raises(loader.ConfigError) as caught:
        loader.load(site.path, {})
    assert [Path(problem.file).name for problem in caught.value.problems] == [
        "provisioner.yaml",
        "tprov_templates.json",
    ]


FUZZ = settings(
    max_examples=40,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

ALSO = {name: BYTES[name] for name in ("aliases that stand for a billion values", "a date", "no UTF-8")}
"""Examples of damaged files; other readers of such files share the code."""


def complaint(site: Site) -> str:
    """Return the error message about the configuration; empty if it is valid."""
    try:
        settings = loader.load(site.path, {})
        find_warnings(settings, loader.templates.load(site.directory, {}).templates)
    except loader.ConfigError as error:
        problems = error.problems
    else:
        return ""
    assert problems
    assert all(problem.file for problem in problems)
    return str(loader.ConfigError(problems))


@pytest.mark.parametrize("content", BYTES.values(), ids=BYTES.keys())
def test_each_text_that_is_no_configuration_is_refused_with_its_file(site: Site, content: bytes) -> None:
    site.path.write_bytes(content)
    words = complaint(site)
    assert words.startswith(f"{site.path}: ")
    assert len(words) < 1000


@pytest.mark.parametrize("content", ALSO.values(), ids=ALSO)
def test_each_text_that_is_no_pod_is_refused_with_its_file(site: Site, content: bytes) -> None:
    (site.directory / "spec.yaml").write_bytes(content)
    assert "pools.gke-main.pod_spec: 'spec.yaml'" in complaint(site)


@pytest.mark.parametrize("file", ["tprov_config.json", "tprov_templates.json"])
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"[" * 100_000, id="nested beyond Python's stack"),
        pytest.param(b'{"a":' * 500 + b"1" + b"}" * 500, id="nested deeper than it may be"),
        pytest.param(b'{"a": 1}\0', id="a NUL"),
        pytest.param(b" " * 20_000_000, id="more than it may hold"),
    ],
)
def test_each_text_that_is_none_of_hf_s_files_is_refused_with_its_name(site: Site, file: str, content: bytes) -> None:
    (site.directory / file).write_bytes(content)
    assert complaint(site).startswith(f"{site.directory / file}: 1 problem\n")


@pytest.mark.parametrize("file", ["provisioner.yaml", "spec.yaml", "tprov_config.json", "tprov_templates.json"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a FIFO", "a directory"])
def test_what_is_no_regular_file_is_refused_at_once(site: Site, file: str, make: Callable[[Path], None]) -> None:
    (site.directory / file).unlink()
    make(site.directory / file)
    assert file in (words := complaint(site))
    assert "is no regular file" in words


@pytest.mark.parametrize("file", ["spec.yaml", "tprov_templates.json"])
def test_a_file_that_goes_while_it_is_checked_is_named(
    site: Site, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load = loader.load

    def lost(*arguments: Any) -> loader.Settings:
        loaded = load(*arguments)
        (site.directory / file).unlink()
        return loaded

    monkeypatch.setattr(loader, "load", lost)
    monkeypatch.setenv("HF_PROVIDER_NAME", "t")
    assert cli.run(["check", str(site.path)]) == 2
    assert file in capsys.readouterr().err


@pytest.mark.parametrize("content", ALSO.values(), ids=ALSO)
def test_check_says_what_is_wrong_and_ends_with_2(
    site: Site, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    site.path.write_bytes(content)
    assert cli.run(["check", str(site.path)]) == 2
    assert str(site.path) in capsys.readouterr().err


@pytest.mark.parametrize("content", ALSO.values(), ids=ALSO)
def test_the_simulator_s_file_of_faults_is_read_as_safely(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "faults.yaml"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=str(file)):
        Conditions.read(file)


# --- at random --------------------------------------------------------------------------------------------------------


@FUZZ
@given(content=RANDOM | st.binary(max_size=80))
def test_random_bytes_are_settings_or_a_config_error(site: Site, content: bytes) -> None:
    for file in ("provisioner.yaml", "spec.yaml", "tprov_config.json", "tprov_templates.json"):
        site.write()
        (site.directory / "spec.yaml").write_text(SPEC)
        (site.directory / file).write_bytes(content)
        complaint(site)


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=8),
        st.dates(),
        st.datetimes(),
        st.binary(max_size=4),
        st.sampled_from(["gke", "mig", "~", "~x", "..", "/", "http://", "us-central1-a", "x" * 300, 2**63, -(2**64)]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3),
    max_leaves=6,
)
FULL = {
    "loop": {"interval_seconds": 5, "floor_seconds": 1},
    "backoff": {"first_seconds": 1, "last_seconds": 2},
    "compute": {"calls_per_minute": 60},
    "events": {"project": "demo-project", "subscription": "s"},
    "listen": "127.0.0.1:0",
    "adopt_prefixes": ["sym-"],
    "name_prefix": "hf",
    "retention_hours": 1,
}


@FUZZ
@given(value=VALUES, chance=st.integers(0, 200))
def test_a_setting_of_any_value_is_taken_or_named(site: Site, value: Any, chance: int) -> None:
    full = {**site.settings, **FULL}
    site.path.write_text(yaml.safe_dump(changed(full, chance, value), sort_keys=False), encoding="utf-8")
    complaint(site)


@FUZZ
@given(value=VALUES, chance=st.integers(0, 200))
def test_a_field_of_a_pod_of_any_value_is_taken_or_named(site: Site, value: Any, chance: int) -> None:
    container = {
        "name": "main",
        "image": "x",
        "env": [{"name": "A", "value": "b"}],
        "resources": {"limits": {"cpu": 1}},
    }
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container], "hostname": "x"}}
    text = yaml.safe_dump(changed(pod, chance, value), sort_keys=False)
    (site.directory / "spec.yaml").write_text(text, encoding="utf-8")
    complaint(site)
