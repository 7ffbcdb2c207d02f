"""HostFactory's files made from one settings file, and two provider instances merged into one."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from provisioner.commands.cli import run
from provisioner.hostfactory.provider_config import UNUSED_KEYS
from provisioner.hostfactory.templates import load
from provisioner.schema.validation import ConfigError
from provisioner.settings import loader
from provisioner.settings.definitions import Settings
from provisioner.tools import file_placement
from provisioner.tools.provider_registration import registration_text
from provisioner.tools.render import render as rendered
from provisioner.tools.settings_file import HostFactorySettings
from tests.support.hostfactory.sites import ATTRIBUTES, SPEC

EXAMPLES = Path(__file__).parents[3] / "config"
KEPT = "conf/before-render-hf"
OURS = Path("conf", "providers", "demoinst")


def render(file: Path, out: Path) -> list[Path]:
    """Write the files of the settings file. Return their paths."""
    files = rendered(file, out / "conf")
    file_placement.put(file_placement.changes(files), out / "conf", "now")
    return list(files)


def made_below(out: Path) -> Settings:
    """Return the settings that the loop reads from the written files."""
    return loader.load(out / OURS / "provisioner.yaml", {})


def settings(directory: Path, **values: object) -> Path:
    file = directory / "hf.yaml"
    file.write_text(yaml.safe_dump({"instance": "demoinst"} | values))
    return file


def instance(directory: Path, name: str, keys: dict[str, object], template: dict[str, Any], **files: str) -> Path:
    """Write a configuration directory of Google's connector, and return it."""
    directory.mkdir()
    (directory / f"{name}prov_config.json").write_text(json.dumps(keys))
    entry = {"maxNumber": 10, "attributes": ATTRIBUTES} | template
    (directory / f"{name}prov_templates.json").write_text(json.dumps({"templates": [entry]}))
    for file, text in files.items():
        (directory / f"{file}.yaml").write_text(text)
    return directory


def two(directory: Path, **gce_keys: object) -> list[str]:
    """Write the configuration directories of Google's two connectors, one for pods and one for instances. Return their
    names."""
    keys = {"GKE_CRD_NAMESPACE": "grid", "GKE_KUBECONFIG": "kubeconfig.yaml", "LOG_LEVEL": "INFO"}
    pods = instance(
        directory / "gcpgkeinst", "gcpgkeinst", keys, {"templateId": "Pod", "podSpecYaml": "pod.yaml"},
        pod=SPEC, kubeconfig="{}",
    )  # fmt: skip
    group = {"templateId": "Vm", "gcp_zone": "us-central1-a", "gcp_instance_group": "g"}
    keys = {"GCP_PROJECT_ID": "demo-project", "GCP_INSTANCE_PREFIX": "sym-", "LOG_LEVEL": "INFO"}
    vms = instance(directory / "gcpgceinst", "gcpgceinst", keys | gce_keys, group)
    return [pods.name, vms.name]


def carried(directory: Path, first: dict[str, object], second: dict[str, object], **values: object) -> Path:
    """Write the directories of ``two``, each with a provisioner.yaml. Return a settings file that merges them."""
    sources = two(directory)
    for source, body in zip(sources, (first, second), strict=True):
        (directory / source / "provisioner.yaml").write_text(yaml.safe_dump(body))
    return settings(directory, merge=sources, **values)


