"""The reader of scenarios in YAML, which reports all mistakes. A file contains one scenario, or several by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from provisioner.files.yaml_text import join, parse
from provisioner.lab.trace import TraceError, read_trace
from provisioner.lab.virtual.measures import MEASURES
from provisioner.lab.virtual.scenario import (
    PROVISIONER,
    Demand,
    Event,
    HostFactory,
    Scenario,
    Template,
    TracedDemand,
    VirtualPool,
)
from provisioner.lab.virtual.trace_demand import levels_of
from provisioner.model import ErrorClass
from provisioner.schema.validation import (
    ConfigError,
    Problem,
    Section,
    format_expected,
    read_mapping,
    suggestion,
    validate,
)
from provisioner.settings.definitions import SECTIONS, Settings

CATALOGUE = "catalogue.yaml"
"""File with the scenarios that come with this package."""

GIVEN = frozenset({"id", "pools", "templates", "template_limits", "instance"})
"""Settings of provisioner.yaml that a scenario may not give, because other keys of the scenario define them."""

REASONS = (*map(str, ErrorClass), "cap")
"""Reasons for missing machines that a scenario may expect."""

SomeSection = TypeVar("SomeSection", bound=Section)


def catalogue_text() -> str:
    """Return the text of the catalogue. An operator can use the text as an example for scenario files."""
    return resources.files("provisioner.lab.virtual").joinpath(CATALOGUE).read_text()


@cache
def catalogue() -> Mapping[str, Scenario]:
    """Return the scenarios of the catalogue by name."""
    document, _ = parse(catalogue_text())
    return scenarios(document, CATALOGUE)


def read(path: Path) -> dict[str, Scenario]:
    """Return the scenarios in a file by name. Raises ConfigError with every mistake."""
    document, problems = read_mapping(path)
    if problems:
        raise ConfigError(problems)
    if "pools" in document:
        document = {path.stem: document}
    return scenarios(document, str(path))


def scenarios(document: Mapping[str, Any], file: str) -> dict[str, Scenario]:
    """Return the scenarios of a parsed document by name. ``file``: the document's name in messages. Raises ConfigError
    with every mistake."""
    readers = {str(name): _Reader(file, str(name)) for name in document}
    by_name = {name: readers[name].scenario(body) for name, body in document.items()}
    problems = [problem for reader in readers.values() for problem in reader.problems]
    if not document:
        problems = [Problem(file, "", "no scenario; write one, or several by name")]
    if problems:
        raise ConfigError(problems)
    return {name: scenario for name, scenario in by_name.items() if scenario is not None}


class _Reader:
    """A reader of one scenario, which gathers all mistakes in ``problems``."""

    def __init__(self, file: str, name: str) -> None:
        self.problems: list[Problem] = []
        self._file, self._name = file, name

    def scenario(self, body: object) -> Scenario | None:
        """Return the scenario; None if it cannot be made. The scenario is valid only if ``problems`` is empty after the
        call."""
        if not isinstance(body, dict):
            self._complain(self._name, format_expected("a mapping of settings", body))
            return None
        pools = self._mapping(body, "pools", VirtualPool, named=True)
        templates = self._mapping(body, "templates", Template) or _any_pool(pools)
        parts: dict[str, Any] = {
            "pools": pools,
            "templates": templates,
            "demand": tuple(self._demands(body)),
            "events": tuple(self._list(body, "events", Event)),
            "hostfactory": self._section(body.get("hostfactory") or {}, HostFactory, "hostfactory") or HostFactory(),
        }
        if pools:
            self._check_names(pools, templates, parts["demand"], parts["events"])
        scenario = self._section({**body, **parts}, Scenario, "", name=self._name)
        if not body.get("pools"):
            self._complain(join(self._name, "pools"), "none; name one")
        if scenario is not None and not self.problems:
            self._check_settings(scenario)
            self._check_expected(scenario)
            self._check_changes(scenario)
        return scenario

    def _section(self, body: object, model: type[SomeSection], where: str, **given: object) -> SomeSection | None:
        place = join(self._name, where) if where else self._name
        if not isinstance(body, dict):
            self._complain(place, format_expected("a mapping of settings", body))
            return None
        section, problems = validate(model, body, self._file, place, **given)
        self.problems += problems
        return section

    def _mapping(
        self, body: Mapping[str, Any], key: str, model: type[SomeSection], *, named: bool = False
    ) -> dict[str, SomeSection]:
        entries = body.get(key) or {}
        if not isinstance(entries, dict):
            self._complain(join(self._name, key), format_expected("a mapping", entries))
            return {}
        read = {
            str(name): self._section(entry or {}, model, join(key, name), **({"name": str(name)} if named else {}))
            for name, entry in entries.items()
        }
        return {name: section for name, section in read.items() if section is not None}

    def _list(self, body: Mapping[str, Any], key: str, model: type[SomeSection]) -> Iterator[SomeSection]:
        entries = body.get(key) or []
        if not isinstance(entries, list):
            self._complain(join(self._name, key), format_expected("a list", entries))
            return
        for number, entry in enumerate(entries):
            if (section := self._section(entry, model, join(key, number))) is not None:
                yield section

    def _demands(self, body: Mapping[str, Any]) -> Iterator[Demand]:
        entries = body.get("demand") or []
        if not isinstance(entries, list):
            self._complain(join(self._name, "demand"), format_expected("a list", entries))
            return
        for number, entry in enumerate(entries):
            demand = self._demand(entry, join("demand", number))
            if demand is not None:
                yield demand

    def _demand(self, entry: object, where: str) -> Demand | None:
        if not isinstance(entry, dict) or "trace" not in entry:
            return self._section(entry, Demand, where, levels=())
        traced = self._section(entry, TracedDemand, where)
        return None if traced is None else self._recorded(traced, join(self._name, where, "trace"))

    def _recorded(self, traced: TracedDemand, where: str) -> Demand | None:
        try:
            levels = levels_of(read_trace(Path(self._file).parent / traced.trace), traced.recorded)
        except TraceError as error:
            self._complain(where, str(error))
            return None
        if not levels:
            of = f" of {traced.recorded!r}" if traced.recorded else ""
            self._complain(where, f"{traced.trace} asks for no machine{of}")
            return None
        most = max(machines for _, machines in levels)
        return Demand(template=traced.template, machines=most, at_minutes=traced.at_minutes, levels=levels)

    def _check_names(
        self,
        pools: Mapping[str, VirtualPool],
        templates: Mapping[str, Template],
        demand: tuple[Demand, ...],
        events: tuple[Event, ...],
    ) -> None:
        for name, template in templates.items():
            self._check_known(template.pools, pools, f"templates.{name}.pools", "pool")
        for number, one in enumerate(demand):
            self._check_known((one.template,), templates, f"demand.{number}.template", "template")
        for number, event in enumerate(events):
            self._check_known(event.pools, pools, f"events.{number}.pools", "pool")

    def _check_known(self, names: tuple[str, ...], there: Mapping[str, object], where: str, word: str) -> None:
        for name in names:
            if name not in there:
                self._complain(join(self._name, where), f"unknown {word} {name!r}" + suggestion(name, list(there)))

    def _check_settings(self, scenario: Scenario) -> None:
        """Check the scenario's ``settings`` with the rules of provisioner.yaml. Settings that other keys of the
        scenario define are a mistake."""
        for name in [name for name in scenario.settings if name in GIVEN]:
            self._complain(join(self._name, "settings", name), "the scenario defines this itself; leave it out")
        settings = {name: value for name, value in scenario.settings.items() if name not in GIVEN}
        for name in [name for name in settings if name in SECTIONS]:
            section = self._section(settings.pop(name), SECTIONS[name], join("settings", name))
            settings |= {} if section is None else {name: section}
        given = {"id": PROVISIONER, "pools": scenario.pools, "template_limits": {}, "instance": PROVISIONER}
        self.problems += validate(Settings, settings, self._file, join(self._name, "settings"), **given)[1]

    def _check_expected(self, scenario: Scenario) -> None:
        """Check that the goals name measures, and that ``reason`` is a class of failure."""
        for name in scenario.goals:
            if name not in MEASURES:
                self._complain(join(self._name, "goals", name), "unknown measure" + suggestion(name, list(MEASURES)))
        if scenario.reason and scenario.reason not in REASONS:
            self._complain(
                join(self._name, "reason"), f"unknown reason {scenario.reason!r}" + suggestion(scenario.reason, REASONS)
            )

    def _check_changes(self, scenario: Scenario) -> None:
        for number, event in enumerate(scenario.events):
            for pool in [scenario.pools[name] for name in event.pools or scenario.pools]:
                body = {**pool.model_dump(exclude={"name"}), **event.change}
                where = join(self._name, "events", number, "change")
                _, problems = validate(VirtualPool, body, self._file, where, name=pool.name)
                self.problems += problems

    def _complain(self, where: str, text: str) -> None:
        self.problems.append(Problem(self._file, where, text))


def _any_pool(pools: Mapping[str, VirtualPool]) -> dict[str, Template]:
    return {"T": Template(pools=tuple(pools))} if pools else {}
