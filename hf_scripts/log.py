"""The scripts' log: one JSON line for each script call in HF's log directory, by the provider config's level and
rotation. It writes nothing to stdout or stderr, and its failures stop no call.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping

from provisioner.files.safe_open import open_own
from provisioner.hostfactory.instance import Directories, DirectoryError, ProviderConfig, TemplatesError
from provisioner.utc import format_utc

LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARNING": 30, "WARN": 30, "ERROR": 40, "CRITICAL": 50, "FATAL": 50}

MEGABYTE = 1024 * 1024

APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT


def append(directories: Directories, level: str, message: str, facts: Mapping[str, object]) -> None:
    """Adds one line if the configured level lets it through."""
    config = _config(directories)
    if LEVELS[level] < LEVELS.get(config.log_level.removeprefix("LOG_"), LEVELS["INFO"]):
        return
    with contextlib.suppress(DirectoryError, OSError):
        if file := file_of(directories):
            now = format_utc(time.time(), milliseconds=True)
            line = json.dumps({"time": now, "severity": level, "message": message, "pid": os.getpid(), **facts})
            _write(file, line.encode() + b"\n", config)


def record(path: str, command: str, document: Mapping[str, object], output: str) -> bool:
    """Adds a call to a trace that ``provisioner replay`` plays; False when it cannot be written.

    ``output`` is what was printed: the answer's JSON, or the text of a refusal.
    """
    try:
        answer = json.loads(output)
    except ValueError:
        answer = output
    line = json.dumps({"time": time.time(), "command": command, "input": document, "output": answer})
    try:
        _write(path, line.encode() + b"\n", ProviderConfig(log_max_rotate=0))
    except OSError:
        return False
    return True


def _config(directories: Directories) -> ProviderConfig:
    """The provider config, or the defaults when it cannot be read: the commands that depend on it report that."""
    try:
        return directories.config_file(os.path.join(directories.conf, f"{directories.name}prov_config.json")).config
    except (DirectoryError, TemplatesError):
        return ProviderConfig()


def file_of(directories: Directories) -> str:
    """``<log directory>/<instance>-provider.<host>.log``, or what LOGFILE says; empty: nowhere to log.

    Raises DirectoryError.
    """
    file, logs = _config(directories).log_file, directories.logs
    if os.path.isabs(file) or not logs:
        return file if os.path.isabs(file) else ""
    return os.path.join(logs, file or f"{directories.name}-provider.{directories.host}.log")


def _write(path: str, line: bytes, config: ProviderConfig) -> None:
    """One write in append mode, so that lines of parallel calls do not mix."""
    file = open_own(path, APPEND)
    try:
        os.write(file, line)
        if config.log_max_rotate and 0 < config.log_max_megabytes * MEGABYTE < os.fstat(file).st_size:
            rotate(path, file, config.log_max_rotate)
    finally:
        os.close(file)


def rotate(path: str, file: int, keep: int) -> None:
    """Renames the log ``file`` to ``.1``, ``.1`` to ``.2`` and so on, once for all calls that notice its size. Raises
    OSError when another call is rotating.
    """
    import fcntl  # imported here alone: one call in many thousands rotates

    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if not os.path.samestat(os.fstat(file), os.lstat(path)):
        return
    # The first free name is the end, so that a site may keep a million.
    free = next((number for number in range(1, keep) if not os.path.exists(f"{path}.{number}")), keep)
    for number in range(free, 1, -1):
        os.replace(f"{path}.{number - 1}", f"{path}.{number}")
    os.replace(path, f"{path}.1")
