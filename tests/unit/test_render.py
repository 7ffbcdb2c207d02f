"""HostFactory's files from one settings file, and two provider instances made one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner import config
from provisioner.cli import run
from provisioner.problems import ConfigError
from provisioner.render import render
from provisioner.templates import UNUSED_KEYS, load
from tests.sites import ATTRIBUTES, SPEC

EXAMPLES = Path(__file__).parents[2] / "config"


def settings(directory: Path, **values: object) -> Path:
    file = directory / "hf.yaml"
    file.write_text(yaml.safe_dump({"instance": "demoinst"} | values))
    return file


def instance(directory: Path, name: str, keys: dict[str, object], template: dict[str, Any], **files: str) -> Path:
    """The configuration directory of Google's connector."""
    directory.mkdir()
    (directory / f"{name}prov_config.json").write_text(json.dumps(keys))
    entry = {"maxNumber": 10, "attributes": ATTRIBUTES} | template
    (directory / f"{name}prov_templates.json").write_text(json.dumps({"templates": [entry]}))
    for file, text in files.items():
        (directory / f"{file}.yaml").write_text(text)
    return directory


def two(directory: Path, **gce_keys: object) -> list[str]:
    """Google's two instances."""
    keys = {"GKE_CRD_NAMESPACE": "grid", "GKE_KUBECONFIG": "kubeconfig.yaml", "LOG_LEVEL": "INFO"}
    pods = instance(
        directory / "gcpgkeinst", "gcpgkeinst", keys, {"templateId": "Pod", "podSpecYaml": "pod.yaml"},
        pod=SPEC, kubeconfig="{}",
    )  # fmt: skip
    group = {"templateId": "Vm", "gcp_zone": "us-central1-a", "gcp_instance_group": "g"}
    keys = {"GCP_PROJECT_ID": "demo-project", "GCP_INSTANCE_PREFIX": "sym-", "LOG_LEVEL": "INFO"}
    vms = instance(directory / "gcpgceinst", "gcpgceinst", keys | gce_keys, group)
    return [pods.name, vms.name]


def test_the_examples_are_what_it_writes(tmp_path: Path) -> None:
    example = json.loads((EXAMPLES / "demoinst" / "demoinstprov_templates.json").read_text())
    written = render(settings(tmp_path, templates=example["templates"]), tmp_path / "out")
    for file in ("hostProviderPlugins", "hostProviders", "hostRequestors"):
        [made] = [path for path in written if path.stem == file]
        assert json.loads(made.read_text()) == json.loads((EXAMPLES / "hf" / f"{file}.json").read_text())
    made = tmp_path / "out" / "conf" / "providers" / "demoinst"
    assert json.loads((made / "demoinstprov_templates.json").read_text()) == example


def test_two_instances_become_one_whose_templates_may_name_both_kinds_of_pool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = settings(tmp_path, merge=two(tmp_path))
    assert run(["render-hf", str(file), "--out", str(tmp_path / "out")]) == 0
    conf = tmp_path / "out" / "conf" / "providers" / "demoinst"
    assert str(conf / "provisioner.yaml") in capsys.readouterr().out.splitlines()
    made = config.load(conf / "provisioner.yaml", {})
    assert {name: (pool.kind, pool.place[-1]) for name, pool in made.pools.items()} == {
        "Pod": ("gke", str(conf / "pod.yaml")),
        "Vm": ("mig", "g"),
    }
    assert (made.name_prefix, set(made.template_limits)) == ("sym", {"Pod", "Vm"})
    assert (conf / "kubeconfig.yaml").exists()
    templates = json.loads((conf / "demoinstprov_templates.json").read_text())
    templates["templates"][0]["pools"] = ["Pod", "Vm"]
    (conf / "demoinstprov_templates.json").write_text(json.dumps(templates))
    assert config.load(conf / "provisioner.yaml", {}).template_limits["Pod"].pools == ("Pod", "Vm")


def test_what_does_not_fit_together_is_told_at_once(tmp_path: Path) -> None:
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
    provider = load(tmp_path / "out" / "conf" / "providers" / "demoinst", {})
    assert provider.config.log_level == "WARNING"
    assert [(one.id, one.max_number) for one in provider.templates] == [("Vm", 3), ("Pod", 10)]
    assert not set(provider.config.unknown) & UNUSED_KEYS


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"instance": "a b"}, "instance: expected 1 to 64 letters, digits"),
        ({"requestors": {"symAinst": "PULL"}}, "requestors.symAinst: expected "),
        ({"instanse": "a"}, "instanse: unknown setting; did you mean 'instance'?"),
        ({"templates": [{"templateId": "T"}]}, "maxNumber"),
        ({"merge": ["nowhere"]}, "nowhere"),
    ],
)
def test_mistakes_are_told_with_code_2(
    tmp_path: Path, values: dict[str, object], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["render-hf", str(settings(tmp_path, **values)), "--out", str(tmp_path / "out")]) == 2
    assert words in capsys.readouterr().err
