"""docs/settings.md and the schema of settings: up to date, complete, and consistent with the loader."""

from __future__ import annotations

import json
import re
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
from provisioner.lab.fake_backend import Fake, FakePool
from provisioner.schema.setting_types import Text
from provisioner.schema.validation import ConfigError, Section
from provisioner.settings import loader, reference

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "config" / "demoinst" / "provisioner.yaml"
SCHEMA = ROOT / "config" / "provisioner.schema.json"
KINDS = registry.built_in_kinds()


def printed(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(["settings", *options])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_page_that_is_kept_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == printed(capsys), "provisioner settings > docs/settings.md"


def test_the_schema_that_is_kept_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert SCHEMA.read_text() == printed(capsys, "-o", "schema"), f"provisioner settings -o schema > {SCHEMA.name}"


def test_every_setting_says_what_it_means_its_unit_and_what_holds_without_it() -> None:
    schema = reference.schema(KINDS)
    for section in (schema, *schema["$defs"].values()):
        for name, setting in section["properties"].items():
            words = setting.get("description", "")
            if name not in (*reference.SECTION_NAMES, "kind", "name"):
                assert re.search("default|either", words, re.IGNORECASE), f"{name}: {words}"
            if name.endswith(("_seconds", "_minutes", "_hours")):
                unit = name.rpartition("_")[2]
                assert words.startswith(unit.capitalize()) or f" {unit} " in words, f"{name}: {words}"
            if type(default := setting.get("default")) in (int, float):
                assert re.search(rf"\b{default:g}\b", words), f"{name}: {words}"


def test_classes_of_another_distribution_may_have_the_names_of_ours() -> None:
    class Ending(Section):
        """An end."""

        bell: Text
        """Its bell. No default."""

    class GkePool(FakePool):
        """Pools of another kind of this class name."""

        kind: str = "other"
        """The kind."""
        ending: Ending
        """Its end. No default."""

    class Other(Fake):
        """Another kind."""

        name = "other"
        pool = GkePool

    other = Other()
    schema = reference.schema([*KINDS, other])
    assert schema["$defs"]["GkePool"] == reference.schema(KINDS)["$defs"]["GkePool"]
    assert schema["$defs"]["other.GkePool"]["properties"]["ending"]["$ref"] == "#/$defs/other.Ending"
    valid = {"pools": {"a": {"kind": "other", "ending": {"bell": "loud"}}}}
    made = jsonschema.Draft202012Validator(schema)
    assert list(made.iter_errors(valid)) == []
    assert not made.is_valid({"pools": {"a": {"kind": "other", "ending": {"exit": [1]}}}})


@cache
def validator() -> Any:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def problem(document: object) -> str:
    """Return the schema's error for a document; empty if it is valid."""
    return str(next(validator().iter_errors(document), ""))


def refused(document: dict[str, Any], place: Path) -> set[str]:
    """Return the paths of the settings that the loader refuses."""
    shutil.copytree(EXAMPLE.parent, place)
    (place / EXAMPLE.name).write_text(yaml.safe_dump(document))
    try:
        loader.load(place / EXAMPLE.name, {})
    except ConfigError as error:
        return {problem.where for problem in error.problems}
    return set()


def example() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    return document


def wrong() -> Iterator[tuple[str, ...]]:
    """Yield the path of each setting in the example, and of an unknown setting in each section."""
    schema = reference.schema(KINDS)
    places: list[tuple[tuple[str, ...], str]] = [((), "")]
    places += [((name,), model.__name__) for name, model in reference.SECTIONS.items()]
    places += [(("pools", "gke-main"), "GkePool"), (("pools", "mig-a"), "MigPool")]
    places += [(("templates", "GkePod"), "TemplateSettings")]
    for path, model in places:
        settings = schema["$defs"][model]["properties"] if model else schema["properties"]
        yield from ((*path, name) for name in [*settings, "misspelt"])


def broken(*paths: tuple[str, ...]) -> dict[str, Any]:
    """Return the example with a wrong value at each of these paths. No setting accepts this value."""
    document = example()
    if any(path[0] == "events" and len(path) > 1 for path in paths):
        document["events"] = {"project": "p", "subscription": "s"}
    for *parents, last in paths:
        place = document
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = [{"of": "no type that a setting has"}]
    return document


def test_the_example_is_right(tmp_path: Path) -> None:
    assert problem(example()) == ""
    assert refused(example(), tmp_path / "conf") == set()


def test_what_the_loader_refuses_the_schema_refuses_too(tmp_path: Path) -> None:
    whole = [path for path in wrong() if path[-1] != "kind" and path[0] not in (*reference.SECTION_NAMES, "pools")]
    whole += [path for path in wrong() if len(path) > 1 and path[-1] != "kind"]
    named = refused(broken(*dict.fromkeys(whole)), tmp_path / "at-once")
    named |= {where.rpartition(".")[0] for where in named}  # the loader names the entry of a list
    assert [path for path in whole if ".".join(path) not in named] == [], "the loader takes these"
    for number, path in enumerate(set(wrong()) - set(whole)):
        assert refused(broken(path), tmp_path / str(number)), path
    assert [path for path in wrong() if not problem(broken(path))] == [], "the schema takes these"