def registered(out: Path, file: str, document: object) -> Path:
    """Write an earlier registration file; ``file`` is its path below conf."""
    path = out / "conf" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def tree(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_the_instance_is_registered_when_its_files_are_there(tmp_path: Path) -> None:
    written = render(settings(tmp_path, merge=two(tmp_path)), tmp_path / "out")
    assert {path.name.startswith("host") for path in written[:-3]} == {False}
    assert {path.name.startswith("host") for path in written[-3:]} == {True}


def test_the_examples_are_what_it_writes(tmp_path: Path) -> None:
    example = json.loads((EXAMPLES / "demoinst" / "demoinstprov_templates.json").read_text())
    written = render(settings(tmp_path, templates=example["templates"]), tmp_path / "out")
    for file in ("hostProviderPlugins", "hostProviders", "hostRequestors"):
        [made] = [path for path in written if path.stem == file]
        assert json.loads(made.read_text()) == json.loads((EXAMPLES / "hf" / f"{file}.json").read_text())
    made = tmp_path / "out" / OURS
    assert json.loads((made / "demoinstprov_templates.json").read_text()) == example


def test_two_instances_become_one_whose_templates_may_name_both_kinds_of_pool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = settings(tmp_path, merge=two(tmp_path))
    assert run(["render-hf", str(file), "--out", str(tmp_path / "out")]) == 0
    conf = tmp_path / "out" / OURS
    assert str(conf / "provisioner.yaml") in capsys.readouterr().out.splitlines()
    made = loader.load(conf / "provisioner.yaml", {})
    assert {name: (pool.kind, pool.identity[-1]) for name, pool in made.pools.items()} == {
        "Pod": ("gke", str(conf / "pod.yaml")),
        "Vm": ("mig", "g"),
    }
    assert (made.name_prefix, set(made.template_limits)) == ("sym", {"Pod", "Vm"})
    assert (conf / "kubeconfig.yaml").exists()
    templates = json.loads((conf / "demoinstprov_templates.json").read_text())
    templates["templates"][0]["pools"] = ["Pod", "Vm"]
    (conf / "demoinstprov_templates.json").write_text(json.dumps(templates))
    assert loader.load(conf / "provisioner.yaml", {}).template_limits["Pod"].pools == ("Pod", "Vm")


@pytest.mark.parametrize("way", ["straight", "by a link"])
def test_an_absolute_path_of_a_merged_directory_becomes_that_of_the_copy(tmp_path: Path, way: str) -> None:
    """After the merge, a site may remove the old instance's directory. If paths still led to it, the new instance would
    lose its login."""
    sources = two(tmp_path)
    directory = tmp_path / sources[0]
    if way == "by a link":
        (tmp_path / "link").symlink_to(directory)
        sources[0] = "link"
    config = directory / "gcpgkeinstprov_config.json"
    elsewhere = {"GCP_CREDENTIALS_FILE": "/etc/keys/federation.json"}
    below = dict.fromkeys(("GKE_KUBECONFIG", "STATE_KUBECONFIG"), str(directory / "kubeconfig.yaml"))
    keys = json.loads(config.read_text()) | below | elsewhere
    config.write_text(json.dumps(keys))
    render(settings(tmp_path, merge=sources), tmp_path / "out")
    conf = tmp_path / "out" / OURS
    made = json.loads((conf / "demoinstprov_config.json").read_text())
    assert (made["GKE_KUBECONFIG"], made["GCP_CREDENTIALS_FILE"]) == ("kubeconfig.yaml", "/etc/keys/federation.json")
    assert made["STATE_KUBECONFIG"] == "kubeconfig.yaml"
    pool = loader.load(conf / "provisioner.yaml", {}).pools["Pod"]
    assert getattr(pool, "kubeconfig") == conf / "kubeconfig.yaml"  # noqa: B009 - a field of one kind of pool


def test_conflicts_are_reported_at_once(tmp_path: Path) -> None:
    sources = two(tmp_path, LOG_LEVEL="DEBUG")
    shutil.copytree(tmp_path / sources[1], tmp_path / "again")
    (tmp_path / "again" / "pod.yaml").write_text(SPEC + "# other")
    with pytest.raises(ConfigError) as caught:
        render(settings(tmp_path, merge=[*sources, "again"]), tmp_path / "out")
    places = sorted(problem.where for problem in caught.value.problems)
    assert places == ["config", "config", "merge", "pools", "templates"]
    assert not (tmp_path / "out").exists()


def test_what_the_settings_say_comes_first(tmp_path: Path) -> None:
    sources = two(tmp_path, LOG_LEVEL="DEBUG")
    template = {"templateId": "Vm", "maxNumber": 3, "attributes": ATTRIBUTES, "pools": ["Vm"]}
    file = settings(tmp_path, merge=sources, config={"LOG_LEVEL": "WARNING"}, templates=[template])
    render(file, tmp_path / "out")
    provider = load(tmp_path / "out" / OURS, {})
    assert provider.config.log_level == "WARNING"
    assert [(one.id, one.max_number) for one in provider.templates] == [("Vm", 3), ("Pod", 10)]
    assert not set(provider.config.unknown) & UNUSED_KEYS


TEMPLATE = {"templateId": "Vm", "maxNumber": 3, "attributes": ATTRIBUTES, "gcp_zone": "us-central1-a"}
PLUGINS, PROVIDERS = "providerplugins/hostProviderPlugins.json", "providers/hostProviders.json"
REQUESTORS = "requestors/hostRequestors.json"


@pytest.mark.parametrize(
    ("file", "key", "own"),
    [(PLUGINS, "providerplugins", "provisioner"), (PROVIDERS, "providers", "demoinst")],
)
def test_entries_of_others_stay_and_ours_is_replaced(tmp_path: Path, file: str, key: str, own: str) -> None:
    others = [{"name": "aws", "enabled": 0, "x": [1]}, {"name": "azure"}]
    before = {"version": 2, "note": "ours", key: [others[0], {"name": own, "old": 1}, others[1]]}
    path = registered(tmp_path / "out", file, before)
    render(settings(tmp_path, templates=[TEMPLATE]), tmp_path / "out")
    document = json.loads(path.read_text())
    assert [document[key][0], document[key][2]] == others
    assert (document[key][1]["name"], "old" in document[key][1], document["note"]) == (own, False, "ours")
    once = path.read_text()
    render(settings(tmp_path, templates=[TEMPLATE]), tmp_path / "out")
    assert path.read_text() == once


def test_a_requestor_of_others_keeps_what_it_has_and_may_ask_us_too(tmp_path: Path) -> None:
    tuned = {"name": "symAinst", "providers": ["aws"], "requestMode": "POLL", "resourceRequestParameters": {"a": 1}}
    other = {"name": "cws", "providers": ["aws"], "requestMode": "REST"}
    alone = {"name": "admin", "enabled": 0, "providers": [], "requestMode": "REST"}
    path = registered(tmp_path / "out", REQUESTORS, {"version": 2, "requestors": [other, tuned, alone]})
    for _ in range(2):
        render(settings(tmp_path, templates=[TEMPLATE]), tmp_path / "out")
        assert json.loads(path.read_text())["requestors"] == [
            other,
            tuned | {"providers": ["aws", "demoinst"]},
            alone | {"enabled": 1, "providers": ["demoinst"], "requestMode": "REST_MANUAL"},
        ]


def test_a_requestor_that_others_use_in_another_mode_is_reported(tmp_path: Path) -> None:
    entry = {"name": "symAinst", "providers": ["aws"], "requestMode": "REST"}
    registered(tmp_path / "out", REQUESTORS, {"version": 2, "requestors": [entry]})
    before = tree(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"symAinst\.requestMode: expected POLL of the settings file, got"):
        render(settings(tmp_path, templates=[TEMPLATE]), tmp_path / "out")
    assert tree(tmp_path / "out") == before
    render(settings(tmp_path, templates=[TEMPLATE], requestors={"symAinst": "REST"}), tmp_path / "out")


AS_SHIPPED = """{
    "version" : 2,
    "requestors" : [
        {
            "name" : "symAinst",
            "enabled" : 0,
            "providers" : ["awsinst"],
            "requestMode" : "POLL"
        }
    ]
}
"""
"""hostRequestors.json of a new HostFactory: its requestor by load is disabled and uses another provider."""
AS_HOSTFACTORY_WRITES = (
    '{\n\t"version":\t2,\n\t"requestors":\t[{\n\t\t\t"name":\t"symAinst",\n\t\t\t"enabled":\t0,\n\t\t\t"providers":\t["awsinst"],'
    '\n\t\t\t"requestMode":\t"POLL"\n\t\t}]\n}\n'
)


def test_a_requestor_that_stays_disabled_is_named_each_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = registered(tmp_path / "out", REQUESTORS, AS_SHIPPED)
    file = settings(tmp_path, templates=[TEMPLATE])
    message = (
        f"Requestor symAinst is disabled in {path}: HostFactory requests no machine of demoinst by it. To enable it, "
        f"give it `enabled: true` below `requestors` in {file}, and keep the others there."
    )
    for option, code in ((["--dry-run"], 1), ([], 0), (["--dry-run"], 0)):
        printed = called(capsys, file, "--out", tmp_path / "out", *option)
        assert (printed[0], printed[1][-1]) == (code, message)
    assert json.loads(path.read_text())["requestors"][0]["enabled"] == 0
    code, lines = called(capsys, file, "--out", tmp_path / "out", "--uninstall")
    assert (code, message in lines) == (0, False)
    on_purpose = settings(tmp_path, templates=[TEMPLATE], requestors={"symAinst": {"enabled": False}})
    printed = called(capsys, on_purpose, "--out", tmp_path / "out")
    assert printed[1][-1] == message.partition(" To enable")[0]


@pytest.mark.parametrize("shipped", [AS_SHIPPED, AS_HOSTFACTORY_WRITES, AS_SHIPPED.replace("    ", "\t")])
def test_a_disabled_requestor_is_enabled_and_the_difference_shows_that_alone(
    tmp_path: Path, shipped: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = registered(tmp_path / "out", REQUESTORS, shipped)
    enabled = {"symAinst": {"enabled": True}}
    file = settings(tmp_path, templates=[TEMPLATE], requestors=enabled)
    code, lines = called(capsys, file, "--out", tmp_path / "out", "--dry-run")
    section = lines[lines.index(f"--- {path}") + 2 :]
    changes = [line.replace("\t", "").replace(" ", "") for line in section if line[:1] in "+-"]
    assert (code, changes) == (
        1,
        ['-"enabled":0,', '-"providers":["awsinst"],', '+"enabled":1,', '+"providers":["awsinst","demoinst"],'],
    )
    render(file, tmp_path / "out")
    assert path.read_text() == shipped.replace("0,", "1,").replace('"awsinst"', '"awsinst", "demoinst"')
    alone = {"symAinst": {"enabled": False, "providers": ["demoinst"], "mode": "REST"}}
    render(settings(tmp_path, templates=[TEMPLATE], requestors=alone), tmp_path / "out")
    once = path.read_text()
    render(settings(tmp_path, templates=[TEMPLATE], requestors=alone), tmp_path / "out")
    assert path.read_text() == once
    [entry] = json.loads(path.read_text())["requestors"]
    assert (entry["enabled"], entry["providers"], entry["requestMode"]) == (0, ["demoinst"], "REST")


def test_the_providers_of_a_requestor_name_the_instance(tmp_path: Path) -> None:
    given = {"symAinst": {"providers": ["awsinst"]}}
    with pytest.raises(ConfigError, match=r"requestors\.symAinst\.providers: expected a list that names demoinst, got"):
        render(settings(tmp_path, templates=[TEMPLATE], requestors=given), tmp_path / "out")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([AS_SHIPPED, AS_HOSTFACTORY_WRITES, "", "[", "{}", '{"requestors": [{"a":1}]}']))
def test_a_registration_file_has_what_it_is_given_in_the_layout_that_it_had(value: object, before: str) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory, "hostRequestors.json")
        path.write_text(before)
        document = {"version": 2, "requestors": [{"name": "a", "x": value}]}
        text = registration_text(path, document)
        assert json.loads(text) == document
        path.write_text(text)
        assert registration_text(path, document) == text


