"""The scenarios that a command plays. An operator names a scenario of the catalogue, a file, or one scenario of a file.

A command can also compare two scenarios.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from provisioner.lab.virtual.scenario_choice import UnknownScenario, choose, pairs, written
from provisioner.lab.virtual.scenario_file import catalogue, catalogue_text
from tests.support.hostfactory.provider import ROOT
from tests.unit.lab.virtual.test_true_events import TINY

PAGE = (ROOT / "docs" / "pressure.md").read_text()


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a file with one scenario, a file with two scenarios, and a file that lacks the ending of scenario files."""
    monkeypatch.chdir(tmp_path)
    for name, content in (("own.yaml", TINY), ("both.yaml", {"own": TINY, "y": TINY}), ("scenario.txt", TINY)):
        Path(name).write_text(yaml.safe_dump(content))


@pytest.mark.parametrize("name", [next(iter(catalogue())), "crash-loop-narrow", [*catalogue()][-1]])
def test_what_is_written_of_a_scenario_is_that_and_nothing_else(name: str) -> None:
    text = written(name)
    assert yaml.safe_load(text) == {name: yaml.safe_load(catalogue_text())[name]}
    assert text.splitlines()[0] == f"{name}:"


def test_a_comment_in_a_scenario_is_written_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = "# Of the first.\none:\n  # Inside.\n  about: A", "two:\n  about: B"
    text = f"# --- a heading ---\n\n{first}\n\n# --- another ---\n\n{second}\n"
    monkeypatch.setattr("provisioner.lab.virtual.scenario_choice.catalogue_text", lambda: text)
    monkeypatch.setattr("provisioner.lab.virtual.scenario_choice.catalogue", lambda: {"one": None, "two": None})
    assert (written("one"), written("two")) == (first, second)


def test_what_was_written_is_the_same_scenario_as_a_file_of_ones_own() -> None:
    Path("shown.yaml").write_text(written("few"))
    assert choose(["shown.yaml"])["few"].scenario == catalogue()["few"]


def test_one_scenario_of_a_file_is_chosen_by_its_name() -> None:
    both = choose(["both.yaml"])
    assert [one.argument for one in both.values()] == ["both.yaml:own", "both.yaml:y"]
    assert choose(["both.yaml:y"]) == {"y": both["y"]}


def test_the_page_s_example_is_a_scenario() -> None:
    Path("example.yaml").write_text(PAGE.partition("```yaml\n")[2].partition("```")[0])
    (chosen,) = choose(["example.yaml"]).values()
    assert (chosen.scenario.reason, len(chosen.scenario.events)) == ("stockout", 2)


def test_scenarios_are_compared_by_name_or_as_the_only_ones() -> None:
    Path("then.yaml").write_text(Path("both.yaml").read_text())
    compared = [[one.scenario.name for one in pair] for pair in pairs("both.yaml", "then.yaml")]
    assert compared == [["both.yaml:own", "then.yaml:own"], ["both.yaml:y", "then.yaml:y"]]
    ((one, other),) = pairs("own.yaml", "both.yaml:y")
    assert (one.scenario.name, other.scenario.name) == ("own.yaml", "both.yaml:y")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fwe"], r"the catalogue has no scenario 'fwe'; did you mean 'few'\?"),
        (["own"], "the catalogue has no scenario 'own'; there are 'step', .*"),
        (["scenario.txt"], ".*; a file of your own ends in .yaml"),
        (["own.yaml:x"], "own.yaml has no scenario 'x'; there are 'own'"),
        (["own.yaml", "both.yaml"], "own: own.yaml and both.yaml:own have it; --compare shows two .*"),
    ],
)
def test_an_unknown_scenario_is_reported(arguments: list[str], words: str) -> None:
    with pytest.raises(UnknownScenario, match=f"^{words}$"):
        choose(arguments)


def test_scenarios_of_which_only_one_file_knows_are_named() -> None:
    words = "^both.yaml and own.yaml cannot be compared: .* or with the same scenario names; in one file only: y$"
    with pytest.raises(UnknownScenario, match=words):
        pairs("both.yaml", "own.yaml")
