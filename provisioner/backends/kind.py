"""What a kind of place exports: a kind is one folder beside this file, or one installed distribution.

It imports nothing of its clients before ``factory`` is called: commands that only read the configuration, and an
installation without this kind's extra, do without them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from provisioner.backends import Backend, MachineSize
from provisioner.hostfactory.instance import ProviderConfig
from provisioner.hostfactory.templates import Template
from provisioner.schema.pool import Pool, Site
from provisioner.schema.problems import Problem

SomePool = TypeVar("SomePool", bound=Pool)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a pool's settings are read beside."""

    directory: Path
    """The directory of the configuration."""
    config: ProviderConfig
    """HF's provider config."""
    environment: Mapping[str, str]

    def beside(self, value: object) -> object:
        """A path as written, from the configuration's directory; that of nobody's home stays as it is."""
        if not isinstance(value, str) or not value:
            return value
        path = Path(value)
        with suppress(RuntimeError):
            path = path.expanduser()
        return self.directory / path


class Kind(ABC, Generic[SomePool]):
    """A kind of place: what its settings are, what can be wrong with them, and how a backend is made from them."""

    name: ClassVar[str]
    """The word that pools say under ``kind``."""
    pool: type[SomePool]
    """The settings of a pool."""
    distribution: ClassVar[str]
    """What pip installs so that backends can be made, extra included."""
    longest_call: ClassVar[float]
    """Seconds that a batch of creates or deletes goes on at most once it begins no further call."""
    template_field: ClassVar[str] = ""
    """The field of Google's connector by which a template says that a pool of this kind makes its machines."""
    template_words: ClassVar[str] = ""
    """That field, and what has to be beside it, in words."""
    template_fields: ClassVar[Mapping[str, str]] = {}
    """What settings are called where a template makes the pool, by setting."""

    @abstractmethod
    def factory(self, site: Site) -> Callable[[SomePool], Backend]:
        """Makes the backends of one process, which share connections.

        Raises ImportError when a client is not installed, and for a pool BackendError when its settings lead nowhere.
        """

    def inherited(self, body: Mapping[str, Any], around: Surroundings) -> Mapping[str, object]:
        """Settings that a pool takes from HF's provider config and the environment when it does not give them."""
        return {}

    def problems(self, body: Mapping[str, Any], inherited: Mapping[str, object], around: Surroundings) -> list[Problem]:
        """What is wrong with a pool besides the types of its settings; places are settings, without a file."""
        return []

    def implicit(self, template: Template) -> Mapping[str, object]:
        """The settings of a pool in the template's fields of Google's connector; empty when there are none."""
        return {}

    def warnings(self, pool: SomePool) -> list[str]:
        """What a person may not have meant, though it is no mistake. OSError or ValueError for a file that changed."""
        return []

    def size(self, pool: SomePool, template: str) -> MachineSize | None:
        """How big the machines are that the settings ask for; None when only the place knows. Errors as above."""
        return None
