"""Numbers that replace repeated texts of clouds in a status. The first occurrence of a text is written out with a
number before it. Each later occurrence is only the number. The functions are pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from provisioner.telemetry.status_model import StatusModel

LEAST = 40
"""Minimum number of characters of a text that gets a number."""

SENTENCES = ("refused", "unseen", "failing", "losses", "down", "stuck", "requests")
"""Fields whose texts every screen shows in full, in the order in which the screen shows the fields."""

TABLES = ("templates", "pools", "machines")
"""Tables in which texts are cut to the width of a column."""


def make_numbering(texts: Iterable[str]) -> Callable[[str], str]:
    """Return a function that replaces repeated texts by numbers. A text is repeated if ``texts`` has it more than once.

    The function's first call with a repeated text returns the text with a number before it. Later calls return only the
    number. Every other text is returned unchanged.
    """
    counts = Counter(text for text in texts if len(text) >= LEAST)
    numbers = {text: f"[{number}]" for number, text in enumerate([text for text in counts if counts[text] > 1], 1)}
    written: set[str] = set()

    def number_text(text: str) -> str:
        if text not in numbers or text in written:
            return numbers.get(text, text)
        written.add(text)
        return f"{numbers[text]} {text}"

    return number_text


def number_repeated_texts(status: StatusModel, *more: str) -> StatusModel:
    """Return the status with numbered texts, for a screen. ``more``: further fields whose texts the screen shows in
    full.

    If a field shows a text in full, tables show only the text's number.
    """
    names, found = (*SENTENCES, *more), list[str]()
    for name in names:
        _change_texts(getattr(status, name), lambda text: found.append(text) or text)  # type: ignore[func-returns-value]
    cells = [row.last_error["text"] for name in TABLES for row in getattr(status, name) if row.last_error]
    change = make_numbering([*found, *filter(set(found).__contains__, cells)])
    changed = {name: _change_texts(getattr(status, name), change) for name in names}
    for name in TABLES:
        rows = getattr(status, name)
        changed[name] = [replace(row, last_error=_change_texts(row.last_error, change)) for row in rows]
    return replace(status, **changed)


def _change_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a document with its texts changed by ``change``.

    If a back-off and its last error have the same text, ``change`` is called only once for both, because their line
    shows the text only once. ``change`` is also called only once for the machines of a pool that have the same text.
    So their texts stay equal, and these machines still share a line.
    """
    if isinstance(value, Mapping):
        last, why = value.get("last_error"), value.get("why")
        changed = {key: change(part) if key in ("text", "why") else part for key, part in value.items()}
        if last and last["text"] == why:
            return changed | {"last_error": {**last, "text": changed["why"]}}
        return changed | {key: _change_texts(value[key], change) for key in ("last_error", "missing") if key in value}
    if not isinstance(value, Sequence):
        return value
    of_machines = defaultdict[str, Callable[[str], str]](lambda: cache(change))
    return [_change_texts(part, of_machines[part["pool"]] if "machine" in part else change) for part in value]
