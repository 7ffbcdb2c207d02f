"""Texts of clouds that a status repeats: the first is written out behind a number, the others are the number. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from provisioner.telemetry.status_model import StatusModel

LEAST = 40
"""Least characters of a text that is numbered."""

SENTENCES = ("refused", "unseen", "failing", "requests", "pressure")
"""Fields whose texts are shown in full, in the order of the screen."""


def make_numbering(texts: Iterable[str]) -> Callable[[str], str]:
    """Return a function that puts a number before a text that occurs again, and returns the number alone after that."""
    counts = Counter(text for text in texts if len(text) >= LEAST)
    numbers = {text: f"[{number}]" for number, text in enumerate([text for text in counts if counts[text] > 1], 1)}
    written: set[str] = set()

    def number_text(text: str) -> str:
        if text not in numbers or text in written:
            return numbers.get(text, text)
        written.add(text)
        return f"{numbers[text]} {text}"

    return number_text


def number_repeated_texts(status: StatusModel) -> StatusModel:
    """Return the status with numbered texts, for a reader."""
    found: list[str] = []
    for name in SENTENCES:
        _change_texts(getattr(status, name), lambda text: found.append(text) or text)  # type: ignore[func-returns-value]
    change = make_numbering(found)
    return replace(status, **{name: _change_texts(getattr(status, name), change) for name in SENTENCES})


def _change_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a document with its texts changed. A last error with the text of its back-off is shown once."""
    if isinstance(value, Mapping):
        last, why = value.get("last_error"), value.get("why")
        changed = {key: change(part) if key in ("text", "why") else part for key, part in value.items()}
        if last and last["text"] == why:
            return changed | {"last_error": {**last, "text": changed["why"]}}
        return changed | {key: _change_texts(value[key], change) for key in ("last_error", "missing") if key in value}
    return [_change_texts(part, change) for part in value] if isinstance(value, Sequence) else value
