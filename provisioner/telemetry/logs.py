"""Log lines: a constant sentence, facts as keys; text on a terminal, else one JSON object a line. Always on stderr."""

from __future__ import annotations

import json
import logging
import sys
import time

from provisioner.loop.clock import CYCLE
from provisioner.utc import format_utc

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes every record has; the others are the caller's facts."""

NOISY = ("urllib3", "google", "kubernetes", "aiohttp.access")
"""Libraries whose INFO is not news to an operator."""


def configure(level: str = "INFO") -> None:
    """Send log lines to stderr from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if sys.stderr.isatty() else JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("tornado.general").setLevel(logging.ERROR)  # a warning is a client's broken TLS


def facts(record: logging.LogRecord) -> dict[str, object]:
    """What the caller said beside the sentence, and the cycle that it was said in."""
    said = {key: value for key, value in vars(record).items() if key not in STANDARD}
    cycle = CYCLE.get()
    return {"cycle": cycle, **said} if cycle else said


class JsonFormatter(logging.Formatter):
    """One JSON object: time (UTC), severity, message, then the facts: as Cloud Logging reads an entry."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, object] = {
            "time": format_utc(record.created, milliseconds=True),
            "severity": record.levelname,
            "message": record.getMessage(),
            **facts(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """Time, level, sentence, facts."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        said = " ".join(f"{key}={value}" for key, value in facts(record).items())
        line = f"{clock} {record.levelname:<7} {record.getMessage()}" + (f"  {said}" if said else "")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
