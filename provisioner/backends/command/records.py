"""The records in the output of a list command. No I/O, no clock.

If any part of the output is not as declared, all of the output is refused (law: a failed observation is not an empty
observation).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from xml.etree import ElementTree

from provisioner.backends.command.settings import CommandPool, ListCommand

NEEDED = ("name", "id", "state")
FIELDS = (*NEEDED, "host", "address", "reason", "created", "started", "mark")
"""Fields of a record that the settings may name."""
CUT = "*"
"""Character that LSF puts before a name that LSF has shortened."""


class Record(NamedTuple):
    """A job as the place lists it. Fields that the settings do not name are empty."""

    name: str
    id: str
    state: str
    """The place's word for the state."""
    kind: str
    """The setting in ``states`` that contains this word, for example ``pending``."""
    host: str = ""
    address: str = ""
    reason: str = ""
    created: str = ""
    started: str = ""
    mark: str = ""

    @property
    def uid(self) -> str:
        """Return the identity of the job: its id, followed by the time of creation if the list shows this time."""
        return f"{self.id}.{self.created}" if self.created else self.id


def read_records(pool: CommandPool, output: str) -> list[Record]:
    """Return the records in the output of the list command. Raise ValueError if the output is not as declared."""
    kinds = {word: kind for kind in type(pool.states).model_fields for word in getattr(pool.states, kind)}
    try:
        return [_record(values, kinds) for values in _READERS[pool.list.format](pool.list, output)]
    except csv.Error as error:
        raise ValueError(str(error)) from error


def _record(values: Mapping[str, str], kinds: Mapping[str, str]) -> Record:
    for name in NEEDED:
        if not values.get(name):
            raise ValueError(f"a record has no {name}: {dict(values)}")
    if values["name"].startswith(CUT):
        raise ValueError(f"the name {values['name']!r} was cut: remove the width of its column from the list command")
    if (kind := kinds.get(values["state"])) is None:
        raise ValueError(f"the state {values['state']!r} of {values['name']} is not in states")
    return Record(kind=kind, **values)


def _values_of_lines(command: ListCommand, output: str) -> Iterator[dict[str, str]]:
    for line in output.splitlines()[command.skip :]:
        if (found := re.search(command.match or "", line)) is None:
            raise ValueError(f"a line is not matched by list.match: {line!r}")
        yield {name: value for name, value in found.groupdict(default="").items() if name in FIELDS}


def _values_of_columns(command: ListCommand, output: str) -> Iterator[dict[str, str]]:
    columns = {name: int(column) for name, column in command.fields.items()}
    for row in csv.reader(output.splitlines()[command.skip :], delimiter=command.separator):
        if len(row) < max(columns.values()):
            raise ValueError(f"a line has {len(row)} columns: {command.separator.join(row)!r}")
        yield {name: row[column - 1].strip() for name, column in columns.items()}


def _values_of_csv(command: ListCommand, output: str) -> Iterator[dict[str, str]]:
    rows = csv.DictReader(io.StringIO(output), delimiter=command.separator, strict=True)
    if missing := {*command.fields.values()} - {*(rows.fieldnames or ())}:
        raise ValueError(f"the header line has no column {', '.join(sorted(missing))}")
    for row in rows:
        if None in row or None in row.values():
            raise ValueError(f"line {rows.line_num} has another number of columns than the header")
        yield {name: row[column].strip() for name, column in command.fields.items()}


def _values_of_json(command: ListCommand, output: str) -> Iterator[dict[str, str]]:
    for item in _json_items(command, output):
        yield {name: _text(item.get(key)) for name, key in command.fields.items()}


def _values_of_xml(command: ListCommand, output: str) -> Iterator[dict[str, str]]:
    for element in _xml_items(command, output):
        yield {name: _xml_text(element, path) for name, path in command.fields.items()}


_READERS = {
    "lines": _values_of_lines,
    "separated": _values_of_columns,
    "csv": _values_of_csv,
    "json": _values_of_json,
    "xml": _values_of_xml,
}
"""Functions that yield the values of each record, by format."""


def _json_items(command: ListCommand, output: str) -> Sequence[Mapping[str, Any]]:
    document = json.loads(output)
    for key in (command.items or "").removeprefix("/").split("/") if command.items else ():
        if not isinstance(document, dict) or key not in document:
            raise ValueError(f"the output has no {command.items}")
        document = document[key]
    if not isinstance(document, list) or not all(isinstance(item, dict) for item in document):
        raise ValueError(f"{command.items or 'the output'} is not a list of records")
    return document


def _xml_items(command: ListCommand, output: str) -> Sequence[ElementTree.Element]:
    try:
        root = ElementTree.fromstring(output)
    except ElementTree.ParseError as error:
        raise ValueError(str(error)) from error
    return root.findall(command.items or "*")


def _xml_text(element: ElementTree.Element, path: str) -> str:
    """Return the text of the child element at ``path``. If ``path`` is ``@NAME``, return the attribute NAME."""
    found = element.get(path[1:]) if path.startswith("@") else element.findtext(path)
    return (found or "").strip()


def _text(value: object) -> str:
    """Return a JSON value as text. Raise ValueError for an object or a list."""
    if isinstance(value, dict | list):
        raise ValueError(f"a text was expected, not {value!r}")
    return "" if value is None else str(value)


def epoch(created: str, time_format: str | None) -> int:
    """Return a record's time as epoch seconds; 0 if the time is empty or ``time_format`` is None. A time without a zone
    is in this host's zone. Raise ValueError if the time has another format."""
    if not created or time_format is None:
        return 0
    if time_format == "epoch":
        return int(float(created))
    moment = datetime.strptime(created, time_format)  # noqa: DTZ007 - astimezone adds this host's zone
    return int(moment.astimezone(UTC).timestamp())


def host_name(text: str) -> str:
    """Return the host name in a scheduler's text. The text may be ``QUEUE@HOST`` (Grid Engine), ``4*HOST:HOST`` (LSF:
    the first host) or a plain name."""
    return re.split("[*@]", text.partition(":")[0])[-1]
