"""Machine names and ids: their one shape, and what it tells.

The scripts import this at each call: it imports nothing that costs time.
"""

from __future__ import annotations

import re

REQUEST_ID_LENGTH = 10
"""Characters of [a-z0-9] in a request id: 50 random bits, so an id never returns even when every state file is lost."""

SLOT_DIGITS = 6
"""Fixed width, so that no machine name is a prefix of another: Symphony looks names up as substrings."""

SLOT_NUMBERS: int = 10**SLOT_DIGITS
"""Slot numbers of a request: a greater number would change the width, and with it what the name says."""

SLOT_BLOCK = 100_000
"""After memory was lost, slot numbers go on in another block of this size, which no earlier slot can have used."""

MAX_PREFIX_LENGTH = 63 - REQUEST_ID_LENGTH - SLOT_DIGITS - 2
"""Longest name prefix that keeps ``<prefix>-<request>-<slot>`` within a DNS label."""

NO_TEMPLATE = "unknown"
"""Template of machines whose request nobody knows: a word in metrics, and in an intent made again of nothing but names.
No pool serves it, so nothing is ever made for it."""

RETURN_ID_PREFIX = "ret-"
"""Tells a return request's id from a request's: getRequestStatus is given the id alone."""


CONTROLS = (
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Characters that a terminal follows, a reader does not see, or UTF-8 lacks."""


def printable(text: str) -> str:
    """Return words from outside on one line, with "?" for each character that a terminal would follow."""
    return text if text.isprintable() else re.sub(CONTROLS, "?", " ".join(text.split()))


def printable_lines(text: str) -> str:
    """Return a text for a screen, whose line ends and tabs stay, with "?" for each other control character."""
    return re.sub(CONTROLS, lambda found: found[0] if found[0] in "\n\t" else "?", text)


def machine_name(prefix: str, request: str, number: int) -> str:
    """The one name of a slot's machine: ``<prefix>-<request>-<slot>``."""
    return f"{prefix}-{request}-{number:0{SLOT_DIGITS}d}"


def name_pattern(prefix: str) -> re.Pattern[str]:
    """The exact shape of this provisioner's machine names; groups ``request`` and ``slot``."""
    return re.compile(
        rf"{re.escape(prefix)}-(?P<request>[a-z0-9]{{{REQUEST_ID_LENGTH}}})-(?P<slot>[0-9]{{{SLOT_DIGITS}}})"
    )


def split_name(prefix: str, name: str) -> tuple[str, int] | None:
    """Request id and slot number of a name of this provisioner's shape; None for any other."""
    start = len(prefix) + 1
    request, slot = name[start : start + REQUEST_ID_LENGTH], name[start + REQUEST_ID_LENGTH + 1 :]
    # Python takes the digits of every script for digits: a name that HF spelled otherwise is not this one.
    if len(slot) != SLOT_DIGITS or not slot.isdecimal() or not name.isascii() or name != f"{prefix}-{request}-{slot}":
        return None
    return (request, int(slot)) if request.isalnum() and request == request.lower() else None


def prefix_of(name: str) -> str:
    """What stands before request and slot in any machine's name: both are of fixed width."""
    return name[: -REQUEST_ID_LENGTH - SLOT_DIGITS - 2]


def request_of(prefix: str, name: str) -> str:
    """Request id of a name of this provisioner's shape; empty for any other."""
    parts = split_name(prefix, name)
    return parts[0] if parts else ""


def short_name(host: str) -> str:
    """A host's first label, in lower case: HF and EGO use short and full names for the same host."""
    return host.partition(".")[0].lower()
