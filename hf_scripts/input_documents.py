"""Read and check HostFactory's input, and return plain values. The input is on the command line, in a file or on
standard input.

The reader accepts one object in place of a list, a byte order mark, all line ends, and unknown keys.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property

from provisioner.files.safe_open import read_regular
from provisioner.hostfactory.provider_config import format_value
from provisioner.hostfactory.templates import Invalid, tagged
from provisioner.names import SLOT_BLOCK, format_printable

MAX_COUNT = SLOT_BLOCK
"""Maximum number of machines in a request: ten times the largest maxNumber. A larger number is a mistake and would fill
the state files."""

MAX_NAMES = 100_000
"""Maximum number of machines in a return request. Their names stay in the state files until the return request is
trimmed."""

NAME_BYTES = 255
"""Maximum number of bytes of a name or id from HF. The full name of a host is never longer than 255 bytes."""

DOCUMENT_BYTES = 16 * 1024 * 1024
"""Maximum number of bytes of a document: enough for a list of a hundred thousand hosts whose names and ids have 50
characters each."""

MOST_VALUES = 7 * MAX_NAMES
"""Maximum number of values of a document that is parsed as a whole. Commas and brackets are counted as values. The
limit keeps the parsed document within memory."""

USAGE = (
    "usage: {command}.sh [--record TRACE] -f FILE, or {command}.sh JSON, or {command}.sh with JSON on standard input"
)

OPTIONAL_INPUT_SECONDS = 1.0
"""Seconds for which a command that needs no input waits for standard input if it was called without arguments. The
command's caller may keep a pipe open and send no input."""


class Refused(Exception):
    """Raised if a call cannot be answered. The call then records nothing and ends with exit code 1. The message is one
    line for HF."""


class Document:
    """The JSON object that HF sent, with the name of its source (for error messages)."""

    def __init__(self, source: str, content: bytes, trace: str = "") -> None:
        self.source = source
        self.content = content
        self.trace = trace
        """Path of the trace file to which the call is added, from the option ``--record``; empty without this
        option."""

    @cached_property
    def root(self) -> dict[str, object]:
        """Parse the whole object. Raises Refused if the content is not a JSON object."""
        return _root(self.source, self.content)

    def refused(self, where: str, words: str) -> Refused:
        """Return the error for a mistake in this document. ``where``: the JSON path of the mistake."""
        return Refused(f"{self.source}: {where}: {words}")

    def expected(self, where: str, words: str, value: object) -> Refused:
        """Return the error for a value that is not as expected. ``words``: a description of the expected value."""
        return self.refused(where, f"expected {words}, got {format_value(value)}")


def read(command: str, arguments: list[str], *, may_be_empty: bool = False, whole: bool = True) -> Document:
    """Read the input of a script call. The input is the JSON argument, or else the file after ``-f``, or else standard
    input. Raises Refused.

    If ``whole`` is False, the document may stay unparsed. ``host_lists`` then parses the document in pieces.
    """
    text, files = _split(command, arguments)
    if text is not None:
        source, content = "the argument", os.fsencode(text)
    elif "-f" in files:
        source = format_printable(files["-f"])
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
    if whole or trace:  # a trace stores only JSON documents, so refuse any other text before it is recorded
        document.root = _root(source, document.content)
    return document


def _split(command: str, arguments: list[str]) -> tuple[str | None, dict[str, str]]:
    """Return the JSON text among the arguments (None if there is none), and the file names after the options, by
    option. Raises Refused."""
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
    """Return all bytes of standard input. Return no bytes if standard input is a terminal, is closed, or sends nothing
    for ``seconds``. Raises Refused."""
    import select  # imported here because HostFactory always passes ``-f`` and then needs no standard input

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
        raise Refused(f"{source}: expected a JSON object, got {format_value(root)}")
    return root


# --- the values of each command's document ----------------------------------------------------------------------------


def requested(document: Document) -> tuple[str, int, str]:
    """Return the template, the number of machines and the account that requestMachines names. The account is empty if
    HF sends none. Raises Refused."""
    template = _required(document, document.root, "template")
    if not isinstance(template, dict):
        raise document.expected("template", "an object", template)
    name = text(document, "template.templateId", _required(document, template, "template.templateId"))
    account = document.root.get("rc_account")
    count = _required(document, template, "template.machineCount")
    rc_account = text(document, "rc_account", account) if isinstance(account, str) and account else ""
    return name, _count(document, count), rc_account


def filters(document: Document) -> list[tuple[str | None, Mapping[str, str]]]:
    """Return id and attributes of each filter that getAvailableTemplates names. If HF sends null or no filters, return
    an empty list. Raises Refused."""
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
    """Return the ids that getRequestStatus names, each only once, in HF's order. Raises Refused."""
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
    """Return the objects of a list in the document. A single object counts as a list of one. An empty object counts as
    an empty list. Raises Refused."""
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
    """Return the JSON path of entry ``index`` of the list ``key`` in HF's document."""
    return key if isinstance(document.root[key], dict) else f"{key}[{index}]"


def _required(document: Document, values: dict[str, object], where: str) -> object:
    """Return the value of a key in ``values``. ``where`` is the JSON path of the value in HF's document, and ends with
    the key. Raises Refused if the key is missing."""
    key = where.rpartition(".")[2]
    if key not in values:
        raise document.refused(where, "is missing")
    return values[key]


def text(document: Document, where: str, value: object) -> str:
    """Check that ``value`` can be a name or an id, and return it. Raises Refused if ``value`` is not a text, is empty,
    or is too long."""
    if not isinstance(value, str) or not value:
        raise document.expected(where, "a text", value)
    if is_too_long(value):
        raise document.expected(where, f"at most {NAME_BYTES} bytes", value)
    return value


def is_too_long(text: str) -> bool:
    return len(text[: NAME_BYTES + 1].encode("utf-8", "surrogatepass")) > NAME_BYTES


def _count(document: Document, value: object) -> int:
    """Return ``value`` as a whole number of at least 1. The number may be written as ``3.0`` or as a text of digits.
    Raises Refused."""
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    written = str(whole) if isinstance(whole, (int, str)) else ""
    if not (written.isascii() and written.isdigit() and len(written) < 20 and 1 <= int(written) <= MAX_COUNT):
        raise document.expected("template.machineCount", f"a whole number from 1 to {MAX_COUNT}", value)
    return int(written)
