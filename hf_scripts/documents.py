"""Reads HostFactory's input from the command line, a file or standard input, checks it, and gives plain values. Object
and list forms, a byte order mark, any line ends and unknown keys are accepted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain
from typing import NamedTuple

from provisioner.files.regular import read_regular
from provisioner.hostfactory.instance import shown
from provisioner.hostfactory.templates import Invalid, tagged
from provisioner.names import SLOT_BLOCK, printable, short_name

MAX_COUNT = SLOT_BLOCK
"""Machines in one request at most, ten times the largest maxNumber: more is a slip, and would fill the state files."""

MAX_NAMES = 100_000
"""Machines in one return at most, as in a request: they stay in the state files until the return is trimmed."""

NAME_BYTES = 255
"""Bytes of a name or id at most, of those that HF sends: a host's full name has no more."""

DOCUMENT_BYTES = 16 * 1024 * 1024
"""Bytes of a document at most: a list of a hundred thousand hosts whose names and ids have 50 characters each."""

MOST_VALUES = 7 * MAX_NAMES
"""Values of a document that is parsed as a whole, as commas and brackets count them: more fill memory."""

UID_PARTS = [8, 4, 4, 4, 12]
"""Length of a pod's uid without hyphens. Other connectors give HF uids as machineId; no name of ours has this shape."""

UID_LENGTH = sum(UID_PARTS) + len(UID_PARTS) - 1

PIECE = 65_536
"""Bytes of a long list of hosts that are parsed at a time. HF may list a whole grid: as one document, fifty thousand
hosts are 25 MB of Python's dictionaries and take twice as long."""

USAGE = (
    "usage: {command}.sh [--record TRACE] -f FILE, or {command}.sh JSON, or {command}.sh with JSON on standard input"
)

OPTIONAL_INPUT_SECONDS = 1.0
"""Seconds that a command without arguments waits for input that it can do without: its caller may hold a pipe open and
send no byte.
"""


class Refused(Exception):
    """A call that cannot be answered; the text is one line for HF. Exit 1, and nothing was recorded."""


class Document:
    """HF's JSON object, and what to call its source in a message."""

    def __init__(self, source: str, content: bytes, trace: str = "") -> None:
        self.source = source
        self.content = content
        self.trace = trace
        """The file of ``--record``, to which the call is added; empty: none."""

    @cached_property
    def root(self) -> dict[str, object]:
        """The object as a whole. Raises Refused for what is none."""
        return _root(self.source, self.content)

    def refused(self, where: str, words: str) -> Refused:
        """The error for what is wrong at a place of this document."""
        return Refused(f"{self.source}: {where}: {words}")

    def expected(self, where: str, words: str, value: object) -> Refused:
        """The error for a value that is not what ``words`` says."""
        return self.refused(where, f"expected {words}, got {shown(value)}")


class Filter(NamedTuple):
    """Which templates HF asks for; None and no attributes: all."""

    template: str | None
    attributes: Mapping[str, str]


class Requested(NamedTuple):
    """The input of requestMachines."""

    template: str
    machines: int
    """How many machines HF asks for."""
    rc_account: str


class Hosts(NamedTuple):
    """Machines in the order in which HF names them. They are two lists: an object for each of fifty thousand would cost
    more than the rest of the script call.
    """

    names: list[str]
    """The host names as HF sent them; empty where it sent only an id."""
    machines: list[str]
    """Our names for them: the machine id, unless that is a uid beside a name; else the short host name."""


def read(command: str, arguments: list[str], *, may_be_empty: bool = False, whole: bool = True) -> Document:
    """The input of a script call: ``-f FILE``, the JSON as argument, which wins, or standard input; raises Refused.
    Without ``whole`` it is parsed when ``hosts`` or ``listed`` reads it, a piece at a time.
    """
    text, files = _split(command, arguments)
    if text is not None:
        source, content = "the argument", os.fsencode(text)
    elif "-f" in files:
        source, content = printable(files["-f"]), _content(files["-f"])
    else:
        source, content = "standard input", _standard_input(OPTIONAL_INPUT_SECONDS if may_be_empty else None)
        if not content and not may_be_empty:
            raise Refused(USAGE.format(command=command))
    trace = files.get("--record", "")
    document = Document(source, b"{}" if may_be_empty and not content.strip() else content, trace)
    if whole or trace:  # a trace holds documents, and no text that is none
        document.root = _root(source, document.content)
    return document


def _split(command: str, arguments: list[str]) -> tuple[str | None, dict[str, str]]:
    """The JSON text, if any, and the file of each option. Raises Refused."""
    text, files = None, dict[str, str]()
    left = iter(arguments)
    for argument in left:
        if argument in ("-f", "--record") and (file := next(left, None)) is not None:
            files[argument] = file
        elif argument.startswith("-") or text is not None:
            raise Refused(USAGE.format(command=command))
        else:
            text = argument
    return text, files


def _standard_input(seconds: float | None) -> bytes:
    """Return all of standard input; empty if it is a terminal, closed, or silent for ``seconds``. Raises Refused."""
    import select  # imported here alone: HostFactory names a file in every call

    try:
        if os.isatty(0) or not select.select([0], [], [], seconds)[0]:
            return b""
        with open(0, "rb", closefd=False) as file:
            content = file.read(DOCUMENT_BYTES + 1)
    except OSError:
        return b""
    if len(content) > DOCUMENT_BYTES:
        raise Refused(f"standard input: has more than {DOCUMENT_BYTES} bytes")
    return content


def _content(file: str) -> bytes:
    try:
        return read_regular(file, most=DOCUMENT_BYTES)
    except OSError as error:
        raise Refused(f"{printable(file)}: {error.strerror}") from error


