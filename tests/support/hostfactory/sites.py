"""A configuration directory for tests. It has no mistakes until a test changes it."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.settings import loader
from provisioner.settings.definitions import Settings

ATTRIBUTES = {"type": ["String", "X86_64"], "ncpus": ["Numeric", "4"], "nram": ["Numeric", "8192"]}
SPEC = "containers: [{name: main, image: registry.example.com/main}]\n"


def template(name: str, **fields: object) -> dict[str, object]:
    return {"templateId": name, "maxNumber": 10, "attributes": ATTRIBUTES, **fields}


@dataclass
class Site:
    """A configuration directory without mistakes, which a test can change."""

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

    def load(self) -> Settings:
        self.write()
        return loader.load(self.path, self.environment)

    def problems(self, text: str | None = None) -> list[str]:
        """Return one line for each problem of the configuration. Each line begins with the name of the file."""
        self.write(text)
        with pytest.raises(loader.ConfigError) as caught:
            loader.load(self.path, self.environment)
        return [f"{Path(problem.file).name}: {problem}" for problem in caught.value.problems]


def small_site(directory: Path) -> Site:
    """Return a site of one GKE pool, one MIG, and one template that names both."""
    (directory / "spec.yaml").write_text(SPEC)
    pools = {
        "gke-main": {"kind": "gke", "namespace": "grid", "pod_spec": "spec.yaml"},
        "mig-a": {"kind": "mig", "project": "demo-project", "zone": "us-central1-a", "group": "hf-a"},
    }
    return Site(
        directory,
        settings={"id": "demo", "pools": pools},
        templates=[template("Mixed", pools=["gke-main", "mig-a"])],
    )


EXAMPLE = Path(__file__).parents[3] / "config" / "demoinst"


def example_site(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the example's configuration and make a work directory, both below ``directory``. Let HF's environment
    variables name them. Return ``directory``."""
    shutil.copytree(EXAMPLE, directory / "conf")
    (directory / "work").mkdir()
    for name in ("HF_TOP", "HF_CONFDIR", "HF_WORKDIR", "PRO_CONF_DIR", "PRO_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_PROVIDER_NAME", "demoinst")
    monkeypatch.setenv("HF_PROVIDER_CONFDIR", str(directory / "conf"))
    monkeypatch.setenv("HF_PROVIDER_WORKDIR", str(directory / "work"))
    return directory
