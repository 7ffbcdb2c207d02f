"""What HF's calls leave beside the databases: which requests it polled, its hosts, the maxNumbers it was shown."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress

from provisioner.state.atomic import facts_of, parse, read_whole, remove, replace
from provisioner.state.errors import StateError, StateMissing, StateUnreadable, missing, unwritable
from provisioner.state.marks import check_id, is_id, make_shared_directory, names_in, touch


class Seen:
    """``seen/<request id>``: touched by a script at each poll of that request, before it reads the answer."""

    def __init__(self, path: str) -> None:
        self.path = path

    def touch(self, request: str) -> int:
        """Note a poll; returns its time in ns. Raises StateError for an id that cannot be one, and StateUnwritable."""
        check_id(request)
        path = os.path.join(self.path, request)
        try:
            try:
                return touch(path)
            except FileNotFoundError:
                make_shared_directory(self.path)
                return touch(path)
        except OSError as error:
            raise unwritable(path, error) from error

    def marks(self) -> dict[str, int]:
        """When each request was polled last, in ns by the file system's clock."""
        return {name: facts.st_mtime_ns for name, facts in self._facts().items()}

    def _facts(self) -> dict[str, os.stat_result]:
        """What the system says of every mark; one that goes while we look is left out."""
        facts = {}
        for name in filter(is_id, names_in(self.path)):
            if (mark := facts_of(os.path.join(self.path, name))) is not None:
                facts[name] = mark
        return facts

    def forget(self, requests: Iterable[str]) -> None:
        """Remove the marks of requests that left the files. Raises StateUnwritable."""
        for request in filter(is_id, requests):
            remove(os.path.join(self.path, request))


class Inventory:
    """``hf-inventory.json``: the hosts HF listed in its last getReturnRequests; the last one wins."""

    advice = "HF's next getReturnRequests writes it again."

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, names: Iterable[str]) -> None:
        """Replace the list. Not fsynced: HF lists its hosts again within a minute."""
        replace(self.path, _document(names), durable=False)

    def note(self, names: Mapping[str, object]) -> None:
        """Replace the list, also one that cannot be read; add to it one that shares no host with it: a further part.

        Such parts come faster than the loop looks. Raises StateUnwritable.
        """
        content, before = _document(names), b""
        with suppress(StateError):
            before = self._content()
        if names and before != content:  # mostly HF lists what it did before, and fifty thousand names need no look
            with suppress(StateError):
                listed = self._names(before)
                if names.keys().isdisjoint(listed):
                    content = _document([*listed, *names])
        replace(self.path, content, durable=False)

    def read(self) -> tuple[tuple[str, ...], int] | None:
        """The names and when they were written (ns); None before HF's first call. Raises StateUnreadable."""
        facts = facts_of(self.path)  # before the content: what is written meanwhile has a mark of its own
        if facts is None:
            return None
        try:
            return tuple(self._names(self._content())), facts.st_mtime_ns
        except StateMissing:
            return None

    def _content(self) -> bytes:
        return read_whole(self.path, self.advice)

    def _names(self, content: bytes) -> list[str]:
        document = parse(self.path, content, self.advice)
        names = document.get("names") if isinstance(document, dict) else None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise StateUnreadable(f"{self.path}: expected {{'names': [...]}}. {self.advice}")
        return names


def _document(names: Iterable[str]) -> bytes:
    return json.dumps({"names": list(names)}).encode()


def numbers_in(path: str, content: bytes, advice: str) -> dict[str, int]:
    """maxNumber by templateId, as the content of ``announced.json`` says it. Raises StateUnreadable."""
    document = parse(path, content, advice)
    if not isinstance(document, dict) or not all(type(value) is int for value in document.values()):
        raise StateUnreadable(f"{path}: expected {{TEMPLATE: NUMBER}}. {advice}")
    return document


class Announced:
    """``announced.json``: the highest maxNumber that HF was shown of each template.

    HF hangs when it is shown a lower one while it runs (docs/hostfactory.md: maxNumber never sinks).
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self) -> dict[str, int]:
        """maxNumber by templateId; nothing before the first call.

        Raises StateMissing without a state directory, and StateUnreadable.
        """
        advice = "Remove it while HostFactory is stopped: it is made again."
        if not os.path.isdir(os.path.dirname(self.path)):
            raise missing(self.path, "")
        try:
            return numbers_in(self.path, read_whole(self.path, advice), advice)
        except StateMissing:
            return {}

    def write(self, numbers: Mapping[str, int]) -> None:
        """Replace the maxNumbers, durably. Raises StateUnwritable."""
        replace(self.path, json.dumps(numbers).encode())
