"""The interface of a source, which says how many machines of each template are wanted.

A kind of source is a subclass of ``SourceSettings``. ``demand/settings.py`` lists the kinds by their names.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from provisioner.backends import BackendError
from provisioner.backends.responses import translated_errors, words
from provisioner.schema.validation import Section


class SourceError(Exception):
    """Raised if a source could not be read completely. The text says what failed, for operators."""


@contextmanager
def source_errors(what: str) -> Iterator[None]:
    """Raise SourceError if a call or a file in the block fails, or if an answer has an unexpected form.

    ``what``: the first part of the error's text.
    """
    try:
        with translated_errors():
            yield
    except (BackendError, OSError) as error:
        text = error.failure.text if isinstance(error, BackendError) else str(error)
        raise SourceError(words(f"{what}: {text}")) from error


class Shape(NamedTuple):
    """The size of a template's machines, from HostFactory's templates file."""

    cpus: float
    """Number of processors: ncpus × ncores of the template."""
    memory_mb: float
    gpus: float


class Running(NamedTuple):
    """A machine of ours that runs."""

    template: str
    since: float
    """Epoch seconds of the machine's start, or of its request if the start is unknown."""


class Fleet(NamedTuple):
    """The information about our machines at one moment, as a source may need it."""

    now: float
    """The present time in epoch seconds."""
    shapes: Mapping[str, Shape]
    """The size of each template's machines, by template, in the order of HostFactory's templates file."""
    running: Mapping[str, Running]
    """Running machines by name."""


class Reading(NamedTuple):
    """A complete result of a source."""

    wanted: Mapping[str, int]
    """Machines wanted by template, including those that run already. A missing template means 0."""
    idle: Mapping[str, float] | None = None
    """Seconds for which each machine without work has been idle, by the machine's name. None if the source knows no
    machines; then any machine may be returned. A machine that is not named counts as working."""
    unfit: Mapping[str, int] = {}
    """Jobs that fit no template: their number by a description, for example ``64 CPUs, 1024 MB``."""


class SourceSettings(Section):
    """A source of demand, with its settings as fields. The service reads each source in a thread of its own."""

    @abstractmethod
    def read(self, fleet: Fleet) -> Reading:
        """Return the present reading. Raise SourceError if the answer is unknown or incomplete. End within the source's
        own time-out."""

    def templates(self) -> set[str]:
        """Return the templates that the settings name; empty if the source may name any template."""
        return set()
