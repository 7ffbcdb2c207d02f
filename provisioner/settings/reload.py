"""The configuration in effect. The loop reads it again when its files change. If the new configuration has a mistake,
all of it is refused."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from provisioner.backends.proxies_and_authorities import signature
from provisioner.model import Limits, Memory
from provisioner.schema.validation import ConfigError
from provisioner.settings.definitions import Settings
from provisioner.settings.loader import load
from provisioner.state.directory import STATE_FILES
from provisioner.state.directory_note import SUFFIX

log = logging.getLogger(__name__)

ONLY_AT_START = ("listen", "server", "loop", "compute", "events", "ca_bundle")
"""Settings that are read only when the loop starts. A pool lists its own settings of this sort in ``read_at_start``."""

REFUSED = "New configuration refused, the previous configuration stays in force"


class Configuration:
    """Settings and their source. The set of pools is fixed when the loop starts; the limits of the pools may change."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        """Read the files. Raises ConfigError."""
        self._path = path
        self._environment = environment
        self.refused = ""
        """Reason why the content of the files is not in effect; empty if the content is in effect."""
        self.judge: Callable[[Settings], None] = lambda settings: None
        """Function that raises an error if the loop would not start with the files that the settings name."""
        directory = self._directory_signature()
        self.settings = self._started = load(path, environment)
        self._signature = self._get_signature(directory)
        self.limits = self.settings.limits()
        """Limits in effect."""
        beside = environment.get("STATE_DIRECTORY") or path.parent  # of systemd, as its service only reads /etc
        self.note = os.path.abspath(os.path.join(beside, f".{self.settings.instance}{SUFFIX}"))
        """Path of the note that names the state directories used with this configuration
        (``state/directory_note.py``)."""

    def refresh(self, limits: Limits, memory: Memory | None) -> Limits:
        """Return the limits in effect. These are new limits if the files have changed and are valid, else ``limits``.

        Files that were refused are read again at each call, because they may become valid without a change. For
        example, a template can be removed once its last machine is gone.
        """
        directory = self._directory_signature()
        if not self.refused and self._get_signature(directory) == self._signature:
            return limits
        try:
            settings = load(self._path, self._environment)
            self._check(settings, memory)
            self.judge(settings)
        except Exception as error:  # a mistake in a configuration file must not end the loop
            is_mistake = isinstance(error, (ConfigError, ValueError, OSError))
            refused, self.refused = self.refused, str(error) if is_mistake else repr(error)
            if self.refused != refused:
                log.error(REFUSED, extra={"error": self.refused}, exc_info=not is_mistake)
            return limits
        self.settings, self.limits, self.refused = settings, settings.limits(), ""
        self._signature = self._get_signature(directory)
        log.info("New configuration applied", extra={"file": str(self._path)})
        if ignored := self._changed_start_settings(settings):
            log.warning("New settings take effect only after a restart", extra={"settings": ", ".join(ignored)})
        return self.limits

    def _check(self, new: Settings, memory: Memory | None) -> None:
        """Raise ValueError if a setting has changed that must not change while the loop runs."""
        for name in ("id", "instance", "name_prefix"):
            if getattr(new, name) != getattr(self.settings, name):
                raise ValueError(f"{name}: cannot change while the loop runs; restart the loop")
        identities = {name: pool.identity for name, pool in self.settings.pools.items()}
        if identities != {name: pool.identity for name, pool in new.pools.items()}:
            raise ValueError("pools: cannot be added, removed or moved while the loop runs; restart the loop")
        for record in memory.requests.values() if memory else ():
            has_machines = not all(slot.deletion.is_gone for slot in record.slots.values())
            if has_machines and record.template not in new.template_limits:
                raise ValueError(f"templates.{record.template}: cannot be removed while it has machines")

    def _changed_start_settings(self, new: Settings) -> list[str]:
        """Return the settings that have changed since the start but take effect only at the next start."""
        started = self._started
        changed = [name for name in ONLY_AT_START if getattr(new, name) != getattr(started, name)]
        return changed + [
            f"pools.{name}.{setting}"
            for name, pool in new.pools.items()
            for setting in pool.read_at_start
            if getattr(pool, setting) != getattr(started.pools[name], setting)
        ]

    def _get_signature(self, directory: object) -> object:
        """Return a value that changes when a file that the settings name changes. ``directory``: the signature of the
        directory, which is part of the value."""
        sections = (self.settings, self.settings.server, *self.settings.pools.values())
        return directory, signature(value for part in sections for _, value in part if isinstance(value, Path))

    def _directory_signature(self) -> object:
        """Return a value that changes whenever a JSON or YAML file in the directory changes.

        State files do not count, because they change all the time. For an unreadable directory, the value is empty. The
        error is then reported when the files are read.
        """
        with suppress(OSError):
            names = [one.name for one in os.scandir(self._path.parent) if one.name not in STATE_FILES]
            paths = [self._path.parent / name for name in sorted(names) if name.endswith((".json", ".yaml", ".yml"))]
            # A file without a key was removed after the directory had been read.
            return tuple((path.name, *key) for path, key in zip(paths, signature(paths), strict=True) if key)
        return ()
