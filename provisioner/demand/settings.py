"""The settings of ``provisioner demand``: the file demand.yaml beside provisioner.yaml."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from provisioner.backends.kind import Surroundings
from provisioner.demand.htcondor import HTCondor
from provisioner.demand.kubernetes import Kubernetes
from provisioner.demand.simple_sources import Command, Fixed, Prometheus, Schedule, Url
from provisioner.demand.slurm import Slurm
from provisioner.demand.sources import SourceSettings
from provisioner.files.config_error import ConfigError, Problem
from provisioner.hostfactory import slurm_file
from provisioner.hostfactory.slurm_file import SlurmFile
from provisioner.hostfactory.templates import Provider
from provisioner.schema.setting_types import Count, Duration, DurationOrZero, Share
from provisioner.schema.validation import Expects, Section, format_expected, quote, read_mapping, suggestion, validate
from provisioner.settings.definitions import CountOrZero

FILE = "demand.yaml"

KINDS: Mapping[str, type[SourceSettings]] = {
    kind.__name__.lower(): kind for kind in (Fixed, Schedule, Command, HTCondor, Url, Prometheus, Slurm, Kubernetes)
}
"""The settings of each kind of source, by the value of ``kind``."""
NAMES: dict[str, Callable[[Any], set[str]]] = dict.fromkeys(("only_templates", "node_labels", "node_taints"), set)
"""The function that returns the templates in the value of a setting, by the name of the setting."""
NAMES |= {"template": lambda one: {one} - {None}, "partitions": lambda lists: set().union(*lists.values())}


class TemplateDemand(Section):
    """Limits of a template."""

    most: Count = 10**9
    """Most machines that are asked for; default no limit but HostFactory's ``maxNumber``."""
    least: CountOrZero = 0
    """Machines that are asked for even if the sources want fewer; default 0."""


class Demand(Section):
    """The sources of demand, and the pace at which machines follow the demand."""

    interval_seconds: Duration = 30.0
    """Seconds between two steps; default 30."""
    combine: Annotated[Literal["sum", "max"], Expects("'sum' or 'max'")] = "sum"
    """Combination of several sources that want machines of the same template: their ``sum`` (default), or the number of
    the source that wants most (``max``)."""
    rise_at_once: Count = 100
    """Most machines of a template that a step requests; default 100."""
    fall_after_seconds: DurationOrZero = 300.0
    """Seconds for which fewer machines than asked must be wanted until machines are returned; default 300."""
    fall_share: Share = 0.2
    """Largest share of a template's running machines that a step returns, but at least one machine; default 0.2."""
    minimum_age_seconds: DurationOrZero = 600.0
    """Seconds for which a machine must run until it is returned; default 600."""
    templates: Annotated[dict[str, TemplateDemand], Expects("a mapping of templates to limits")] = Field(default={})
    """Limits by template; default none."""
    sources: Annotated[dict[str, SourceSettings], Expects("a mapping of names to sources")]
    """The sources by name."""


def load_both(directory: Path, provider: Provider) -> tuple[Demand | None, SlurmFile | None]:
    """Return the settings in demand.yaml and the settings in slurm.json; None for a file that does not exist. If only
    demand.yaml is missing, its settings are a ``Demand`` without sources.

    Raise ConfigError with every mistake of a file. Raise TemplatesError for a slurm.json that is unusable as a whole.
    """
    slurm, problems = slurm_file.load(str(directory), [one.id for one in provider.templates if one.max_number])
    if problems:
        raise ConfigError(problems)
    alone = Demand(sources={}, interval_seconds=10) if slurm else None  # a node of Slurm waits for its address
    return load(directory / FILE, provider) if (directory / FILE).exists() else alone, slurm


def load(path: Path, provider: Provider) -> Demand:
    """Return the settings in ``path``. Raise ConfigError with every mistake. ``provider``: HostFactory's files, which
    define the templates."""
    document, problems = read_mapping(path)
    if problems:
        raise ConfigError(problems)
    file, written = str(path), document.get("sources")
    sources: dict[str, SourceSettings] = {}
    if not isinstance(written, dict) or not written:
        problems.append(Problem(file, "sources", format_expected("a mapping of names to sources", written)))
        written = {}
    for name, body in written.items():
        source, found = _source(body, file, f"sources.{name}", Surroundings(path.parent, provider.config, {}))
        problems += found
        if source is not None:
            sources[str(name)] = source
    settings, found = validate(Demand, document | {"sources": sources}, file, "")
    limits = settings.templates if settings is not None else {}
    problems += [*found, *_find_contradictions(sources, limits, [template.id for template in provider.templates], file)]
    if settings is None or problems:
        raise ConfigError(problems)
    return settings


def _find_contradictions(
    sources: Mapping[str, SourceSettings], limits: Mapping[str, TemplateDemand], known: Collection[str], file: str
) -> Iterator[Problem]:
    settings = [(f"sources.{name}.{key}", key, value) for name, one in sources.items() for key, value in one]
    named = [(where, id_) for where, key, value in settings if key in NAMES for id_ in sorted(NAMES[key](value))]
    for where, id_ in [*named, *((f"templates.{id_}", id_) for id_ in limits)]:
        if id_ not in known:
            yield Problem(file, where, f"unknown template {quote(id_)}{suggestion(id_, known, many=True)}")
    for id_, one in limits.items():
        if one.least > one.most:
            yield Problem(file, f"templates.{id_}.least", format_expected(f"at most {one.most}", one.least))


def _source(body: object, file: str, where: str, around: Surroundings) -> tuple[SourceSettings | None, list[Problem]]:
    """Return the settings of one source (None if they are invalid) and their problems."""
    if not isinstance(body, dict):
        return None, [Problem(file, where, format_expected("a mapping of settings", body))]
    fields = {str(name): value for name, value in body.items()}
    kind = str(fields.pop("kind", ""))
    if kind not in KINDS:
        text = format_expected("a kind of source", kind) + suggestion(kind, KINDS)
        return None, [Problem(file, f"{where}.kind", text)]
    return validate(KINDS[kind], fields, file, where, around)
