"""Tests of HF's two JSON files: they are read liberally, and every mistake is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioner.hostfactory import templates
from provisioner.hostfactory.provider_config import SHOWN_CHARACTERS, ProviderConfig, TemplatesError, format_value
from provisioner.hostfactory.templates import Provider
from tests.support.hostfactory.schemas import check_output

ATTRIBUTES = {"type": ["String", "X86_64"], "ncpus": ["Numeric", "4"], "nram": ["Numeric", "8192"]}
GOOD = {"templateId": "T1", "maxNumber": 10, "attributes": ATTRIBUTES}


def write(directory: Path, *entries: object, config: object = None, instance: str = "demoinst") -> None:
    (directory / f"{instance}prov_templates.json").write_text(json.dumps({"templates": list(entries)}))
    if config is not None:
        (directory / f"{instance}prov_config.json").write_text(json.dumps(config))


def load(directory: Path, *entries: object, config: object = None) -> Provider:
    write(directory, *entries, config=config)
    return templates.load(directory, {"HF_PROVIDER_NAME": "demoinst"})


@pytest.mark.parametrize(
    ("name", "written", "read"),
    [
        pytest.param("ncpus", ["Numeric", 4], ("Numeric", "4"), id="a tagged number, not quoted"),
        pytest.param("ncpus", 4, ("Numeric", "4"), id="a bare number"),
        pytest.param("ncpus", ["4"], ("Numeric", "4"), id="a list without type"),
        pytest.param("ncpus", 4.0, ("Numeric", "4"), id="a whole number written with a point"),
        pytest.param("ncpus", ["Numeric", "1.5"], ("Numeric", "1.5"), id="a part"),
        pytest.param("ncpus", ["String", "4"], ("Numeric", "4"), id="a wrong type"),
        pytest.param("ncores", 2, ("Numeric", "2"), id="ncores, where it is given"),
        pytest.param("type", "X86_64", ("String", "X86_64"), id="a bare machine type"),
        pytest.param("type", ["X86_64"], ("String", "X86_64"), id="a machine type in a list"),
        pytest.param("site", ["Boolean", "1"], ("Boolean", "1"), id="a tagged boolean of the site"),
        pytest.param("site", True, ("Boolean", "1"), id="a bare boolean of the site"),
        pytest.param("site", "zone-1", ("String", "zone-1"), id="a bare text of the site"),
    ],
)
def test_an_attribute_reaches_hf_tagged_and_quoted(
    tmp_path: Path, name: str, written: object, read: tuple[str, str]
) -> None:
    provider = load(tmp_path, GOOD | {"attributes": ATTRIBUTES | {name: written}})
    assert provider.templates[0].attributes[name] == read
    check_output("getAvailableTemplates", {"templates": [provider.templates[0].document()]})


@pytest.mark.parametrize(("one", "other", "highest"), [(3, 10, 10), (0, 3, 3), (-1, 10, -1), (-1, 0, -1), (-1, -1, -1)])
def test_no_number_allows_more_than_no_limit(one: int, other: int, highest: int) -> None:
    assert templates.get_higher(one, other) == templates.get_higher(other, one) == highest


def test_memory_is_taken_from_lsf_s_name_for_it(tmp_path: Path) -> None:
    attributes = {"type": "X86_64", "ncpus": 4, "mem": 2048}
    provider = load(tmp_path, GOOD | {"attributes": attributes})
    assert provider.templates[0].attributes["nram"] == ("Numeric", "2048")
    assert provider.templates[0].attributes["mem"] == ("Numeric", "2048")


def test_unknown_fields_and_nulls_pass_through_as_they_are(tmp_path: Path) -> None:
    extra = {
        "pgrpName": None,
        "vmTypes": {"m3.medium": 1},
        "onDemandCapacity": 0,
        "podSpecYaml": "a.yaml",
        "pools": ["a"],
    }
    assert load(tmp_path, GOOD | extra).templates[0].document().items() >= extra.items()


def test_google_s_fields_and_ours_are_read(tmp_path: Path) -> None:
    gce = {"gcp_zone": "us-central1-a", "gcp_instance_group": "hf-a"}
    vm, region, pod, both = load(
        tmp_path,
        GOOD | gce,
        GOOD | {"templateId": "region", "gcp_region": "us-central1"},
        GOOD | {"templateId": "pod", "podSpecYaml": "pod-specs/a.yaml"},
        GOOD | {"templateId": "both", "pools": ["a", "b", "a"]},
    ).templates
    assert (vm.gcp_zone, vm.gcp_instance_group, vm.pools, vm.pod_spec_yaml) == ("us-central1-a", "hf-a", (), "")
    assert region.gcp_region == "us-central1"
    assert pod.pod_spec_yaml == "pod-specs/a.yaml"
    assert both.pools == ("a", "b")


@pytest.mark.parametrize(
    ("change", "where", "words"),
    [
        pytest.param({"templateId": "a b"}, ".templateId", "digits, '_' or '-', got \"a b\"", id="a space"),
        pytest.param({"templateId": "a" * 65}, ".templateId", "1 to 64", id="65 characters"),
        pytest.param({"templateId": 7}, ".templateId", "got 7", id="id is a number"),
        pytest.param({"templateId": "good"}, ".templateId", "occurs twice", id="id is there twice"),
        pytest.param({"maxNumber": -2}, ".maxNumber", "from -1 to 10000, got -2", id="below -1"),
        pytest.param({"maxNumber": 10001}, ".maxNumber", "got 10001", id="above HF's limit"),
        pytest.param({"maxNumber": True}, ".maxNumber", "got true", id="maxNumber is true"),
        pytest.param({"maxNumber": 1.5}, ".maxNumber", "got 1.5", id="half a machine"),
        pytest.param({"attributes": None}, ".attributes", "an object, got null", id="no attributes"),
        pytest.param({"attributes": {**ATTRIBUTES, "ncpus": 0}}, ".attributes.ncpus", "above 0, got 0", id="no CPU"),
        pytest.param({"attributes": {**ATTRIBUTES, "nram": "8G"}}, ".attributes.nram", 'got "8G"', id="a unit"),
        pytest.param({"attributes": {**ATTRIBUTES, "type": None}}, ".attributes.type", "is missing", id="no type"),
        pytest.param({"attributes": {**ATTRIBUTES, "type": []}}, ".attributes.type", "got []", id="empty list"),
        pytest.param({"attributes": {**ATTRIBUTES, "type": [1, 2]}}, ".attributes.type", "got [1, 2]", id="no text"),
        pytest.param({"attributes": {**ATTRIBUTES, "x": ["a", "b", "c"]}}, ".attributes.x", "got [", id="three parts"),
        pytest.param({"pools": []}, ".pools", "a list of pool names, got []", id="no pools"),
        pytest.param("T1", "", 'expected an object, got "T1"', id="no object"),
        pytest.param({"podSpecYaml": 3}, ".podSpecYaml", "a text, got 3", id="pod spec is a number"),
    ],
)  # fmt: skip
def test_an_invalid_template_is_left_out_and_reported_and_the_others_stay(
    tmp_path: Path, change: object, where: str, words: str
) -> None:
    wrong = GOOD | change if isinstance(change, dict) else change
    provider = load(tmp_path, GOOD | {"templateId": "good"}, wrong, GOOD | {"templateId": "last"})
    assert [template.id for template in provider.templates] == ["good", "last"]
    [problem] = provider.problems
    assert problem.where == f"templates[1]{where}"
    assert words in problem.text
    assert problem.file == f"{tmp_path}/demoinstprov_templates.json"
    assert str(problem).startswith(f"templates[1]{where}: ")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"", "not JSON", id="empty"),
        pytest.param(b'{"templates": []}', "the list is empty", id="no templates"),
        pytest.param(b"{}", "expected a list, got null", id="no list"),
        pytest.param(b'"T1"', 'expected a list, got "T1"', id="a text"),
        pytest.param(b'{"templates": [{}]}', "no valid template; templates[0].templateId", id="only invalid ones"),
        pytest.param(b'{"templates": "\xff"}', "not JSON", id="not UTF-8"),
        pytest.param(b"[" * 100_000, "not JSON", id="nested without end"),
    ],
)
def test_a_file_without_one_usable_template_is_an_error_not_an_empty_list(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "demoinstprov_templates.json"
    path.write_bytes(content)
    with pytest.raises(TemplatesError) as caught:
        templates.load(tmp_path, {"HF_PROVIDER_NAME": "demoinst"})
    assert caught.value.path == str(path)
    assert reason in caught.value.reason
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    path = tmp_path / "demoinstprov_templates.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert templates.load(tmp_path, {"HF_PROVIDER_NAME": "demoinst"}).templates[0].id == "T1"


def test_the_instance_is_named_by_hf_or_by_lsf_or_is_the_only_one(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    for environment in ({"HF_PROVIDER_NAME": "demoinst"}, {"PROVIDER_NAME": "demoinst"}, {}):
        assert templates.load(tmp_path, environment).name == "demoinst"
    write(tmp_path, GOOD, instance="second")
    with pytest.raises(TemplatesError, match=r"found demoinstprov_templates.json, secondprov_templates.json"):
        templates.load(tmp_path, {})
    with pytest.raises(TemplatesError, match=r"thirdprov_templates.json: No such file"):
        templates.load(tmp_path, {"HF_PROVIDER_NAME": "third"})


def test_the_config_may_name_another_templates_file(tmp_path: Path) -> None:
    write(tmp_path, GOOD, config={"HF_TEMPLATES_FILENAME": "mine.json"})
    (tmp_path / "mine.json").write_text(json.dumps({"templates": [GOOD | {"templateId": "mine"}]}))
    provider = templates.load(tmp_path, {"HF_PROVIDER_NAME": "demoinst"})
    assert provider.template("mine") is not None
    assert provider.template("T1") is None


def test_google_s_config_keys_are_read(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        GOOD,
        config={
            "GCP_PROJECT_ID": "p",
            "GCP_CREDENTIALS_FILE": "/k.json",
            "GCP_INSTANCE_PREFIX": "Sym-",
            "PUBSUB_TOPIC": "t",
            "PUBSUB_SUBSCRIPTION": "s",
            "GKE_KUBECONFIG": "kubeconfig",
            "GKE_CRD_NAMESPACE": "gcp-symphony",
            "GKE_REQUEST_TIMEOUT": "300",
            "LOGFILE": "x.log",
            "LOG_LEVEL": "warning",
            "LOG_MAX_FILE_SIZE": "20",
            "LOG_MAX_ROTATE": 3,
            "PUBSUB_AUTOLAUNCH": "false",
            "GKE_CRD_VERSION": "v1",
            "COLOUR": "red",
        },
    ).config
    assert config == ProviderConfig(
        gcp_project_id="p",
        gcp_credentials_file="/k.json",
        gcp_instance_prefix="sym-",
        gke_kubeconfig="kubeconfig",
        gke_namespace="gcp-symphony",
        log_file="x.log",
        log_level="WARNING",
        log_max_megabytes=20.0,
        log_max_rotate=3,
        unused=("PUBSUB_TOPIC", "PUBSUB_SUBSCRIPTION", "GKE_REQUEST_TIMEOUT", "PUBSUB_AUTOLAUNCH", "GKE_CRD_VERSION"),
        unknown={"COLOUR": "red"},
    )


def test_a_config_value_that_cannot_be_used_is_reported_and_leaves_the_default(tmp_path: Path) -> None:
    provider = load(
        tmp_path, GOOD, config={"LOG_MAX_ROTATE": "many", "LOG_LEVEL": 7, "LOGFILE": None, "GCP_PROJECT_ID": "\ud800"}
    )
    assert provider.config == ProviderConfig()
    assert {(problem.where, problem.text) for problem in provider.problems} == {
        ("LOG_MAX_ROTATE", 'expected a number of at least 0, got "many"'),
        ("LOG_LEVEL", "expected a text, got 7"),
        ("GCP_PROJECT_ID", 'expected printable characters, got "\\ud800"'),
    }


def test_without_a_config_file_the_defaults_hold_and_a_broken_one_is_an_error(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD).config == ProviderConfig()
    (tmp_path / "demoinstprov_config.json").write_text("[]")
    with pytest.raises(TemplatesError, match=r"demoinstprov_config.json: expected a JSON object, got \[\]"):
        templates.load(tmp_path, {"HF_PROVIDER_NAME": "demoinst"})


def test_a_wrong_value_that_is_nested_too_deeply_is_not_shown() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert format_value(deep) == "a value nested too deeply to show"


def test_a_long_wrong_value_is_shown_short() -> None:
    assert len(format_value("x" * 1000)) == SHOWN_CHARACTERS
