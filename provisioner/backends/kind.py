"""The interface of a kind of place. Each kind is a folder next to this file or an installed distribution.

A kind imports its clients only in ``factory``, so that commands that only read the configuration, and installations
without this kind's extra, work without these clients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from provisioner.backends import Backend, MachineSize
from provisioner.hostfactory.provider_config import ProviderConfig
from provisioner.hostfactory.templates import Template
from provisioner.schema.setting_types import Pool, Site
from provisioner.schema.validation import Problem

SomePool = TypeVar("SomePool", bound=Pool)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The context in which a pool's settings are read."""

    directory: Path
    """Directory of the configuration."""
    config: ProviderConfig
    """HF's provider config."""
    environment: Mapping[str, str]

    def beside(self, value: object) -> object:
        """Return a path relative to the configuration's directory. ``~user`` of an unknown user stays as written."""
        if not isinstance(value, str) or not value:
            return value
        path = Path(value)
        with suppress(RuntimeError):
            path = path.expanduser()
        return self.directory / path


class Kind(ABC, Generic[SomePool]):
    """A kind of place: the settings of its pools, their checks, and the factory of its backends."""

    name: ClassVar[str]
    """Value of ``kind`` in a pool's settings."""
    pool: type[SomePool]
    """Class of a pool's settings."""
    distribution: ClassVar[str]
    """Distribution with extra that pip must install before backends can be made."""
    longest_call: ClassVar[float]
    """Largest number of seconds for which a batch of creates or deletes continues after its last call has begun."""
    template_field: ClassVar[str] = ""
    """Field of Google's connector that marks a template whose machines a pool of this kind makes."""
    template_words: ClassVar[str] = ""
    """Description of that field and of the fields required with it."""
    template_fields: ClassVar[Mapping[str, str]] = {}
    """Names of the settings in a template that makes the pool, by setting."""

    @abstractmethod
    def factory(self, site: Site) -> Callable[[SomePool], Backend]:
        """Return a function that makes the backends of one process, which share connections.

        Raise ImportError if a client is not installed. The function raises BackendError if a pool's settings lead
        nowhere.
        """

    def inherited(self, body: Mapping[str, Any], around: Surroundings) -> Mapping[str, object]:
        """Return settings that a pool inherits from HF's provider config and the environment if it does not set
        them."""
        return {}

    def problems(self, body: Mapping[str, Any], inherited: Mapping[str, object], around: Surroundings) -> list[Problem]:
        """Return the problems of a pool beyond the types of its settings. Their places are settings, without a file."""
        return []

    def implicit(self, template: Template) -> Mapping[str, object]:
        """Return a pool's settings from the template's fields of Google's connector; empty if there are none."""
        return {}

    def warnings(self, pool: SomePool) -> list[str]:
        """Return warnings on valid settings that may be unintended. Raise OSError or ValueError for a file that
        changed."""
        return []

    def size(self, pool: SomePool, template: str) -> MachineSize | None:
        """Return the machine size in the settings; None if only the place has it. Raise as ``warnings`` does."""
        return None
