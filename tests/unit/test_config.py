"""The configuration: what it becomes, and what is said about each mistake."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner import config
from provisioner.model import PoolLimits, TemplateLimits

EXAMPLES = Path(__file__).parents[2] / "config" / "demoinst"
ATTRIBUTES = {"type": ["String", "X86_64"], "ncpus": ["Numeric", "4"], "nram": ["Numeric", "8192"]}
SPEC = "containers: [{name: main, image: registry.example.com/main}]\n"


def template(name: str, **fields: object) -> dict[str, object]:
    return {"templateId": name, "maxNumber": 10, "attributes": ATTRIBUTES, **fields}


@dataclass
class Site:
    """A configuration directory that is right until a test breaks it."""

    directory: Path
    settings: dict[str, Any] = field(default_factory=dict)
    provider: dict[str, Any] = field(default_factory=dict)
    templates: list[dict[str, Any]] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.directory / "provisioner.yaml"

    def write(self, text: str | None = None) -> None:
        self.path.write_text(yaml.safe_dump(self.settings, sort_keys=False) if text is None else text)
        (self.directory / "tprov_config.json").write_text(json.dumps(self.provider))
        (self.directory / "tprov_templates.json").write_text(json.dumps({"templates": self.templates}))

    def load(self) -> config.Settings:
        self.write()
        return config.load(self.path, self.environment)

    def problems(self, text: str | None = None) -> list[str]:
        """Every problem, file name first, as one line."""
        self.write(text)
        with pytest.raises(config.ConfigError) as caught:
            config.load(self.path, self.environment)
        return [f"{Path(problem.file).name}: {problem}" for problem in caught.value.problems]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """One GKE pool, one MIG, one template that names both."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    pools = {
        "gke-main": {"kind": "gke", "namespace": "grid", "pod_spec": "spec.yaml"},
        "mig-a": {"kind": "mig", "project": "demo-project", "zone": "us-central1-a", "group": "hf-a"},
    }
    return Site(
        tmp_path,
        settings={"id": "demo", "pools": pools},
        templates=[template("Mixed", pools=["gke-main", "mig-a"])],
    )


# --- what it becomes --------------------------------------------------------------------------------------------------


def test_the_example_is_right_and_says_what_the_plan_needs(tmp_path: Path) -> None:
    directory = tmp_path / "conf"
    shutil.copytree(EXAMPLES, directory)
    (directory / "demoinstprov_templates.json").write_text(
        json.dumps(
            {"templates": [template("GkePod", pools=["gke-main", "gke-spare"]), template("Vm", pools=["mig-a"])]}
        )
    )

    found = config.load(directory / "provisioner.yaml", {"HF_PROVIDER_NAME": "demoinst"}).limits()

    assert list(found.pools) == ["gke-main", "gke-spare", "mig-a", "mig-b"]
    assert found.prefix == "hf"
    assert found.templates["GkePod"] == TemplateLimits("GkePod", ("gke-main", "gke-spare"), 10)
    assert found.pools["gke-main"] == PoolLimits(
        name="gke-main", max_machines=200, max_pending=100, initial_window=50, lag=0.0
    )


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
    }

    limits = site.load().limits()

    assert (limits.request_deadline, limits.return_deadline, limits.orphan_grace) == (120, 180, 30)
    assert (limits.cancel_after, limits.retention, limits.orphan_cap_per_hour) == (240, 7200, 7)
    assert (limits.backoff_first, limits.backoff_last, limits.adopt_prefixes) == (1, 9, ("sym-",))


def test_every_limit_of_a_pool_comes_from_its_settings(site: Site) -> None:
    site.settings["pools"]["mig-a"] |= {
        "max_machines": 5,
        "max_pending": 4,
        "initial_window": 3,
        "boot_deadline_seconds": 60,
        "spill_after_seconds": 20,
        "lag_seconds": 2,
        "observe_seconds": 15,
        "paused": True,
    }

    assert site.load().limits().pools["mig-a"] == PoolLimits(
        name="mig-a",
        max_machines=5,
        max_pending=4,
        initial_window=3,
        boot_deadline=60,
        spill_after=20,
        lag=2,
        stale_after=90,
        paused=True,
    )


def test_a_window_never_begins_above_max_pending(site: Site) -> None:
    site.settings["pools"]["mig-a"]["max_pending"] = 10

    assert site.load().limits().pools["mig-a"].initial_window == 10


