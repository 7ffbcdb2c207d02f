"""The configuration: what is said about each mistake."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provisioner.backends.gke.settings import GkePool
from provisioner.backends.mig.settings import MigPool
from provisioner.files.yaml_text import TOO_DEEP
from provisioner.settings import loader
from provisioner.settings.tree import Events
from tests.support.hostfactory.sites import SPEC, Site, small_site, template


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return small_site(tmp_path)


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
NO_PLACE = (
    "templates.T.pools: expected names of pools, or podSpecYaml, or gcp_instance_group with gcp_zone or gcp_region"
)
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
    "a duration of nothing": (
        "loop.interval_seconds",
        0,
        "loop.interval_seconds: expected a number > 0, at most 15, got 0",
    ),
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
    "an adopted prefix that our own names begin with": (
        "adopt_prefixes",
        ["sym-", "hf"],
        "adopt_prefixes.1: 'hf' and name_prefix 'hf' cover one another; choose a name_prefix that no adopted name"
        " begins with",
    ),
    "an adopted prefix that begins like our own names": (
        "adopt_prefixes",
        ["hf-old-"],
        "adopt_prefixes.0: 'hf-old-' and name_prefix 'hf' cover one another; choose a name_prefix that no adopted name"
        " begins with",
    ),
    "too few calls to look at anything": (
        "compute",
        {"calls_per_minute": 10},
        "compute.calls_per_minute: expected a whole number ≥ 60, got 10",
    ),
    "looks that are too far apart": (
        f"{MIG}.observe_seconds",
        31,
        f"{MIG}.observe_seconds: expected a number > 0, at most 30, got 31",
    ),
    "first minutes that are longer than a stop of the loop counts": (
        f"{MIG}.early_loss_seconds",
        3601,
        f"{MIG}.early_loss_seconds: expected a number ≥ 0, at most 3600, got 3601",
    ),
    "a mass loss that would be told too late": (
        f"{MIG}.mass_loss_seconds",
        91,
        f"{MIG}.mass_loss_seconds: expected a number ≥ 0, at most 90, got 91",
    ),
    "an interval that scripts would take for the loop's end": (
        "loop.interval_seconds",
        16,
        "loop.interval_seconds: expected a number > 0, at most 15, got 16",
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
    "nothing for a pool's path": (f"{MIG}.credentials", "", f"{MIG}.credentials: expected a path, got ''"),
    "nothing for a path": ("ca_bundle", "", "ca_bundle: expected a path, got ''"),
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
    "settings of templates in a list": (
        "templates",
        ["Mixed"],
        "templates: expected a mapping of templates, got ['Mixed']",
    ),
    "settings of a template that HF does not have": (
        "templates.Mixd",
        {},
        "templates.Mixd: no such template; did you mean 'Mixed'?",
    ),
    "settings of a template that are none": (
        "templates.Mixed",
        3,
        "templates.Mixed: expected a mapping of settings, got 3",
    ),
    "an unknown setting of a template": (
        "templates.Mixed.straggler_secs",
        3,
        "templates.Mixed.straggler_secs: unknown setting; did you mean 'straggler_seconds'?",
    ),
    "machines that live for no time": (
        "templates.Mixed.max_lifetime_seconds",
        0,
        "templates.Mixed.max_lifetime_seconds: expected a number > 0, got 0",
    ),
    "more than all of a request's machines": (
        "templates.Mixed.straggler_share",
        1.5,
        "templates.Mixed.straggler_share: expected a number > 0, at most 1, got 1.5",
    ),
    "the pool of a template that is not of this file": (
        "template_limits",
        {},
        "template_limits: unknown setting; ",
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


def same_mig_at_an_address_written_otherwise(pools: dict[str, Any]) -> None:
    pools["mig-b"] = pools["mig-a"] | {"endpoint": "https://compute.googleapis.com/compute/v1/"}


def same_namespace_and_spec(pools: dict[str, Any]) -> None:
    pools["gke-twin"] = dict(pools["gke-main"])


@pytest.mark.parametrize(
    ("copy", "text"),
    [
        (same_mig, "pools.mig-b: the same place as pool 'mig-a'"),
        (same_mig_at_an_address_written_otherwise, "pools.mig-b: the same place as pool 'mig-a'"),
        (same_namespace_and_spec, "pools.gke-twin: the same place as pool 'gke-main'"),
    ],
    ids=["one MIG", "one MIG, its address written otherwise", "one namespace with one pod spec"],
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


def test_a_pod_spec_through_a_directory_that_leads_outside_is_refused(site: Site, tmp_path_factory: Any) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "spec.yaml").write_text(SPEC)
    (site.directory / "specs").symlink_to(outside)
    site.settings["pools"]["gke-main"]["pod_spec"] = "specs/spec.yaml"

    assert site.problems() == [
        "provisioner.yaml: pools.gke-main.pod_spec: 'specs/spec.yaml' is outside the configuration's directory"
    ]


def test_a_pod_spec_that_a_config_map_mounts_is_inside(site: Site) -> None:
    (site.directory / "..2030").mkdir()
    (site.directory / "..2030" / "pod.yaml").write_text(SPEC)
    (site.directory / "..data").symlink_to("..2030")
    (site.directory / "pod.yaml").symlink_to("..data/pod.yaml")
    site.settings["pools"]["gke-main"]["pod_spec"] = "pod.yaml"

    assert "gke-main" in site.load().pools


CLUSTERS = {
    "a kubeconfig and an endpoint": (
        {"endpoint": "https://10.0.0.1", "kubeconfig": "kubeconfig", "context": "c"},
        {
            "kubeconfig": "not used with an endpoint; leave out one of them",
            "context": "not used with an endpoint; leave out one of them",
        },
    ),
    "an authority and credentials without an endpoint": (
        {"ca_file": "ca.pem", "credentials": "key.json"},
        {
            "ca_file": "used only with an endpoint; name one, or leave this out",
            "credentials": "used only with an endpoint; name one, or leave this out",
        },
    ),
    "credentials that would be sent in the clear": (
        {"endpoint": "http://10.0.0.1", "credentials": "key.json"},
        {"credentials": "not used with an endpoint of http://; leave this out"},
    ),
    "an endpoint without a scheme": (
        {"endpoint": "10.0.0.1"},
        {"endpoint": "expected an address beginning with http:// or https://, got '10.0.0.1'"},
    ),
}


@pytest.mark.parametrize(("settings", "texts"), CLUSTERS.values(), ids=CLUSTERS)
def test_a_pool_with(site: Site, settings: dict[str, Any], texts: dict[str, str]) -> None:
    site.settings["pools"]["gke-main"] |= settings

    assert site.problems() == [f"provisioner.yaml: pools.gke-main.{name}: {text}" for name, text in texts.items()]


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
    "a value that is not of its tag says of which": (
        "id: !!int x\n",
        "line 1, column 5: this is no whole number",
    ),
    "a date that no calendar has": ("id: 2021-13-40\n", "line 1, column 5: this is no date"),
    "a list is no configuration": ("- a\n", "expected a mapping of settings, got ['a']"),
    "a setting named by a number": ("5: a\n", "5: a setting's name has to be a text"),
    "an alias into itself": ("id: &a [*a]\nid: x\n", f"line 1, column 5: {TOO_DEEP}"),
}


@pytest.mark.parametrize(("content", "text"), TEXTS.values(), ids=TEXTS)
def test_in_a_file_that_cannot_be_read_as_settings(site: Site, content: str, text: str) -> None:
    assert site.problems(content) == [f"provisioner.yaml: {text}"]


def test_in_a_file_of_another_encoding_the_line_is_said(site: Site) -> None:
    site.write()
    site.path.write_bytes("id: demo\n# für alle\n".encode("latin-1"))

    with pytest.raises(loader.ConfigError, match=r"cannot be read: line 2 is no UTF-8 \(byte 0xfc\); save the file as"):
        loader.load(site.path, {})


def test_a_file_that_is_not_there_is_not_an_empty_one(site: Site) -> None:
    site.write()
    site.path.unlink()

    with pytest.raises(loader.ConfigError, match="1 problem\n  no such file; make it and name the pools"):
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


def sections() -> list[tuple[str, str, Any]]:
    models = (
        loader.Settings,
        loader.Loop,
        loader.Backoff,
        loader.TemplateSettings,
        Events,
        GkePool,
        MigPool,
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