def test_without_a_directory_it_writes_where_hostfactory_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = settings(tmp_path, templates=[TEMPLATE])
    for name in ("HF_TOP", "HF_CONFDIR"):
        monkeypatch.delenv(name, raising=False)
    assert run(["render-hf", str(file)]) == 2
    assert "--out is missing, and neither HF_CONFDIR nor HF_TOP is set" in capsys.readouterr().err
    monkeypatch.setenv("HF_TOP", str(tmp_path / "top"))
    assert run(["render-hf", str(file)]) == 0
    monkeypatch.setenv("HF_CONFDIR", str(tmp_path / "shared"))
    assert run(["render-hf", str(file)]) == 0
    assert tree(tmp_path / "shared") == tree(tmp_path / "top" / "conf")
    assert (tmp_path / "shared" / PROVIDERS).exists()


@pytest.mark.parametrize(
    ("file", "document", "words"),
    [
        (PLUGINS, "{", "not JSON"),
        (PROVIDERS, [], "expected an object, got []"),
        (PROVIDERS, {"version": 1, "providers": []}, "version: expected 2, that of Symphony 7.3 and later, got 1"),
        (PROVIDERS, {"version": 2}, "providers: expected a list, got null"),
        (PLUGINS, {"version": 2, "providerplugins": ["a"]}, '[0]: expected an object with a name, got "a"'),
        (REQUESTORS, {"version": 2, "requestors": [{"name": "a", "providers": "b"}]}, "[0].providers: expected a list"),
    ],
)  # fmt: skip
def test_a_registration_file_that_is_none_is_left_alone(
    tmp_path: Path, file: str, document: object, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = registered(tmp_path / "out", file, document)
    before = tree(tmp_path / "out")
    assert run(["render-hf", str(settings(tmp_path, templates=[TEMPLATE])), "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert str(path) in printed
    assert tree(tmp_path / "out") == before


POOLS = {
    "pods": {"kind": "gke", "namespace": "grid", "pod_spec": "specs/pod.yaml", "max_machines": 7},
    "vms": {"kind": "mig", "project": "demo-project", "zone": "us-central1-a", "group": "g"},
}
BOTH = {"templateId": "Both", "maxNumber": 3, "attributes": ATTRIBUTES, "pools": ["pods", "vms"]}


def own(directory: Path, **values: Any) -> Path:
    """The settings file of a site with pools of its own."""
    (directory / "specs").mkdir(exist_ok=True)
    (directory / "specs" / "pod.yaml").write_text(SPEC)
    given = {"pools": POOLS, "templates": [BOTH], "files": ["specs"], "provisioner": {"name_prefix": "grid"}}
    return settings(directory, **given | values)


DATE = datetime.date(2024, 1, 1)
MISTAKES: dict[str, tuple[Callable[..., Path], dict[str, Any], str]] = {
    "an instance's name": (settings, {"instance": "a b"}, "instance: expected 1 to 64 letters, digits"),
    "a requestor's mode": (
        settings,
        {"requestors": {"symAinst": "PULL"}},
        "requestors.symAinst.mode: expected POLL, REST or REST_MANUAL, got 'PULL'",
    ),
    "a requestor's switch": (
        settings,
        {"requestors": {"symAinst": {"enabled": 1}}},
        "symAinst.enabled: expected true or false, got 1",
    ),
    "a requestor's providers": (
        settings,
        {"requestors": {"symAinst": {"providers": "a"}}},
        "providers: expected a list of provider instances, got 'a'",
    ),
    "a requestor's key": (
        settings,
        {"requestors": {"symAinst": {"enable": True}}},
        "symAinst.enable: unknown setting; did you mean 'enabled'?",
    ),
    "a requestor that is none": (settings, {"requestors": {"symAinst": 3}}, "symAinst: expected requestors, each with"),
    "a key": (settings, {"instanse": "a"}, "instanse: unknown setting; did you mean 'instance'?"),
    "a template": (settings, {"templates": [{"templateId": "T"}]}, "templates[0].maxNumber"),
    "a directory that is not there": (settings, {"merge": ["nowhere"]}, "nowhere"),
    "no template": (settings, {}, "the list is empty"),
    "a date in the config": (settings, {"config": {"LOG_LEVEL": DATE}}, "config.LOG_LEVEL: expected keys with values"),
    "a date in a template": (settings, {"templates": [TEMPLATE | {"rank": DATE}]}, "templates.0.rank: expected"),
    "what is no number in JSON": (settings, {"config": {"LOG_LEVEL": float("nan")}}, "config.LOG_LEVEL"),
    "a pod spec that is not carried": (own, {"files": []}, "pools.pods.pod_spec"),
    "a file that is not there": (
        own,
        {"files": ["specs/none.yaml"]},
        "none.yaml: no such file; write it or leave it out",
    ),
    "a file elsewhere": (own, {"files": ["../specs"]}, "files: '../specs' is not beside the settings file; move it"),
    "a pool's kind": (own, {"pools": {"pods": {"kind": "gkee"}}}, "pools.pods.kind"),
    "pools in a list": (own, {"pools": ["pods"]}, "pools: expected pools by name"),
}


@pytest.mark.parametrize(("site", "values", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_reported_with_code_2_and_changes_no_file(
    tmp_path: Path,
    site: Callable[..., Path],
    values: dict[str, Any],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    render(settings(tmp_path, templates=[TEMPLATE]), out)
    before = tree(out)
    assert run(["render-hf", str(site(tmp_path, **values)), "--out", str(out)]) == 2
    assert words in capsys.readouterr().err
    assert tree(out) == before


def test_a_mistake_is_reported_for_the_file_below_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        render(settings(tmp_path), tmp_path / "out")
    [problem] = caught.value.problems
    assert problem.file == str(tmp_path / "out" / OURS / "demoinstprov_templates.json")


def test_a_directory_that_cannot_be_written_is_reported_before_any_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).name != "requestors")
    assert run(["render-hf", str(settings(tmp_path, templates=[TEMPLATE])), "--out", str(out)]) == 2
    assert tree(out) == {}


def test_files_keep_their_mode_and_links_stay_links(tmp_path: Path) -> None:
    sources = two(tmp_path)
    (tmp_path / sources[0] / "kubeconfig.yaml").chmod(0o600)
    out = tmp_path / "out"
    path = registered(out, PROVIDERS, {"version": 2, "providers": []})
    path.chmod(0o664)
    target = path.rename(tmp_path / "shared.json")
    path.symlink_to(target)
    render(settings(tmp_path, merge=sources), out)
    conf = out / OURS
    assert path.is_symlink()
    files = (target, conf / "kubeconfig.yaml", conf / "provisioner.yaml")
    assert [file.stat().st_mode & 0o777 for file in files] == [0o664, 0o600, 0o644]


def test_settings_of_merged_directories_are_carried_over(tmp_path: Path) -> None:
    loop = {"interval_seconds": 2.0}
    first = {"name_prefix": "sym", "adopt_prefixes": ["old-"], "loop": loop, "orphan_cap_per_hour": 3}
    second = {"loop": loop, "events": {"project": "demo-project", "subscription": "s"}}
    file = carried(tmp_path, first, second, provisioner={"orphan_cap_per_hour": 0})
    render(file, tmp_path / "out")
    made = made_below(tmp_path / "out")
    assert (made.name_prefix, made.adopt_prefixes, made.loop.interval_seconds) == ("sym", ("old-",), 2.0)
    assert (made.events and made.events.subscription, made.orphan_cap_per_hour) == ("s", 0)


def test_settings_that_differ_are_reported_until_the_settings_file_gives_them(tmp_path: Path) -> None:
    file = carried(tmp_path, {"loop": {"interval_seconds": 2.0}}, {"loop": {"interval_seconds": 3.0}})
    with pytest.raises(ConfigError) as caught:
        render(file, tmp_path / "out")
    [problem] = caught.value.problems
    first, second = (tmp_path / name / "provisioner.yaml" for name in ("gcpgkeinst", "gcpgceinst"))
    values = f"{{'interval_seconds': 2.0}} in {first} and {{'interval_seconds': 3.0}} in {second}"
    assert (problem.where, problem.text) == ("provisioner", f"loop is {values}; set it here")
    sources = [first.parent.name, second.parent.name]
    render(settings(tmp_path, merge=sources, provisioner={"loop": {"interval_seconds": 4.0}}), tmp_path / "out")
    made = made_below(tmp_path / "out")
    assert made.loop.interval_seconds == 4.0


@pytest.mark.parametrize(
    ("second", "values", "prefix"),
    [
        pytest.param({}, {}, None, id="reported: one directory's own setting, the other's key of HF's file"),
        pytest.param({}, {"provisioner": {"name_prefix": "new"}}, "new", id="the settings file gives the setting"),
        pytest.param({}, {"config": {"GCP_INSTANCE_PREFIX": "new-"}}, "new", id="the settings file gives the key"),
        pytest.param({"name_prefix": "grid"}, {}, "grid", id="a setting goes before its own directory's key"),
    ],
)
def test_a_name_prefix_is_one_wherever_it_is_given(
    tmp_path: Path, second: dict[str, object], values: dict[str, object], prefix: str | None
) -> None:
    file = carried(tmp_path, {"name_prefix": "grid"}, second, **values)
    if prefix is None:
        with pytest.raises(ConfigError, match=r"name_prefix is 'grid' in .* and 'sym' in .*prov_config.json; set it"):
            render(file, tmp_path / "out")
    else:
        render(file, tmp_path / "out")
        assert made_below(tmp_path / "out").name_prefix == prefix


@pytest.mark.parametrize(
    ("provisioner", "merged", "words"),
    [
        ({"pools": {}}, True, "provisioner.pools: write `pools` beside `provisioner` in this file, not below it"),
        ({"idd": "a"}, False, "idd: unknown setting; did you mean 'id'?"),
        ({"name_prefx": "a"}, True, "name_prefx: unknown setting; did you mean 'name_prefix'?"),
    ],
)
def test_settings_without_effect_are_reported(
    tmp_path: Path, provisioner: dict[str, object], merged: bool, words: str
) -> None:
    merge = two(tmp_path) if merged else []
    with pytest.raises(ConfigError, match=re.escape(words)):
        render(settings(tmp_path, merge=merge, templates=[TEMPLATE], provisioner=provisioner), tmp_path / "out")


def test_a_template_id_is_given_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        render(settings(tmp_path, templates=[TEMPLATE, TEMPLATE | {"maxNumber": 4}]), tmp_path / "out")
    [problem] = caught.value.problems
    assert str(problem) == "templates.1.templateId: 'Vm' is also the id of templates.0; rename one of them"


# --- own pools --------------------------------------------------------------------------------------------------------


def test_own_pools_make_a_provisioner_yaml_with_the_files_that_they_name(tmp_path: Path) -> None:
    render(own(tmp_path), tmp_path / "out")
    conf = tmp_path / "out" / OURS
    made = loader.load(conf / "provisioner.yaml", {})
    assert {name: pool.max_machines for name, pool in made.pools.items()} == {"pods": 7, "vms": None}
    assert (made.name_prefix, made.template_limits["Both"].pools) == ("grid", ("pods", "vms"))
    assert (conf / "specs" / "pod.yaml").read_text() == SPEC


def test_own_pools_go_before_merged_ones_of_the_same_name(tmp_path: Path) -> None:
    render(own(tmp_path), tmp_path / "first")
    mine = {"vms": POOLS["vms"] | {"group": "other"}}
    render(settings(tmp_path, pools=mine, merge=["first/conf/providers/demoinst"]), tmp_path / "out")
    made = made_below(tmp_path / "out")
    assert (made.pools["vms"].identity[-1], made.pools["pods"].max_machines) == ("other", 7)


def test_the_commented_example_is_the_demonstration_s_instance(tmp_path: Path) -> None:
    assert run(["render-hf", str(EXAMPLES / "hf" / "settings.yaml"), "--out", str(tmp_path)]) == 0
    conf = tmp_path / "conf" / "providers" / "gridinst"
    made = loader.load(conf / "provisioner.yaml", {"HF_PROVIDER_NAME": "gridinst"})
    assert set(made.pools) == {pool for one in made.template_limits.values() for pool in one.pools}
    assert json.loads((tmp_path / "conf" / PROVIDERS).read_text())["providers"][0]["name"] == "gridinst"


# --- dry run, kept files, uninstall -----------------------------------------------------------------------------------


def test_the_page_has_every_key_of_the_settings_file_and_the_example_shows_it() -> None:
    page = (EXAMPLES.parent / "docs" / "render-hf.md").read_text().partition("## Requestors")[0]
    example = (EXAMPLES / "hf" / "settings.yaml").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted(HostFactorySettings.model_fields)
    assert [key for key in rows if not re.search(rf"^(?:# )?{key}:", example, re.MULTILINE)] == []


def called(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str]]:
    code = run(["render-hf", *map(str, arguments)])
    return code, capsys.readouterr().out.splitlines()


def test_a_dry_run_shows_the_difference_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    code, lines = called(capsys, own(tmp_path), "--out", out, "--dry-run")
    assert (code, out.exists()) == (1, False)
    assert f"+++ {out}/conf/providers/demoinst/provisioner.yaml" in lines
    assert called(capsys, tmp_path / "hf.yaml", "--out", out)[0] == 0
    assert called(capsys, tmp_path / "hf.yaml", "--out", out, "--dry-run") == (0, ["No file would change."])
    before = tree(out)
    code, lines = called(capsys, own(tmp_path, templates=[BOTH | {"maxNumber": 4}]), "--out", out, "--dry-run")
    changes = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert (code, changes) == (1, ['-      "maxNumber": 3,', '+      "maxNumber": 4,'])
    assert tree(out) == before


@pytest.mark.parametrize("above", [0o2750, 0o1777])
def test_a_new_directory_is_for_whom_the_one_above_it_is_and_not_for_the_umask(tmp_path: Path, above: int) -> None:
    instance = tmp_path / "out" / OURS
    instance.mkdir(parents=True)
    instance.chmod(above)
    file = own(tmp_path)
    before = os.umask(0o077)
    try:
        render(file, tmp_path / "out")
    finally:
        os.umask(before)
    assert stat.S_IMODE((instance / "specs").stat().st_mode) == above & 0o2775
    assert stat.S_IMODE((instance / "specs" / "pod.yaml").stat().st_mode) == 0o644


def test_a_dry_run_names_a_private_file_and_does_not_show_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = own(tmp_path)
    (tmp_path / "specs" / "kubeconfig").write_text("token: hidden\n")
    (tmp_path / "specs" / "kubeconfig").chmod(0o600)
    path = tmp_path / "out" / OURS / "specs" / "kubeconfig"
    _, lines = called(capsys, file, "--out", tmp_path / "out", "--dry-run")
    assert f"{path}: new; not shown, because only its owner may read it" in lines
    assert not any("hidden" in line for line in lines)
    render(file, tmp_path / "out")
    path.chmod(0o644)
    assert called(capsys, file, "--out", tmp_path / "out", "--dry-run") == (1, [f"mode of {path}: 644 to 600"])


def test_what_is_replaced_is_kept_and_what_is_equal_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    render(own(tmp_path), out)
    before = tree(out)
    code, lines = called(capsys, own(tmp_path, templates=[BOTH | {"maxNumber": 4}]), "--out", out)
    templates = "conf/providers/demoinst/demoinstprov_templates.json"
    assert (code, lines[0]) == (0, str(out / templates))
    [kept] = (out / KEPT).iterdir()
    assert lines[1:] == [f"The replaced files are kept in {kept}"]
    assert tree(kept) == {templates.removeprefix("conf/"): before[templates]}
    assert called(capsys, tmp_path / "hf.yaml", "--out", out) == (0, ["No file had to be changed."])
    assert [*(out / KEPT).iterdir()] == [kept]


def test_uninstalled_the_files_are_as_they_were_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    entries = {"version": 2, "providers": [{"name": "aws", "plugin": "aws"}]}
    plugins = {"version": 2, "providerplugins": [{"name": "aws"}]}
    theirs = {"name": "symAinst", "enabled": 1, "providers": ["aws"], "requestMode": "POLL"}
    requestors = {"version": 2, "requestors": [theirs]}
    for name, document in ((PROVIDERS, entries), (PLUGINS, plugins), (REQUESTORS, requestors)):
        registered(out, name, document)
    render(own(tmp_path), out)
    assert json.loads((out / "conf" / REQUESTORS).read_text())["requestors"][0]["providers"] == ["aws", "demoinst"]
    assert called(capsys, tmp_path / "hf.yaml", "--out", out, "--uninstall", "--dry-run")[0] == 1
    assert called(capsys, tmp_path / "hf.yaml", "--out", out, "--uninstall")[0] == 0
    left = [json.loads((out / "conf" / name).read_text()) for name in (PROVIDERS, PLUGINS, REQUESTORS)]
    admin = {"name": "admin", "enabled": 0, "providers": [], "requestMode": "REST_MANUAL"}
    assert left == [entries, plugins, {"version": 2, "requestors": [theirs, admin]}]
    assert (out / OURS / "provisioner.yaml").exists()
    assert called(capsys, tmp_path / "hf.yaml", "--out", out, "--uninstall") == (0, ["No file had to be changed."])


def test_installed_again_its_requestors_ask_as_they_did(tmp_path: Path) -> None:
    file, out = own(tmp_path), tmp_path / "out"
    render(file, out)
    before = tree(out)
    for option in (["--uninstall"], []):
        assert run(["render-hf", str(file), "--out", str(out), *option]) == 0
    assert {path: text for path, text in tree(out).items() if not path.startswith(str(KEPT))} == before


def test_a_requestor_that_an_operator_has_disabled_stays_so(tmp_path: Path) -> None:
    file, out = own(tmp_path), tmp_path / "out"
    render(file, out)
    path = out / "conf" / REQUESTORS
    path.write_text(path.read_text().replace('"enabled": 1', '"enabled": 0'))
    before = path.read_text()
    render(file, out)
    assert path.read_text() == before


def test_a_plug_in_that_another_instance_uses_stays(tmp_path: Path) -> None:
    render(settings(tmp_path, templates=[TEMPLATE], instance="other"), tmp_path / "out")
    render(own(tmp_path), tmp_path / "out")
    assert run(["render-hf", str(tmp_path / "hf.yaml"), "--out", str(tmp_path / "out"), "--uninstall"]) == 0
    [plugin] = json.loads((tmp_path / "out" / "conf" / PLUGINS).read_text())["providerplugins"]
    assert plugin["name"] == "provisioner"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_root_leaves_files_to_whom_they_belong(tmp_path: Path) -> None:
    path = registered(tmp_path / "out", PROVIDERS, {"version": 2, "providers": []})
    for owned in (path, path.parent, tmp_path / "out" / "conf"):
        os.chown(owned, 65501, 65502)
    render(own(tmp_path), tmp_path / "out")
    made = tmp_path / "out" / OURS / "specs" / "pod.yaml"
    kept = tmp_path / "out" / KEPT / "now" / PROVIDERS
    assert {(file.stat().st_uid, file.stat().st_gid) for file in (path, made, made.parent, kept)} == {(65501, 65502)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_file_of_another_user_is_not_taken_from_him(tmp_path: Path) -> None:
    with TemporaryDirectory() as open_to_all:
        os.chmod(open_to_all, 0o777)
        _refused_to_another_user(own(tmp_path), Path(open_to_all) / "out")


def _refused_to_another_user(file: Path, out: Path) -> None:
    registered(out, PROVIDERS, {"version": 2, "providers": []})
    for directory in (out, out / "conf", out / "conf" / "providers"):
        directory.chmod(0o777)
    before = tree(out)
    files = rendered(file, out / "conf")
    os.seteuid(65501)
    try:
        with pytest.raises(PermissionError, match=r"belongs to user root \(group root\): run it as that user"):
            file_placement.put(file_placement.changes(files), out / "conf", "now")
    finally:
        os.seteuid(0)
    assert tree(out) == before