def test_a_look_at_a_mig_lags_half_a_minute_and_a_pod_cache_not_at_all(site: Site) -> None:
    pools = site.load().limits().pools

    assert (pools["gke-main"].lag, pools["mig-a"].lag) == (0, 30)


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

    pools: Mapping[str, Any] = site.load().pools

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

    found = site.load()

    assert (found.id, found.name_prefix) == ("t", "sym")
    assert found.pools == {
        "Pod": config.GkePool(
            name="Pod",
            namespace="their-pods",
            pod_spec=site.directory / "spec.yaml",
            kubeconfig=site.directory / "kubeconfig",
        ),
        "Vm": config.MigPool(
            name="Vm",
            project="their-project",
            zone="us-central1-a",
            group="group",
            credentials=site.directory / "key.json",
        ),
        "Vms": config.MigPool(
            name="Vms",
            project="their-project",
            region="us-central1",
            group="group",
            credentials=site.directory / "key.json",
        ),
    }
    assert found.template_limits["Vm"].pools == ("Vm",)


def test_templates_whose_fields_name_one_place_share_its_pool(site: Site) -> None:
    site.provider = {"GCP_PROJECT_ID": "demo-project"}
    site.templates = [
        template("Written", gcp_zone="us-central1-a", gcp_instance_group="hf-a"),
        template("First", gcp_zone="us-central1-b", gcp_instance_group="hf-b"),
        template("Second", gcp_zone="us-central1-b", gcp_instance_group="hf-b"),
    ]

    found = site.load().template_limits

    assert [found[name].pools for name in ("Written", "First", "Second")] == [("mig-a",), ("First",), ("First",)]


def test_pools_that_a_template_names_win_over_googles_fields(site: Site) -> None:
    site.templates = [template("Both", pools=["mig-a"], podSpecYaml="absent.yaml")]

    assert site.load().template_limits["Both"].pools == ("mig-a",)


def test_the_environment_gives_endpoints_only_where_the_file_is_silent(site: Site) -> None:
    site.environment = {"KUBECONFIG": "/env/kubeconfig", "PROVISIONER_COMPUTE_ENDPOINT": "http://127.0.0.1:1"}
    pools = site.settings["pools"]
    pools["gke-own"] = pools["gke-main"] | {"kubeconfig": "/own/kubeconfig"}
    pools["mig-own"] = pools["mig-a"] | {"endpoint": "http://127.0.0.1:2"}

    found: Mapping[str, Any] = site.load().pools

    assert found["gke-main"].kubeconfig == Path("/env/kubeconfig")
    assert found["gke-own"].kubeconfig == Path("/own/kubeconfig")
    assert found["mig-a"].endpoint == "http://127.0.0.1:1"
    assert found["mig-own"].endpoint == "http://127.0.0.1:2"


def test_a_section_without_content_takes_its_defaults(site: Site) -> None:
    site.settings |= {"loop": None, "backoff": None, "events": None}

    found = site.load()

    assert (found.loop, found.backoff, found.events) == (config.Loop(), config.Backoff(), None)


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
    found = site.load()

    with pytest.raises(ValueError, match="frozen"):
        found.listen = "0.0.0.0:1"


# --- what is said of mistakes -----------------------------------------------------------------------------------------


def test_every_mistake_is_said_at_once_in_the_promised_form(site: Site) -> None:
    site.settings["loop"] = {"interval_secs": 5}
    site.settings["pools"]["gke-main"]["max_pending"] = "ten"
    site.templates.append(template("Pod", pools=["gke-man"]))
    site.write()

    with pytest.raises(config.ConfigError) as caught:
        config.load(site.path, {})

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
NO_PLACE = "templates.T.pools: " + config.NO_PLACE
PLACE = "lower-case letters, digits and '-', beginning with a letter"

