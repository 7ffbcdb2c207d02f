"""Reads HostFactory's input from the command line, a file or standard input, checks it, and gives plain values. Object
and list forms, a byte order mark, any line ends and unknown keys are accepted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property

from provisioner.files.safe_open import read_regular
from provisioner.hostfactory.instance import shown
from provisioner.hostfactory.templates import Invalid, tagged
from provisioner.names import SLOT_BLOCK, printable

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


def read(command: str, arguments: list[str], *, may_be_empty: bool = False, whole: bool = True) -> Document:
    """The input of a script call: ``-f FILE``, the JSON as argument, which wins, or standard input; raises Refused.
    Without ``whole`` it is parsed when ``hosts`` or ``listed`` reads it, a piece at a time.
    """
    text, files = _split(command, arguments)
    if text is not None:
        source, content = "the argument", os.fsencode(text)
    elif "-f" in files:
        source = printable(files["-f"])
        try:
            content = read_regular(files["-f"], most=DOCUMENT_BYTES)
        except OSError as error:
            raise Refused(f"{source}: {error.strerror}") from error
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


def requested(document: Document) -> tuple[str, int, str]:
    """Template, number of machines and account of requestMachines; the account is empty if HF gives none."""
    template = _required(document, document.root, "template")
    if not isinstance(template, dict):
        raise document.expected("template", "an object", template)
    name = text(document, "template.templateId", _required(document, template, "template.templateId"))
    account = document.root.get("rc_account")
    count = _required(document, template, "template.machineCount")
    rc_account = text(document, "rc_account", account) if isinstance(account, str) and account else ""
    return name, _count(document, count), rc_account


def filters(document: Document) -> list[tuple[str | None, Mapping[str, str]]]:
    """The ids and attributes that HF's optional filter of getAvailableTemplates asks for; null asks for nothing."""
    found: list[tuple[str | None, Mapping[str, str]]] = []
    for index, entry in enumerate(entries(document, "templates") if document.root.get("templates") is not None else ()):
        where = place(document, "templates", index)
        name, attributes = entry.get("templateId"), {} if entry.get("attributes") is None else entry["attributes"]
        if name is not None and not isinstance(name, str):
            raise document.expected(f"{where}.templateId", "a text", name)
        if not isinstance(attributes, dict):
            raise document.expected(f"{where}.attributes", "an object", attributes)
        try:
            found.append((name, {key: tagged(key, given)[1] for key, given in attributes.items() if given is not None}))
        except Invalid as error:
            below, reason = error.args
            raise document.refused(f"{where}{below}", reason) from error
    return found


def request_ids(document: Document) -> list[str]:
    """The ids of getRequestStatus, each once, in order."""
    ids = []
    for index, entry in enumerate(entries(document, "requests")):
        where = f"{place(document, 'requests', index)}.requestId"
        name = _required(document, entry, where)
        if not isinstance(name, str) or not name:
            raise document.expected(where, "a text", name)
        ids.append(name)
    if not ids:
        raise document.refused("requests", "the list is empty")
    return list(dict.fromkeys(ids))


def entries(document: Document, key: str) -> list[dict[str, object]]:
    """A list of objects, or the one object that stands for a list of one; an empty one stands for none."""
    value = _required(document, document.root, key)
    if isinstance(value, dict):
        return [value] if value else []
    if not isinstance(value, list):
        raise document.expected(key, "a list or an object", value)
    for index, entry in enumerate(value):
        if not isinstance(entry, dict):
            raise document.expected(f"{key}[{index}]", "an object", entry)
    return value


def place(document: Document, key: str, index: int) -> str:
    """The JSON path of an entry, as HF wrote it."""
    return key if isinstance(document.root[key], dict) else f"{key}[{index}]"


def _required(document: Document, values: dict[str, object], where: str) -> object:
    """The value of the key that the place ends with."""
    key = where.rpartition(".")[2]
    if key not in values:
        raise document.refused(where, "is missing")
    return values[key]


def text(document: Document, where: str, value: object) -> str:
    """A name or an id. Raises Refused for what is none, or is too long to be kept and printed."""
    if not isinstance(value, str) or not value:
        raise document.expected(where, "a text", value)
    if is_too_long(value):
        raise document.expected(where, f"at most {NAME_BYTES} bytes", value)
    return value


def is_too_long(text: str) -> bool:
    return len(text[: NAME_BYTES + 1].encode("utf-8", "surrogatepass")) > NAME_BYTES


def _count(document: Document, value: object) -> int:
    """A whole number of at least 1, also when it is written as ``3.0`` or as a text of digits."""
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    written = str(whole) if isinstance(whole, (int, str)) else ""
    if not (written.isascii() and written.isdigit() and len(written) < 20 and 1 <= int(written) <= MAX_COUNT):
        raise document.expected("template.machineCount", f"a whole number from 1 to {MAX_COUNT}", value)
    return int(written)
