"""What all pools of one provisioner have in common, as their backends need it. No I/O, no clock, no logger."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from provisioner.schema.problems import Expects, Section


class Compute(Section):
    """How the Compute Engine API is used."""

    calls_per_minute: Annotated[int, Field(ge=60), Expects("a whole number ≥ 60")] = 600
    """Most calls a project gets from us in any minute; default 600. Google's limit is about 1,500 for each kind of call
    and region, shared with everything else in the project. Past ours looks wait; 12 groups with 10,000 instances need
    about 200 when nothing changes. Read at the start."""


@dataclass(frozen=True, slots=True)
class Site:
    """Whose machines they are, and what the pools share."""

    id: str
    """The provisioner's id: a label of its pods."""
    prefix: str
    """First part of the names of its machines."""
    adopt_prefixes: tuple[str, ...] = ()
    """Name prefixes of another provider's machines that a return may delete."""
    compute: Compute = field(default_factory=Compute)
    """How the Compute Engine API is used."""
    ca_bundle: Path | None = None
    """The authorities that every client trusts; None for the system's."""
