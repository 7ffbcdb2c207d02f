"""The scripts' log in HF's log directory: one JSON line for each script call. The provider config sets the level and
the rotation.

The log never writes to stdout or stderr. If a line cannot be written, the script call goes on without the line.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping

from provisioner.files.safe_open import closed_at_end, open_own
from provisioner.hostfactory.provider_config import Directories, DirectoryError, ProviderConfig, TemplatesError
from provisioner.utc import format_utc

LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARNING": 30, "WARN": 30, "ERROR": 40, "CRITICAL": 50, "FATAL": 50}

MEGABYTE = 1024 * 1024

APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT


def append(directories: Directories, level: str, message: str, facts: Mapping[str, object]) -> None:
    """Add a line to the log, unless its ``level`` is below the configured level. ``facts``: further keys of the
    line."""
    config = _config(directories)
    if LEVELS[level] < LEVELS.get(config.log_level.removeprefix("LOG_"), LEVELS["INFO"]):
        return
    with contextlib.suppress(DirectoryError, OSError):
        if file := file_of(directories):
            now = format_utc(time.time(), milliseconds=True)
            line = json.dumps({"time": now, "severity": level, "message": message, "pid": os.getpid(), **facts})
            _write(file, line.encode() + b"\n", config)


def record(path: str, command: str, document: Mapping[str, object], output: str) -> bool:
    """Add a call to a trace for ``provisioner replay``. Return False if the trace cannot be written.

    ``output``: the text that the script printed, either the answer's JSON or the line of a refusal.
    """
    try:
        answer = json.loads(output)
    except ValueError:
        answer = output
    line = json.dumps({"time": time.time(), "command": command, "input": document, "output": answer})
    with contextlib.suppress(OSError):
        _write(path, line.encode() + b"\n", ProviderConfig(log_max_rotate=0))
        return True
    return False


def _config(directories: Directories) -> ProviderConfig:
    """Return the provider config. If the file is unreadable, return the defaults. Commands that need the file report
    the error themselves."""
    with contextlib.suppress(DirectoryError, TemplatesError):
        return directories.config_file(os.path.join(directories.conf, f"{directories.name}prov_config.json")).config
    return ProviderConfig()


def file_of(directories: Directories) -> str:
    """Return the path of the log: the file that LOGFILE names, or else ``<log
    directory>/<instance>-provider.<host>.log``. Return an empty text if there is no log.

    Raises DirectoryError.
    """
    file, logs = _config(directories).log_file, directories.logs
    if os.path.isabs(file) or not logs:
        return file if os.path.isabs(file) else ""
    return os.path.join(logs, file or f"{directories.name}-provider.{directories.host}.log")


def _write(path: str, line: bytes, config: ProviderConfig) -> None:
    """Append a line with a single write. So the lines of parallel calls do not mix."""
    with closed_at_end(open_own(path, APPEND)) as file:
        os.write(file, line)
        if config.log_max_rotate and 0 < config.log_max_megabytes * MEGABYTE < os.fstat(file).st_size:
            rotate(path, file, config.log_max_rotate)


def rotate(path: str, file: int, keep: int) -> None:
    """Rename the log at ``path`` to ``path.1``, ``path.1`` to ``path.2`` and so on, up to ``keep``. ``file``: the
    descriptor of the open log.

    If several calls notice a full log, only one call renames the log. Raises OSError if another call is rotating the
    log.
    """
    import fcntl  # imported here because only one call in many thousands rotates

    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if not os.path.samestat(os.fstat(file), os.lstat(path)):
        return
    # Stop at the first free number, because a site may keep a million logs.
    free = next((number for number in range(1, keep) if not os.path.exists(f"{path}.{number}")), keep)
    for number in range(free, 1, -1):
        os.replace(f"{path}.{number - 1}", f"{path}.{number}")
    os.replace(path, f"{path}.1")