WRONG_SETTINGS = {
    "a misspelt top-level setting": ("lisen", "x:1", "lisen: unknown setting; did you mean 'listen'?"),
    "a pool's name is its key, not a setting": (
        f"{GKE}.name",
        "gke-main",
        f"{GKE}.name: unknown setting; did you mean 'namespace'?",
    ),
    "a text for a number": (
        "orphan_cap_per_hour",
        "many",
        "orphan_cap_per_hour: expected a whole number ≥ 0, got 'many'",
    ),
    "a number that is too small": (f"{MIG}.max_pending", 0, f"{MIG}.max_pending: expected a whole number ≥ 1, got 0"),
    "a switch for a number": (
        f"{MIG}.max_machines",
        True,
        f"{MIG}.max_machines: expected a whole number ≥ 1, got True",
    ),
    "a fraction for a whole number": (
        f"{MIG}.initial_window",
        1.5,
        f"{MIG}.initial_window: expected a whole number ≥ 1, got 1.5",
    ),
    "a number for a switch": (f"{MIG}.paused", 1, f"{MIG}.paused: expected true or false, got 1"),
    "a text for a switch": (f"{MIG}.paused", "off!", f"{MIG}.paused: expected true or false, got 'off!'"),
    "a duration of nothing": ("loop.interval_seconds", 0, "loop.interval_seconds: expected a number > 0, got 0"),
    "an endless duration": (
        "retention_hours",
        float("inf"),
        "retention_hours: expected a number ≥ 0, got inf",
    ),
    "a setting without a value": (
        "request_deadline_minutes",
        None,
        "request_deadline_minutes: expected a number > 0, got nothing",
    ),
    "a value for a section": ("backoff", 7, "backoff: expected a mapping of settings, got 7"),
    "a list for pools": ("pools", ["a"], "pools: expected a mapping of pools, got ['a']"),
    "a value for a pool": (GKE, 3, f"{GKE}: expected a mapping of settings, got 3"),
    "a pool without a kind": (MIG, {"group": "hf-a"}, f"{MIG}.kind: missing; expected gke or mig"),
    "an unknown kind": (f"{MIG}.kind", "vm", f"{MIG}.kind: expected gke or mig, got 'vm'"),
    "an id that is no label value": ("id", "-demo", f"id: expected {NAME}, got '-demo'"),
    "an id that is too long": ("id", "x" * 64, f"id: expected {NAME}, got '{'x' * 58}…"),
    "a prefix in capitals": ("name_prefix", "Hf", f"name_prefix: expected {PREFIX}, got 'Hf'"),
    "a prefix that ends in a dash": ("name_prefix", "hf-", f"name_prefix: expected {PREFIX}, got 'hf-'"),
    "a prefix that begins with a digit": ("name_prefix", "1hf", f"name_prefix: expected {PREFIX}, got '1hf'"),
    "a prefix that leaves no room": ("name_prefix", "h" * 46, f"name_prefix: expected {PREFIX}, got '{'h' * 46}'"),
    "one adopted prefix that is no list": (
        "adopt_prefixes",
        "sym-",
        "adopt_prefixes: expected a list of name prefixes such as [sym-], got 'sym-'",
    ),
    "an adopted prefix that matches everything": (
        "adopt_prefixes",
        [""],
        "adopt_prefixes.0: expected a list of name prefixes such as [sym-], got ''",
    ),
    "a port without a host": ("listen", "9464", "listen: expected HOST:PORT such as 127.0.0.1:9464, got '9464'"),
    "a floor above the interval": (
        "loop.floor_seconds",
        6,
        "loop.floor_seconds: expected at most interval_seconds (5), got 6",
    ),
    "a first back-off above the last": (
        "backoff.last_seconds",
        1,
        "backoff.first_seconds: expected at most last_seconds (1), got 5.0",
    ),
    "a namespace in capitals": (
        f"{GKE}.namespace",
        "Grid",
        f"{GKE}.namespace: expected the name of a Kubernetes namespace, got 'Grid'",
    ),
    "a number for a path": (f"{GKE}.kubeconfig", 5, f"{GKE}.kubeconfig: expected a path, got 5"),
    "a region for a zone": (
        f"{MIG}.zone",
        "us-central1",
        f"{MIG}.zone: expected a zone such as us-central1-a, got 'us-central1'",
    ),
    "a zone and a region": (f"{MIG}.region", "us-central1", f"{MIG}.zone: expected either zone or region, got both"),
    "a group with a slash": (f"{MIG}.group", "a/b", f"{MIG}.group: expected {PLACE}, got 'a/b'"),
    "an endpoint without a scheme": (
        f"{MIG}.endpoint",
        "127.0.0.1:80",
        f"{MIG}.endpoint: expected an address beginning with http:// or https://, got '127.0.0.1:80'",
    ),
    "events without a project": ("events", {"subscription": "s"}, f"events.project: missing; expected {PLACE}"),
    "a pool named by a number": ("pools.7", {"kind": "gke"}, f"pools.7: expected {NAME}, got 7"),
    "a pool name that is no label value": (
        "pools.a b",
        {"kind": "gke", "pod_spec": "spec.yaml"},
        f"pools.a b.name: expected {NAME}, got 'a b'",
    ),
    "the pool of a template that is not of this file": (
        "template_limits",
        {},
        "template_limits: unknown setting; there are ",
    ),
}


def put(tree: dict[Any, Any], path: str, value: object) -> None:
    """Set the value at a dotted path; a digit is a number, as YAML reads it."""
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    for name in parents:
        tree = tree.setdefault(name, {})
    tree[last] = value


