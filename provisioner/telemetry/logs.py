"""Log lines on stderr: a constant sentence with keys and values. If stderr is a terminal, each line is text. If not,
each line is a JSON object."""

from __future__ import annotations

import json
import logging
import sys
import time

from provisioner.loop.clock import CYCLE
from provisioner.utc import format_utc

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every log record has. Each other attribute is a key that the caller added."""

NOISY = ("urllib3", "google", "kubernetes", "aiohttp.access")
"""Libraries whose INFO lines do not help an operator."""


def configure(level: str = "INFO") -> None:
    """Send log lines of at least this severity to stderr from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if sys.stderr.isatty() else JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("tornado.general").setLevel(logging.ERROR)  # Tornado warns of a client's broken TLS


def get_fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the keys and values that the caller added. Add the number of the current cycle, if there is a cycle."""
    extra = {key: value for key, value in vars(record).items() if key not in STANDARD}
    cycle = CYCLE.get()
    return {"cycle": cycle, **extra} if cycle else extra


class JsonFormatter(logging.Formatter):
    """A formatter for Cloud Logging. Each line is a JSON object with UTC time, severity and message. The line also has
    the keys that the caller added."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for a record."""
        line: dict[str, object] = {
            "time": format_utc(record.created, milliseconds=True),
            "severity": record.levelname,
            "message": record.getMessage(),
            **get_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """A formatter for a terminal. Each line has time, level, message, and the keys that the caller added."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for a record."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        extra = " ".join(f"{key}={value}" for key, value in get_fields(record).items())
        line = f"{clock} {record.levelname:<7} {record.getMessage()}" + (f"  {extra}" if extra else "")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
