"""The settings' page and schema: as they are kept, complete, and of one mind with the loader."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from provisioner.backends import registry
from provisioner.commands import cli
from provisioner.schema.problems import ConfigError
from provisioner.settings import loader, reference

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "config" / "demoinst" / "provisioner.yaml"
SCHEMA = ROOT / "config" / "provisioner.schema.json"
KINDS = registry.built_in()


def printed(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(["settings", *options])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_page_that_is_kept_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == printed(capsys), "provisioner settings > docs/settings.md"


def test_the_schema_that_is_kept_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert SCHEMA.read_text() == printed(capsys, "-o", "schema"), f"provisioner settings -o schema > {SCHEMA.name}"


def test_every_setting_says_what_it_means_and_what_holds_without_it() -> None:
    schema = reference.schema(KINDS)
    for section in (schema, *schema["$defs"].values()):
        for name, setting in section["properties"].items():
            if name not in (*reference.SECTION_NAMES, "kind", "name"):
                words = setting["description"].lower()
                assert "default" in words or "either" in words, f"{name}: {words}"


@cache
def validator() -> Any:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def problem(document: object) -> str:
    """What the schema has against a document; empty when nothing."""
    return str(next(validator().iter_errors(document), ""))


def refused(document: dict[str, Any], directory: Path) -> bool:
    place = directory / "conf"
    shutil.copytree(EXAMPLE.parent, place)
    (place / EXAMPLE.name).write_text(yaml.safe_dump(document))
    try:
        loader.load(place / EXAMPLE.name, {})
    except ConfigError:
        return True
    return False


def example() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    return document


def wrong() -> Iterator[Any]:
    """Every setting there is, and an unknown one in each section, by its path in the example."""
    schema = reference.schema(KINDS)
    places: list[tuple[tuple[str, ...], str]] = [((), "")]
    places += [((name,), model.__name__) for name, model in reference.SECTIONS.items()]
    places += [(("pools", "gke-main"), "GkePool"), (("pools", "mig-a"), "MigPool")]
    places += [(("templates", "GkePod"), "TemplateSettings")]
    for path, model in places:
        settings = schema["$defs"][model]["properties"] if model else schema["properties"]
        for name in [*settings, "misspelt"]:
            yield pytest.param((*path, name), id=".".join((*path, name)))


def test_the_example_is_right(tmp_path: Path) -> None:
    assert problem(example()) == ""
    assert not refused(example(), tmp_path)


@pytest.mark.parametrize("path", list(wrong()))
def test_what_the_loader_refuses_the_schema_refuses_too(path: tuple[str, ...], tmp_path: Path) -> None:
    document = example()
    if path[0] == "events":
        document["events"] = {"project": "p", "subscription": "s"}
    place = document
    for name in path[:-1]:
        place = place.setdefault(name, {})
    place[path[-1]] = [{"of": "no type that a setting has"}]
    assert refused(document, tmp_path)
    assert problem(document)
