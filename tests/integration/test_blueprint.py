"""The Cluster Toolkit blueprint. It has the toolkit's form, and the Terraform module accepts its settings."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.support.checks.attributes import OPTIONAL, attributes_read
from tests.support.checks.terraform import Module, given_problems
from tests.support.clients.terraform import copied, terraform

FOLDER = Path(__file__).parents[2] / "deploy" / "blueprint"
BLUEPRINTS = sorted(FOLDER.glob("*.yaml"))
STAGED = re.compile(r'ghpc_stage\("([^"]*)"\)')
"""A file that the toolkit copies into a deployment. Its path is relative to the blueprint."""
NAME = {"type": "string", "pattern": r"^\w(-*\w)*$"}

FORM: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["blueprint_name", "vars", "deployment_groups"],
    "properties": {
        "blueprint_name": {"type": "string", "pattern": "^[a-z0-9_-]{1,63}$"},
        "ghpc_version": {"type": "string"},
        "vars": {
            "type": "object",
            "required": ["project_id", "deployment_name"],
            "properties": {"deployment_name": {"type": "string", "pattern": "^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$"}},
        },
        "deployment_groups": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["group", "modules"],
                "properties": {
                    "group": NAME,
                    "modules": {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["id", "source"],
                            "properties": {
                                "id": NAME,
                                "source": {
                                    "type": "string",
                                    "pattern": r"^(\.{1,2}/|/|modules/|community/|github\.com/|git)",
                                },
                                "kind": {"enum": ["terraform", "packer"]},
                                "use": {"type": "array", "items": {"type": "string"}},
                                "settings": {"type": "object"},
                                "outputs": {"type": "array"},
                            },
                        },
                    },
                },
            },
        },
    },
}
"""The fields of a blueprint that the toolkit accepts. The toolkit refuses unknown fields."""


def problems(blueprint: dict[str, Any], folder: Path = FOLDER) -> list[str]:
    """Return the mistakes in a blueprint."""
    found = [error.message for error in jsonschema.Draft202012Validator(FORM).iter_errors(blueprint)]
    if found:
        return found
    for used in re.findall(r"\$\(vars\.(\w+)\)", yaml.safe_dump(blueprint)):
        if used not in blueprint["vars"]:
            found.append(f"vars.{used}: not there")
    for staged in STAGED.findall(yaml.safe_dump(blueprint, width=1000)):
        if not (folder / staged).is_file():
            found.append(f"{staged}: no file")
    for module in (module for group in blueprint["deployment_groups"] for module in group["modules"]):
        called = Module(folder / module["source"])
        found += given_problems(module["id"], set(module["settings"]), called)
        outputs = [output if isinstance(output, str) else output["name"] for output in module.get("outputs", ())]
        found += [f"{module['id']}: no output {output}" for output in outputs if output not in called.outputs]
    return found


def settings(blueprint: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the blueprint's first module."""
    given: dict[str, Any] = blueprint["deployment_groups"][0]["modules"][0]["settings"]
    return given


@pytest.mark.parametrize("file", BLUEPRINTS, ids=lambda file: str(file.name))
def test_a_blueprint_is_one_that_the_module_takes(file: Path) -> None:
    assert problems(yaml.safe_load(file.read_text())) == []


@pytest.mark.skipif(shutil.which("terraform") is None, reason="needs terraform")
@pytest.mark.parametrize("file", BLUEPRINTS, ids=lambda file: str(file.name))
def test_the_pools_and_templates_of_a_blueprint_pass_the_module_s_own_validation(file: Path, tmp_path: Path) -> None:
    blueprint = yaml.safe_load(file.read_text())
    given = settings(blueprint) | {"provider_name": "gcpinst", "name_prefix": "hf"}
    given["project_id"] = blueprint["vars"]["project_id"]
    (tmp_path / "given.tfvars.json").write_text(json.dumps(given))
    done = terraform("plan", "-no-color", f"-var-file={tmp_path / 'given.tfvars.json'}", directory=copied(tmp_path))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", BLUEPRINTS, ids=lambda file: str(file.name))
def test_each_group_of_a_blueprint_gives_its_instances_the_attributes_that_its_scripts_read(file: Path) -> None:
    for group in settings(yaml.safe_load(file.read_text()))["groups"].values():
        given = group["metadata"]
        scripts = [STAGED.findall(script) for script in (group["startup_script"], given["shutdown-script"])]
        read = attributes_read(*((FOLDER / path).resolve() for (path,) in scripts))
        assert read - OPTIONAL == {name for name in given if name.startswith("hf-")}
        assert STAGED.findall(given["hf-machine-lib"]) == ["../machine/lib.sh"]