def _root(source: str, content: bytes) -> dict[str, object]:
    if len(content) > MOST_VALUES and sum(map(content.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise Refused(f"{source}: has more than {MOST_VALUES} values")
    try:
        root = json.loads(content)
    except (ValueError, RecursionError) as error:
        reason = "the file is empty" if not content.strip() else f"not JSON: {error}"
        raise Refused(f"{source}: {reason}") from error
    if not isinstance(root, dict):
        raise Refused(f"{source}: expected a JSON object, got {shown(root)}")
    return root


# --- what each command takes from its document ------------------------------------------------------------------------


def requested(document: Document) -> Requested:
    """Template and count of requestMachines."""
    template = _required(document, document.root, "", "template")
    if not isinstance(template, dict):
        raise document.expected("template", "an object", template)
    name = _text(document, "template.templateId", _required(document, template, "template.", "templateId"))
    account = document.root.get("rc_account")
    count = _required(document, template, "template.", "machineCount")
    rc_account = _text(document, "rc_account", account) if isinstance(account, str) and account else ""
    return Requested(name, _count(document, count), rc_account)


def filters(document: Document) -> list[Filter]:
    """HF's optional filter of getAvailableTemplates; what is null asks for nothing."""
    if document.root.get("templates") is None:
        return []
    return [
        _filter(document, _place(document, "templates", index), entry)
        for index, entry in enumerate(_entries(document, "templates"))
    ]


def _filter(document: Document, where: str, entry: dict[str, object]) -> Filter:
    name, attributes = entry.get("templateId"), entry.get("attributes")
    if name is not None and not isinstance(name, str):
        raise document.expected(f"{where}.templateId", "a text", name)
    if attributes is None:
        attributes = {}
    if not isinstance(attributes, dict):
        raise document.expected(f"{where}.attributes", "an object", attributes)
    try:
        values = {key: tagged(key, given)[1] for key, given in attributes.items() if given is not None}
    except Invalid as error:
        place, reason = error.args
        raise document.refused(f"{where}{place}", reason) from error
    return Filter(name, values)


def request_ids(document: Document) -> list[str]:
    """The ids of getRequestStatus, each once, in order."""
    ids = []
    for index, entry in enumerate(_entries(document, "requests")):
        where = f"{_place(document, 'requests', index)}."
        name = _required(document, entry, where, "requestId")
        if not isinstance(name, str) or not name:
            raise document.expected(f"{where}requestId", "a text", name)
        ids.append(name)
    if not ids:
        raise document.refused("requests", "the list is empty")
    return list(dict.fromkeys(ids))


def hosts(document: Document) -> Hosts:
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
    return _hosts(document, _entries(document, "machines"), partial(_place, document, "machines"))


def _hosts(document: Document, entries: Iterable[dict[str, object]], place: Callable[[int], str]) -> Hosts:
    names, machines = sent = Hosts([], [])
    for index, entry in enumerate(entries):
        name, machine = entry.get("name") or "", entry.get("machineId") or ""
        if not (
            isinstance(name, str)
            and isinstance(machine, str)
            and (short := short_name(_telling(name, machine)[: NAME_BYTES + 1]))  # a longer one is refused below
        ):
            raise _no_host(document, place(index), entry)
        names.append(name)
        machines.append(short)
    for key, texts in (("name", names), ("machineId", machines)):
        # One pass in C, as there may be a hundred thousand; the one that is too long is looked for if there is one.
        if max(map(len, texts), default=0) > NAME_BYTES or not all(map(str.isascii, texts)):
            for index, text in enumerate(texts):
                if _is_too_long(text):
                    _text(document, f"{place(index)}.{key}", text)
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
    entries: list[dict[str, object]] = json.loads(b"[%b]" % content)
    if set(map(type, entries)) != {dict}:
        raise ValueError("not a list of objects")
    return entries


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


def _entries(document: Document, key: str) -> list[dict[str, object]]:
    """A list of objects, or the one object that stands for a list of one; an empty one stands for none."""
    value = _required(document, document.root, "", key)
    if isinstance(value, dict):
        return [value] if value else []
    if not isinstance(value, list):
        raise document.expected(key, "a list or an object", value)
    for index, entry in enumerate(value):
        if not isinstance(entry, dict):
            raise document.expected(f"{key}[{index}]", "an object", entry)
    return value


def _place(document: Document, key: str, index: int) -> str:
    """The JSON path of an entry, as HF wrote it."""
    return key if isinstance(document.root[key], dict) else f"{key}[{index}]"


def _required(document: Document, values: dict[str, object], parent: str, key: str) -> object:
    if key not in values:
        raise document.refused(f"{parent}{key}", "is missing")
    return values[key]


def _text(document: Document, where: str, value: object) -> str:
    """A name or an id. Raises Refused for what is none, or is too long to be kept and printed."""
    if not isinstance(value, str) or not value:
        raise document.expected(where, "a text", value)
    if _is_too_long(value):
        raise document.expected(where, f"at most {NAME_BYTES} bytes", value)
    return value


def _is_too_long(text: str) -> bool:
    return len(text[: NAME_BYTES + 1].encode("utf-8", "surrogatepass")) > NAME_BYTES


def _count(document: Document, value: object) -> int:
    """A whole number of at least 1, also when it is written as ``3.0`` or as a text of digits."""
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    written = str(whole) if isinstance(whole, (int, str)) else ""
    if not (written.isascii() and written.isdigit() and len(written) < 20 and 1 <= int(written) <= MAX_COUNT):
        raise document.expected("template.machineCount", f"a whole number from 1 to {MAX_COUNT}", value)
    return int(written)
