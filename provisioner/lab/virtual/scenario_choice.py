"""The choice of scenarios by the arguments of a command: by name from the catalogue, or from a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from provisioner.lab.virtual.scenario import Scenario
from provisioner.lab.virtual.scenario_file import catalogue, catalogue_text, read
from provisioner.schema.validation import suggestion

ENDINGS = (".yaml", ".yml")


class UnknownScenario(Exception):
    """Raised if a name belongs to no scenario. The text suggests similar names."""


@dataclass(frozen=True)
class Chosen:
    """A scenario, and the command-line argument that chooses only this scenario."""

    scenario: Scenario
    argument: str


def choose(arguments: Iterable[str]) -> dict[str, Chosen]:
    """Return the chosen scenarios by name. If there are no arguments, return all scenarios of the catalogue. Raises
    ConfigError for a mistake in a file, and UnknownScenario for an unknown name."""
    chosen: dict[str, Chosen] = {}
    for argument in [*arguments] or catalogue():
        for one in _named(argument):
            name = one.scenario.name
            if name in chosen and chosen[name] != one:
                sources = f"{chosen[name].argument} and {one.argument}"
                raise UnknownScenario(f"{name}: {sources} have it; --compare shows two side by side")
            chosen[name] = one
    return chosen


def _named(argument: str) -> list[Chosen]:
    file, _, name = argument.rpartition(":")
    if argument.endswith(ENDINGS):
        chosen = read(Path(argument))
        return [Chosen(one, argument if len(chosen) == 1 else f"{argument}:{key}") for key, one in chosen.items()]
    if file.endswith(ENDINGS):
        return [Chosen(_one_of(read(Path(file)), name, file), argument)]
    return [Chosen(_one_of(catalogue(), argument, "the catalogue"), argument)]


def _one_of(scenarios: Mapping[str, Scenario], name: str, where: str) -> Scenario:
    if name in scenarios:
        return scenarios[name]
    hint = suggestion(name, list(scenarios))
    more = "; a file of your own ends in .yaml" if Path(name).exists() else ""
    raise UnknownScenario(f"{where} has no scenario {name!r}{hint}{more}")


def pairs(one: str, other: str) -> list[tuple[Chosen, Chosen]]:
    """Return the pairs of scenarios to compare. The two scenarios of a pair have the same name in both files. If each
    file has only one scenario, these two are a pair.

    Each scenario is renamed so that its name contains the name of its file. Raises ConfigError, UnknownScenario.
    """
    first, second = choose([one]), choose([other])
    if len(first) == len(second) == 1:
        chosen = [(*first.values(), *second.values())]
    elif first.keys() == second.keys():
        chosen = [(first[name], second[name]) for name in first]
    else:
        alone = ", ".join(sorted(first.keys() ^ second.keys()))
        raise UnknownScenario(
            f"{one} and {other} cannot be compared: give files with one scenario each or with the same scenario names; "
            f"in one file only: {alone}"
        )
    return [(_labelled(left, one), _labelled(right, other)) for left, right in chosen]


def _labelled(chosen: Chosen, argument: str) -> Chosen:
    label = chosen.argument if chosen.argument.startswith(argument) else f"{argument}:{chosen.scenario.name}"
    return Chosen(chosen.scenario.model_copy(update={"name": label}), chosen.argument)


def written(name: str) -> str:
    """Return the YAML text of a scenario of the catalogue, with its comments. Raises UnknownScenario for an unknown
    name."""
    _one_of(catalogue(), name, "the catalogue")
    text = catalogue_text()
    document = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(document, yaml.MappingNode)
    key, value = next((key, value) for key, value in document.value if key.value == name)
    lines = text.splitlines()
    first = key.start_mark.line
    last = value.end_mark.line if value.end_mark.column else value.end_mark.line - 1
    while not lines[last].strip() or lines[last].startswith("#"):
        last -= 1
    while first and lines[first - 1].startswith("#"):
        first -= 1
    return "\n".join(lines[first : last + 1])