@pytest.mark.parametrize(("path", "value", "text"), WRONG_SETTINGS.values(), ids=WRONG_SETTINGS)
def test_a_wrong_setting_is_named_with_what_is_expected(site: Site, path: str, value: object, text: str) -> None:
    put(site.settings, path, value)

    own = [problem for problem in site.problems() if problem.startswith("provisioner.yaml: ")]

    assert len(own) == 1
    assert own[0].startswith(f"provisioner.yaml: {text}")


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


def test_one_mistake_does_not_hide_another(site: Site) -> None:
    site.settings |= {"id": "-", "loop": {"floor_seconds": 9, "act_seconds": "x", "bogus": 1}, "listen": 1}
    site.settings["pools"]["gke-main"] |= {"pod_spec": "absent.yaml", "paused": "x"}

    assert [problem.split(": ")[1] for problem in site.problems()] == [
        "pools.gke-main.paused",
        "pools.gke-main.pod_spec",
        "loop.bogus",
        "loop.act_seconds",
        "loop.floor_seconds",
        "id",
        "listen",
    ]


def same_mig(pools: dict[str, Any]) -> None:
    pools["mig-b"] = dict(pools["mig-a"])


def same_namespace_and_spec(pools: dict[str, Any]) -> None:
    pools["gke-twin"] = dict(pools["gke-main"])


@pytest.mark.parametrize(
    ("copy", "text"),
    [
        (same_mig, "pools.mig-b: the same place as pool 'mig-a'"),
        (same_namespace_and_spec, "pools.gke-twin: the same place as pool 'gke-main'"),
    ],
    ids=["one MIG", "one namespace with one pod spec"],
)
def test_two_pools_are_two_places(site: Site, copy: Callable[[dict[str, Any]], None], text: str) -> None:
    copy(site.settings["pools"])

    assert site.problems() == [f"provisioner.yaml: {text}"]


def test_one_namespace_holds_pools_of_different_pod_specs(site: Site) -> None:
    (site.directory / "other.yaml").write_text(SPEC)
    site.settings["pools"]["gke-other"] = site.settings["pools"]["gke-main"] | {"pod_spec": "other.yaml"}

    assert "gke-other" in site.load().pools


POD_SPECS = {
    "that is absent": (None, "no such file: 'pod.yaml'"),
    "that is not YAML": ("a: [", "'pod.yaml': line 1, column 5: expected the node content, but found '<stream end>'"),
    "with a repeated key": (
        "containers: []\ncontainers: []\n",
        "'pod.yaml': containers: given twice, in lines 1 and 2",
    ),
    "of another kind": (
        "kind: Deployment\nspec: {}\n",
        "'pod.yaml': expected a pod's spec or kind Pod, got 'Deployment'",
    ),
    "that is a list": ("[1]", "'pod.yaml': expected a pod's spec or a Pod manifest, got [1]"),
    "that is empty": ("", "'pod.yaml': expected a pod's spec or a Pod manifest, got nothing"),
    "without containers": (
        "kind: Pod\nspec: {containers: []}\n",
        "'pod.yaml': not a pod: it needs containers, each with a name and an image",
    ),
    "whose container has no image": (
        "containers: [{name: a}]\n",
        "'pod.yaml': not a pod: it needs containers, each with a name and an image",
    ),
}


@pytest.mark.parametrize(("content", "text"), POD_SPECS.values(), ids=POD_SPECS)
def test_a_pod_spec(site: Site, content: str | None, text: str) -> None:
    site.settings["pools"]["gke-main"]["pod_spec"] = "pod.yaml"
    if content is not None:
        (site.directory / "pod.yaml").write_text(content)

    assert site.problems() == [f"provisioner.yaml: pools.gke-main.pod_spec: {text}"]


def test_a_pod_spec_that_is_a_directory_cannot_be_read(site: Site) -> None:
    site.settings["pools"]["gke-main"]["pod_spec"] = "."

    assert site.problems()[0].startswith("provisioner.yaml: pools.gke-main.pod_spec: '.' cannot be read: ")


@pytest.mark.parametrize("written", ["../outside.yaml", "/etc/passwd", "link.yaml"])
def test_a_pod_spec_outside_the_directory_is_refused(site: Site, written: str) -> None:
    (site.directory / "link.yaml").symlink_to("/etc/passwd")
    site.templates = [template("Pod", podSpecYaml=written)]

    assert site.problems() == [
        f"tprov_templates.json: templates.Pod.podSpecYaml: {written!r} is outside the configuration's directory"
    ]


