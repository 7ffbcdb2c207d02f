"""The interface of a kind of place. Each kind is a folder next to this file or an installed distribution.

A kind imports its clients only in ``factory``. So commands that only read the configuration do not need the kind's
extra.
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
    """The context in which the settings of a pool are read."""

    directory: Path
    """Directory of the configuration."""
    config: ProviderConfig
    """HF's provider config."""
    environment: Mapping[str, str]

    def beside(self, value: object) -> object:
        """Return a path relative to the directory of the configuration. Return ``value`` unchanged if it begins with
        ``~user`` and this user is unknown."""
        if not isinstance(value, str) or not value:
            return value
        path = Path(value)
        with suppress(RuntimeError):
            path = path.expanduser()
        return self.directory / path


EMBEDDED_CLOUD = "PROVISIONER_EMBEDDED_CLOUD"
"""Environment variable with the address of an embedded cloud. If the variable is set, the embedded cloud serves every
pool."""


class Kind(ABC, Generic[SomePool]):
    """A kind of place: the settings of its pools, their checks, and the factory of its backends."""

    name: ClassVar[str]
    """Value of ``kind`` in a pool's settings."""
    pool: type[SomePool]
    """Class of a pool's settings."""
    distribution: ClassVar[str]
    """Package that pip must install before backends can be made: a distribution with its extra."""
    longest_call: ClassVar[float]
    """Longest time in seconds that a batch of creates or deletes may last after its last call has begun."""
    template_field: ClassVar[str] = ""
    """Field of Google's connector. If a template has this field, the template implies a pool of this kind, and this
    pool makes the template's machines."""
    template_words: ClassVar[str] = ""
    """Description of ``template_field`` and of the fields that a template with it needs."""
    template_fields: ClassVar[Mapping[str, str]] = {}
    """Settings of the implied pool, each with the template's field from which its value comes. Messages name the field
    instead of the setting."""

    config_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys of this kind in HF's provider config, which ``inherited`` finds in ``around.config.unknown``."""
    docs: ClassVar[str] = ""
    """Address of the kind's page for operators. The list of settings and ``check --live`` show the address."""

    @abstractmethod
    def factory(self, site: Site) -> Callable[[SomePool], Backend]:
        """Return a function that makes the backends of one process. The backends share connections.

        Raise ImportError if a client is not installed. The returned function raises BackendError if a pool's settings
        name no usable place.
        """

    def inherited(self, body: Mapping[str, Any], around: Surroundings) -> Mapping[str, object]:
        """Return the settings that HF's provider config and the environment give to a pool. A setting of the pool
        itself has precedence."""
        return {}

    def problems(self, body: Mapping[str, Any], inherited: Mapping[str, object], around: Surroundings) -> list[Problem]:
        """Return the problems of a pool, apart from settings of a wrong type. Each problem names the setting, but
        not the file."""
        return []

    def implicit(self, template: Template) -> Mapping[str, object]:
        """Return the settings of a pool if the template itself describes the pool, by fields of Google's connector;
        empty if the template has no such fields."""
        return {}

    def embedded(self, address: str) -> Mapping[str, object]:
        """Return the settings that make a pool use the embedded cloud at ``address``. These settings replace the pool's
        own settings."""
        return {}

    def warnings(self, pool: SomePool) -> list[str]:
        """Return warnings about valid settings that may be a mistake. Raise OSError or ValueError if a file that the
        settings name has become unusable since the settings were read."""
        return []

    def size(self, pool: SomePool, template: str) -> MachineSize | None:
        """Return the machine size that the settings contain; None if only the place knows the size. Raise OSError or
        ValueError if a file that the settings name has become unusable since the settings were read."""
        return None


class JobKind(Kind[SomePool]):
    """A kind whose machines are jobs of a scheduler."""

    def problems(self, body: Mapping[str, Any], inherited: Mapping[str, object], around: Surroundings) -> list[Problem]:
        """Return a problem if ``require_dns`` is set, because jobs have no host names of their own."""
        text = "jobs have no host names of their own; leave it out"
        return [Problem("", "require_dns", text)] if body.get("require_dns") else []
