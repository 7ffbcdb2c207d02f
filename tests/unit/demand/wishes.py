"""Settings, sources and machines for the tests of the demand service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provisioner.demand.plan import Ours
from provisioner.demand.settings import Demand
from provisioner.demand.sources import Fleet, Reading, Running, SourceError, SourceSettings


class Said(SourceSettings):
    """A source whose read gives the first item of ``said``. If the item is a function, it is called. If the item or the
    function's result is an error, the error is raised."""

    said: Any
    serves: frozenset[str] = frozenset()

    def templates(self) -> set[str]:
        return set(self.serves)

    def read(self, fleet: Fleet) -> Reading:
        said = self.said[0]
        result = said(fleet) if callable(said) else said
        if isinstance(result, SourceError):
            raise result
        return result if isinstance(result, Reading) else Reading(result)


def demand(**settings: Any) -> Demand:
    """Return settings with one source, unless ``sources`` names others."""
    return Demand(**{"sources": {"one": Said(said=[{}])}, **settings})


def make_ours(machines: Mapping[str, tuple[str, float]], *, coming: Mapping[str, int] | None = None) -> Ours:
    """Return our machines: running machines of ended requests, and the number of machines that start.

    ``machines``: template and start time of each running machine, by name. ``coming``: number of starting machines, by
    template.
    """
    running = {name: Running(*one) for name, one in machines.items()}
    templates = {one.template for one in running.values()} | {*(coming or {})}
    asked = {
        template: sum(one.template == template for one in running.values()) + (coming or {}).get(template, 0)
        for template in templates
    }
    return Ours(asked, running, frozenset(running))
