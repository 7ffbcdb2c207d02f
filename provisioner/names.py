"""Machine names and ids: their form, and the parts that they contain.

The scripts import this module at each call, so it imports only modules that load fast.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

Key = TypeVar("Key")
Item = TypeVar("Item")

REQUEST_ID_LENGTH = 10
"""Number of characters of [a-z0-9] in a request id. With 50 random bits, an id does not repeat even if all state
files are lost."""

SLOT_DIGITS = 6
"""Number of digits in a slot number. The width is fixed, so that no name is part of another name, because Symphony
searches for names as substrings."""

SLOT_NUMBERS: int = 10**SLOT_DIGITS
"""Number of slot numbers that a request has. A larger slot number would have more digits, and a machine's name with
this number could not be parsed."""

SLOT_BLOCK = 100_000
"""Size of a block of slot numbers. After a loss of memory, numbers continue in a block that was never used before."""

MAX_PREFIX_LENGTH = 63 - REQUEST_ID_LENGTH - SLOT_DIGITS - 2
"""Longest name prefix that keeps ``<prefix>-<request>-<slot>`` within a DNS label."""

NO_TEMPLATE = "unknown"
"""Template of machines whose request is unknown: in metrics, and in an intent that was rebuilt from machine names
alone. Pools do not serve this template, so machines are never created for it."""

OPERATOR_ACCOUNT = "operator"
"""Account of the requests of `provisioner request`. The loop does not cancel such a request if it is not polled,
because the command ends without polling it."""

SLURM_ACCOUNT = "slurm"
"""Account of the requests that ``slurm_resume`` makes. By this account the demand service finds them in intent."""

RETURN_ID_PREFIX = "ret-"
"""Prefix of the id of a return request. The prefix is needed because getRequestStatus gets only an id, and has to
distinguish return requests from requests."""


CONTROLS = (
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Pattern of the characters that control a terminal, are invisible, or do not exist in UTF-8."""


def format_printable(text: str) -> str:
    """Return a text of another program as one line that is safe to print. Each control character becomes "?"."""
    return text if text.isprintable() else re.sub(CONTROLS, "?", " ".join(text.split()))


def format_printable_lines(text: str) -> str:
    """Return a text of another program that is safe to print. Line ends and tabs stay; each other control character
    becomes "?"."""
    return re.sub(CONTROLS, lambda found: found[0] if found[0] in "\n\t" else "?", text)


def machine_name(prefix: str, request: str, number: int) -> str:
    """Return the name of a slot's machine: ``<prefix>-<request>-<slot>``."""
    return f"{prefix}-{request}-{number:0{SLOT_DIGITS}d}"


def name_pattern(prefix: str) -> re.Pattern[str]:
    """Return the exact pattern of this provisioner's machine names, with the groups ``request`` and ``slot``."""
    return re.compile(
        rf"{re.escape(prefix)}-(?P<request>[a-z0-9]{{{REQUEST_ID_LENGTH}}})-(?P<slot>[0-9]{{{SLOT_DIGITS}}})"
    )


def split_name(prefix: str, name: str) -> tuple[str, int] | None:
    """Return the request id and the slot number in one of this provisioner's machine names; None for any other name."""
    start = len(prefix) + 1
    request, slot = name[start : start + REQUEST_ID_LENGTH], name[start + REQUEST_ID_LENGTH + 1 :]
    # ``isdecimal`` accepts the digits of all writing systems, so compare with the ASCII name.
    if len(slot) != SLOT_DIGITS or not slot.isdecimal() or not name.isascii() or name != f"{prefix}-{request}-{slot}":
        return None
    return (request, int(slot)) if request.isalnum() and request == request.lower() else None


def get_prefix(name: str) -> str:
    """Return the prefix of a machine's name: all before request and slot, which have a fixed width."""
    return name[: -REQUEST_ID_LENGTH - SLOT_DIGITS - 2]


def get_request_id(prefix: str, name: str) -> str:
    """Return the request id of one of this provisioner's machine names; empty for any other name."""
    parts = split_name(prefix, name)
    return parts[0] if parts else ""


def short_name(host: str) -> str:
    """Return a host's first label in lower case. HF and EGO use both short and full names for a host."""
    return host.partition(".")[0].lower()


def group_by(key: Callable[[Item], Key], items: Iterable[Item]) -> dict[Key, list[Item]]:
    """Group the items by key. Each group is a list in the order of ``items``."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
