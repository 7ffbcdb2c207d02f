"""The hosts in HostFactory's lists, each with name and machine id. The module accepts each form in which HostFactory
and its clients send such a list.

A list may name all hosts of a grid, so a long list is parsed in pieces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import NamedTuple

from hf_scripts.input_documents import MAX_NAMES, NAME_BYTES, Document, Refused, entries, is_too_long, place, text
from provisioner.names import short_name

UID_PARTS = [8, 4, 4, 4, 12]
"""Lengths of the parts of a pod's uid. Other connectors send the uid of a pod as machineId. Names made by this
provisioner never have this form."""

UID_LENGTH = sum(UID_PARTS) + len(UID_PARTS) - 1

PIECE = 65_536
"""Number of bytes of a long host list that are parsed at a time. Parsing a list of fifty thousand hosts as a whole
would need 25 MB for Python's dictionaries and twice the time."""


class Hosts(NamedTuple):
    """Machines in HF's order, as two lists of texts. Machines are not objects here, because fifty thousand objects
    would take longer to make than the rest of the script call."""

    names: list[str]
    """Host names as HF sent them. A name is empty if HF sent only an id."""
    machines: list[str]
    """The provisioner's names of the machines. Such a name is usually the machine id. If HF sent no machine id, or sent
    a pod's uid together with a host name, the name is the short host name."""


def returned(document: Document) -> Hosts:
    """Return the machines in the document of requestReturnMachines. Raises Refused."""
    sent = listed(document)
    given = _read_whole(document) if sent is None else sent
    if (number := len(given.names)) > MAX_NAMES:
        raise document.refused("machines", f"has {number} entries, and at most {MAX_NAMES} can be returned at once")
    return given


def listed(document: Document) -> Hosts | None:
    """Return the machines in the document of getReturnRequests; None if HF sent no list. An empty list is valid. Raises
    Refused."""
    if len(document.content) > PIECE:
        # If the list cannot be cut into pieces, parse the list as a whole. Then the list is accepted, or refused with
        # the exact place of the mistake.
        with suppress(ValueError, RecursionError):
            pieces = _parse_pieces(document.content, "machines")
            return _read_entries(document, chain.from_iterable(pieces), _raise_for_entry)
    return None if document.root.get("machines") is None else _read_whole(document)


def _raise_for_entry(index: int) -> str:
    """Raise ValueError for the wrong entry ``index`` of a piece. The caller then parses the whole list to find the
    exact place of the mistake."""
    raise ValueError(f"machines[{index}]")


def _read_whole(document: Document) -> Hosts:
    return _read_entries(document, entries(document, "machines"), partial(place, document, "machines"))


def _read_entries(document: Document, given: Iterable[dict[str, object]], place_of: Callable[[int], str]) -> Hosts:
    names, machines = sent = Hosts([], [])
    for index, entry in enumerate(given):
        name, machine = entry.get("name") or "", entry.get("machineId") or ""
        if not (
            isinstance(name, str)
            and isinstance(machine, str)
            and (short := short_name(_identity(name, machine)[: NAME_BYTES + 1]))  # a longer name is refused below
        ):
            raise _no_host_error(document, place_of(index), entry)
        names.append(name)
        machines.append(short)
    for key, texts in (("name", names), ("machineId", machines)):
        # Most lists pass this test, which is one pass in C over up to a hundred thousand names.
        if max(map(len, texts), default=0) > NAME_BYTES or not all(map(str.isascii, texts)):
            for index, name in enumerate(texts):
                if is_too_long(name):
                    text(document, f"{place_of(index)}.{key}", name)
    return sent


def _parse_pieces(content: bytes, key: str) -> Iterator[list[dict[str, object]]]:
    """Yield the objects of the list under ``key`` in a long document, piece by piece. Each piece ends at ``},``.

    The list is the text between the document's first and last bracket. Raises ValueError or RecursionError if the
    document has another form, or if a piece ends within a text that contains ``},``.
    """
    start, end = content.index(b"[") + 1, content.rindex(b"]")
    around = json.loads(content[:start] + content[max(start, end) :])
    if not isinstance(around, dict) or around.get(key) != []:
        raise ValueError(f"the list {key} is not all that stands between brackets")
    while end - start > PIECE:
        cut = content.rindex(b"},", start, start + PIECE) + 1
        yield _objects(content[start:cut])
        start = cut + 1
    yield _objects(content[start:end])


def _objects(content: bytes) -> list[dict[str, object]]:
    """Parse a piece into its JSON objects. Raises ValueError if the piece contains anything else, or is empty. A piece
    is empty if the list ends with a comma."""
    found: list[dict[str, object]] = json.loads(b"[%b]" % content)
    if set(map(type, found)) != {dict}:
        raise ValueError("not a list of objects")
    return found


def _identity(name: str, machine: str) -> str:
    """Return the machine id of an entry. If this id is empty or is a pod's uid, return the host name in its place, if
    the entry has one."""
    if len(machine) == UID_LENGTH:  # cheap test first: few of fifty thousand ids have this length
        is_uid = [len(part) for part in machine.split("-")] == UID_PARTS
        return name if name and is_uid else machine
    return machine or name


def _no_host_error(document: Document, where: str, entry: dict[str, object]) -> Refused:
    """Return the error for a list entry that does not name a machine."""
    for key in ("machineId", "name"):
        value = entry.get(key)
        if value not in (None, "") and not (isinstance(value, str) and short_name(value)):
            return document.expected(f"{where}.{key}", "a host name", value)
    return document.refused(where, "name and machineId are missing")
