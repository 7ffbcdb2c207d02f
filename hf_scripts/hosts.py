"""The hosts that HostFactory lists: each by its name and machine id, however it writes them. A list may name a whole
grid: it is parsed piece by piece.
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
"""Length of a pod's uid without hyphens. Other connectors give HF uids as machineId; no name of ours has this shape."""

UID_LENGTH = sum(UID_PARTS) + len(UID_PARTS) - 1

PIECE = 65_536
"""Bytes of a long list of hosts that are parsed at a time. HF may list a whole grid: as one document, fifty thousand
hosts are 25 MB of Python's dictionaries and take twice as long."""


class Hosts(NamedTuple):
    """Machines in the order in which HF names them. They are two lists: an object for each of fifty thousand would cost
    more than the rest of the script call.
    """

    names: list[str]
    """The host names as HF sent them; empty where it sent only an id."""
    machines: list[str]
    """Our names for them: the machine id, unless that is a uid beside a name; else the short host name."""


def returned(document: Document) -> Hosts:
    """The machines of requestReturnMachines."""
    sent = listed(document)
    given = _hosts_of_whole(document) if sent is None else sent
    if len(given.names) > MAX_NAMES:
        raise document.refused(
            "machines", f"has {len(given.names)} entries, and at most {MAX_NAMES} can be returned at once"
        )
    return given


def listed(document: Document) -> Hosts | None:
    """The machines of getReturnRequests; None when HF sent no list, which is not an empty one."""
    if len(document.content) > PIECE:
        # Malformed, or not written as HF writes: parsed whole it is accepted, or refused by its exact place.
        with suppress(ValueError, RecursionError):
            return _hosts(document, chain.from_iterable(_in_pieces(document.content, "machines")), _placeless)
    return None if document.root.get("machines") is None else _hosts_of_whole(document)


def _placeless(index: int) -> str:
    """Raise ValueError for a wrong entry of a piece: its place is found after the pieces have left the memory."""
    raise ValueError(f"machines[{index}]")


def _hosts_of_whole(document: Document) -> Hosts:
    return _hosts(document, entries(document, "machines"), partial(place, document, "machines"))


def _hosts(document: Document, given: Iterable[dict[str, object]], place_of: Callable[[int], str]) -> Hosts:
    names, machines = sent = Hosts([], [])
    for index, entry in enumerate(given):
        name, machine = entry.get("name") or "", entry.get("machineId") or ""
        if not (
            isinstance(name, str)
            and isinstance(machine, str)
            and (short := short_name(_telling(name, machine)[: NAME_BYTES + 1]))  # a longer one is refused below
        ):
            raise _no_host(document, place_of(index), entry)
        names.append(name)
        machines.append(short)
    for key, texts in (("name", names), ("machineId", machines)):
        # One pass in C, as there may be a hundred thousand; the one that is too long is looked for if there is one.
        if max(map(len, texts), default=0) > NAME_BYTES or not all(map(str.isascii, texts)):
            for index, name in enumerate(texts):
                if is_too_long(name):
                    text(document, f"{place_of(index)}.{key}", name)
    return sent


def _in_pieces(content: bytes, key: str) -> Iterator[list[dict[str, object]]]:
    """The objects of the list ``key`` of a long document, cut between the first and the last bracket and then wherever
    ``},`` stands. A cut in a wrong place leaves text that does not parse as JSON: then ValueError or RecursionError is
    raised.
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
    """The objects of a piece, of which there is at least one: nothing may follow a comma but another."""
    found: list[dict[str, object]] = json.loads(b"[%b]" % content)
    if set(map(type, found)) != {dict}:
        raise ValueError("not a list of objects")
    return found


def _telling(name: str, machine: str) -> str:
    """The name or the machine id, whichever a machine is found by."""
    if len(machine) == UID_LENGTH:  # the length is tested first: hardly any of fifty thousand ids has it
        is_uid = [len(part) for part in machine.split("-")] == UID_PARTS
        return name if name and is_uid else machine
    return machine or name


def _no_host(document: Document, where: str, entry: dict[str, object]) -> Refused:
    """Why an entry names no machine."""
    for key in ("machineId", "name"):
        value = entry.get(key)
        if value not in (None, "") and not (isinstance(value, str) and short_name(value)):
            return document.expected(f"{where}.{key}", "a host name", value)
    return document.refused(where, "name and machineId are missing")
