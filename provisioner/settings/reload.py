"""The configuration in force: read again when its files change; a bad new one is refused whole."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from provisioner.backends.network import signature
from provisioner.model import Limits, Memory
from provisioner.schema.problems import ConfigError
from provisioner.settings.definitions import Settings
from provisioner.settings.loader import load
from provisioner.state.directory import STATE_FILES

log = logging.getLogger(__name__)

ONLY_AT_START = ("listen", "server", "loop", "compute", "events", "ca_bundle")
"""Settings that a loop that runs does not follow; those of a pool are its ``read_at_start``."""

REFUSED = "New configuration refused, the one before stays in force"


class Configuration:
    """Settings and where they come from. Which pools there are is fixed at the start; their limits are not."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        """Reads the files; raises ConfigError."""
        self._path = path
        self._environment = environment
        self.refused = ""
        """Why what the files say is not in force; empty when it is."""
        self._signature = self._sign()
        self.settings = self._started = load(path, environment)
        self.limits = self.settings.limits()
        """Those in force."""

    def refresh(self, limits: Limits, memory: Memory | None) -> Limits:
        """The limits in force: new ones if the files changed into something that can be applied."""
        if (now := self._sign()) == self._signature:
            return limits
        self._signature = now
        try:
            settings = load(self._path, self._environment)
            self._check(settings, memory)
        except Exception as error:  # the edge: no file that an operator writes ends the loop
            is_mistake = isinstance(error, (ConfigError, ValueError, OSError))
            self.refused = str(error) if is_mistake else repr(error)
            log.error(REFUSED, extra={"error": self.refused}, exc_info=not is_mistake)
            return limits
        self.settings, self.limits, self.refused = settings, settings.limits(), ""
        log.info("New configuration applied", extra={"file": str(self._path)})
        if waiting := self._waiting(settings):
            log.warning("New settings are followed only after another start", extra={"settings": ", ".join(waiting)})
        return self.limits

    def _check(self, new: Settings, memory: Memory | None) -> None:
        """Raises ValueError for a setting that cannot change while the loop runs."""
        for name in ("id", "instance", "name_prefix"):
            if getattr(new, name) != getattr(self.settings, name):
                raise ValueError(f"{name}: cannot change while the loop runs; start it again")
        identities = {name: pool.identity for name, pool in self.settings.pools.items()}
        if identities != {name: pool.identity for name, pool in new.pools.items()}:
            raise ValueError("pools: none can come, go or move while the loop runs; start it again")
        for record in memory.requests.values() if memory else ():
            busy = not all(slot.deletion.gone for slot in record.slots.values())
            if busy and record.template not in new.template_limits:
                raise ValueError(f"templates.{record.template}: still has machines; it cannot be removed")

    def _waiting(self, new: Settings) -> list[str]:
        """The settings that changed since the start and take effect only with the next one."""
        started = self._started
        changed = [name for name in ONLY_AT_START if getattr(new, name) != getattr(started, name)]
        return changed + [
            f"pools.{name}.{setting}"
            for name, pool in new.pools.items()
            for setting in pool.read_at_start
            if getattr(pool, setting) != getattr(started.pools[name], setting)
        ]

    def _sign(self) -> object:
        """Changes whenever one of the directory's JSON or YAML files does, but for the state's, which always change.

        Of a directory that cannot be read there is nothing to sign: what is wrong with it, reading the files says.
        """
        with suppress(OSError):
            names = [one.name for one in os.scandir(self._path.parent) if one.name not in STATE_FILES]
            paths = [self._path.parent / name for name in sorted(names) if name.endswith((".json", ".yaml", ".yml"))]
            # A file without a key has gone since the directory was read.
            return tuple((path.name, *key) for path, key in zip(paths, signature(paths), strict=True) if key)
        return ()