WRONG_TEMPLATES = {
    "an unknown pool": (
        {"pools": ["mig-a", "mig-q"]},
        ["templates.T.pools: unknown pool 'mig-q'; did you mean 'mig-a'?"],
    ),
    "no place at all": (
        {},
        [NO_PLACE],
    ),
    "two kinds of place": (
        {"podSpecYaml": "spec.yaml", "gcp_instance_group": "g"},
        [NO_PLACE],
    ),
    "a group without a zone, and no project": (
        {"gcp_instance_group": "g"},
        [
            f"templates.T.(GCP_PROJECT_ID): missing; expected {PLACE}",
            "templates.T.gcp_zone: expected either zone or region, got neither",
        ],
    ),
    "a maxNumber beyond HF's": (
        {"pools": ["mig-a"], "maxNumber": 10_001},
        ["templates[1].maxNumber: expected a whole number from -1 to 10000, got 10001"],
    ),
}


@pytest.mark.parametrize(("fields", "texts"), WRONG_TEMPLATES.values(), ids=WRONG_TEMPLATES)
def test_a_template_with(site: Site, fields: dict[str, Any], texts: list[str]) -> None:
    site.templates.append(template("T") | fields)

    assert site.problems() == [f"tprov_templates.json: {text}" for text in texts]


def test_a_template_of_pods_needs_an_id_that_is_a_label_value(site: Site) -> None:
    site.templates = [template("_T", pools=["gke-main"])]

    assert site.problems() == [f"tprov_templates.json: templates._T.templateId: expected {NAME}, got '_T'"]


def test_a_template_of_instances_does_not(site: Site) -> None:
    site.templates = [template("_T", pools=["mig-a"])]

    assert "_T" in site.load().template_limits


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
    "a tab says where": (
        "id: demo\npools:\n\ta: 1\n",
        "line 3, column 1: found character '\\t' that cannot start any token",
    ),
    "two documents are one too many": ("id: a\n---\nid: b\n", "line 2, column 1: but found another document"),
    "a tag that makes objects is refused": (
        "id: !!python/name:os.getcwd []\n",
        "line 1, column 5: could not determine a constructor for the tag 'tag:yaml.org,2002:python/name:os.getcwd'",
    ),
    "a repeated key says both lines": ("id: a\nloop: {}\nid: b\n", "id: given twice, in lines 1 and 3"),
    "a repeated key inside says its path": (
        "loop:\n  act_seconds: 1\n  act_seconds: 2\n",
        "loop.act_seconds: given twice, in lines 2 and 3",
    ),
    "a list is no configuration": ("- a\n", "expected a mapping of settings, got ['a']"),
    "a setting named by a number": ("5: a\n", "5: a setting's name has to be a text"),
    "an alias into itself ends": ("id: &a [*a]\nid: x\n", "id: given twice, in lines 1 and 2"),
}


@pytest.mark.parametrize(("content", "text"), TEXTS.values(), ids=TEXTS)
def test_in_a_file_that_cannot_be_read_as_settings(site: Site, content: str, text: str) -> None:
    assert site.problems(content) == [f"provisioner.yaml: {text}"]


def test_a_file_that_is_not_there_is_not_an_empty_one(site: Site) -> None:
    site.write()
    site.path.unlink()

    with pytest.raises(config.ConfigError, match="1 problem\n  no such file; an empty one takes every default"):
        config.load(site.path, {})


def test_a_templates_file_that_cannot_be_read_is_said_beside_the_settings(site: Site) -> None:
    site.write("a: [")
    (site.directory / "tprov_templates.json").write_text("{")

    with pytest.raises(config.ConfigError) as caught:
        config.load(site.path, {})

    assert [Path(problem.file).name for problem in caught.value.problems] == [
        "provisioner.yaml",
        "tprov_templates.json",
    ]


def sections() -> list[tuple[str, str, Any]]:
    models = (
        config.Settings,
        config.Loop,
        config.Backoff,
        config.Events,
        config.GkePool,
        config.MigPool,
    )
    return [(model.__name__, name, info) for model in models for name, info in model.model_fields.items()]


@pytest.mark.parametrize(
    ("model", "name", "info"), sections(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_setting_says_what_it_is_its_unit_and_its_default(model: str, name: str, info: Any) -> None:
    text = info.description or ""

    assert len(text) > 5, f"{model}.{name} has no docstring"
    if name.endswith(("_seconds", "_minutes", "_hours")):
        assert text.startswith(name.rpartition("_")[2].capitalize()) or f" {name.rpartition('_')[2]} " in text
    if type(info.default) in (int, float):
        assert re.search(rf"\b{info.default:g}\b", text)
