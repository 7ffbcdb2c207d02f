"""The settings of a pool whose machines are made by commands. No I/O, no clock, no logger."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, StringConstraints

from provisioner.model import ErrorClass, Phase
from provisioner.schema.setting_types import (
    Argv,
    Duration,
    DurationOrZero,
    OptionalSecretFile,
    OptionalText,
    Pool,
    Switch,
    Text,
)
from provisioner.schema.validation import Expects, Section


def _check_pattern(text: str) -> str:
    """Return the text. Raise ValueError if the text is not a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(str(error)) from error
    return text


Pattern = Annotated[str, AfterValidator(_check_pattern), Expects("a regular expression")]
OptionalPattern = Pattern | None
OptionalArgv = Argv | None
Codes = Annotated[tuple[int, ...], Field(strict=False), Expects("a list of exit codes")]
Words = Annotated[tuple[str, ...], Field(strict=False), Expects("a list of the place's words")]
Class = Annotated[
    Literal["throttled", "stockout", "quota", "denied", "invalid", "unavailable", "not_found", "other"],
    Expects("an error class: throttled, stockout, quota, denied, invalid, unavailable, not_found or other"),
]
Format = Annotated[Literal["json", "csv", "separated", "xml", "lines"], Expects("json, csv, separated, xml or lines")]
Errors = Annotated[tuple["ErrorPattern", ...], Field(strict=False), Expects("a list of class and match")]
Separator = Annotated[str, StringConstraints(min_length=1, max_length=1), Expects("one character")]
Variables = Annotated[Mapping[str, str | int | float], Expects("a mapping of names to values")]
TimeOut = Annotated[float, Field(gt=0, le=30), Expects("a number > 0, at most 30")]
Calls = Annotated[int, Field(ge=1), Expects("a whole number ≥ 1")]

FORMATTER = string.Formatter()


class Ending(Section):
    """The exit codes and outputs of a program that have a special meaning."""

    exit: Codes = (0,)
    """Exit codes; default 0."""
    match: OptionalPattern = None
    """Regular expression that the program's output or error output must also match; default none."""


class CreateCommand(Section):
    """The command that makes a machine."""

    argv: Argv
    """Program and arguments, never run by a shell. No default."""
    id: Pattern
    """Regular expression with the group ``id`` that finds the id of the new job in the output. A success without an id
    counts as uncertain. No default."""
    at_once: Calls = 4
    """Processes at a time; default 4."""


class ListCommand(Section):
    """The command that lists all machines. If the place can list machines that have ended, the command should list
    them, too."""

    argv: Argv
    """Program and arguments. No default."""
    format: Annotated[
        Literal["json", "csv", "separated", "xml", "lines"], Expects("json, csv, separated, xml or lines")
    ]
    """Format of the output: ``json``; ``csv`` with a header line; ``separated`` by ``separator`` without a header;
    ``xml``; ``lines``, of which each is matched by ``match``. No default."""
    items: OptionalText = None
    """Position of the records in the output: for json the key of their list, or a pointer such as ``/data/jobs``; for
    xml a path such as ``.//job_list``. Default for json: the document itself is the list."""
    fields: Mapping[str, str] = Field(default_factory=dict)
    """Names of the fields of a record: ``name``, ``id`` and ``state`` are needed; ``host``, ``address``, ``reason``,
    ``created``, ``started`` and ``mark`` are optional. For ``separated`` the fields' columns, counted from 1; for
    ``lines`` the groups of ``match``. Default none."""
    separator: Separator = "|"
    """Character between the columns of the formats ``csv`` (usually ``,``) and ``separated``; default ``|``."""
    skip: Annotated[int, Field(ge=0), Expects("a whole number ≥ 0")] = 0
    """Lines to skip before the first record, for the formats ``separated`` and ``lines``; default 0."""
    match: OptionalPattern = None
    """Regular expression with named groups that each line must match, for the format ``lines``. A line that does not
    match fails the observation. Default none."""
    time_format: OptionalText = None
    """Format of ``created`` and ``started`` for strptime, or ``epoch``; default none. Without a format, ``created`` is
    not read as a time, but still identifies a machine, so it must stay the same for the whole life of a job."""
    host: OptionalText = None
    """Name or address of the host of all machines, if the list does not show it; default none."""
    empty: Ending | None = None
    """Exit code and output of the command if there are no jobs, for a command that then prints nothing. Default none:
    an empty output fails the observation."""


class DeleteCommand(Section):
    """The command that ends a machine."""

    argv: OptionalArgv = None
    """Program and arguments. The arguments must contain ``{id}``, because some schedulers end other jobs if no id is
    given. Default none; ``pending`` and ``running`` are then needed."""
    pending: OptionalArgv = None
    """Program and arguments for a machine that waits, if the place needs another command for it; default ``argv``."""
    running: OptionalArgv = None
    """Program and arguments for a machine that does not wait; default ``argv``."""
    gone: Ending | None = None
    """Exit code and output of the command if the machine was gone already; default none."""


class States(Section):
    """The place's words for the states of its jobs. An unknown word fails the observation."""

    pending: Words = ()
    """The job waits in a queue; default none."""
    starting: Words = ()
    """The job has its node and begins. ``boot_deadline_seconds`` counts from this state. Default none."""
    running: Words
    """The job runs. No default."""
    suspended: Words = ()
    """The job has begun, and the place has stopped it for the time being. The machine counts as running, with a
    problem. Default none."""
    stopping: Words = ()
    """The job is being ended; default none."""
    gone: Words = ()
    """The job has ended, and the place still lists it; default none."""
    unknown: Words = ()
    """The place does not know the present state of the job. The machine keeps its last state. Default none."""


class ErrorPattern(Section):
    """A text of the place and the error class that it means."""

    error: Class
    """Class of the error. No default."""
    match: Pattern
    """Regular expression that the text must match. No default."""


class CommandPool(Pool):
    """Jobs of a scheduler, made, listed and ended by its commands."""

    kind: Literal["command"] = "command"
    """Kind of the place."""
    create: CreateCommand
    """Command that makes a machine. No default."""
    list: ListCommand
    """Command that lists all machines. No default."""
    delete: DeleteCommand
    """Command that ends a machine. No default."""
    states: States
    """The place's words for states. No default."""
    errors: Errors = ()
    """Error classes by the output of a program that fails; the first match counts. A failure without a match is
    ``other``. A match in the error output of the list command counts even if the exit code is 0. Default none."""
    reasons: Errors = ()
    """Error classes by the reason for which a job waits. A class such as quota sends the machine to the next pool. A
    wait for any other reason is no error. Default none."""
    user: OptionalText = None
    """User of the jobs, for ``{user}``; default none."""
    variables: Variables = Field(default_factory=dict)
    """Further placeholders of arguments, with their values; default none."""
    template_variables: Mapping[str, Variables] = Field(default_factory=dict)
    """Values of variables for single templates, by templateId; default none. Every variable needs a value in
    ``variables``, too."""
    environment: Mapping[str, str] = Field(default_factory=dict)
    """Further variables of the programs. Besides these, the programs get only HOME, LANG=C.UTF-8 and PATH. Default
    none."""
    credentials: OptionalSecretFile = None
    """File that is read anew before each process, for the variable ``credentials_variable``; default none."""
    credentials_variable: Text = "PLACE_TOKEN"
    """Variable with the content of ``credentials``; default PLACE_TOKEN."""
    time_out_seconds: TimeOut = 30.0
    """Longest run of a program in seconds; default 30, which is the most, because a new loop waits for the old loop's
    programs. A program that takes longer is ended, and 5 seconds later killed, with all its processes."""
    calls_per_minute: Calls = 120
    """Maximum number of programs that are started in any minute; default 120."""
    exclusive: Switch = True
    """True: no two machines share a host and its name; default true. Set false if the place does not guarantee this."""
    cleanup: Switch = False
    """True: the place keeps records of ended jobs until the delete command deletes them; default false."""
    lag_seconds: DurationOrZero = 30.0
    """Minimum seconds between the starts of two observations that prove that a machine is gone; default 30, because
    many schedulers list a new job late."""
    observe_seconds: Duration = 10.0
    """Seconds between two observations; default 10. Each observation runs a program."""

    read_at_start: ClassVar[tuple[str, ...]] = (*Pool.read_at_start, "calls_per_minute")

    @property
    def where(self) -> str:
        """Return the program that lists the machines."""
        return f"what {self.list.argv[0]} lists"

    @property
    def identity(self) -> tuple[str, ...]:
        """Return a key that two pools share if they list the same machines and the list shows no marks."""
        marked = self.name if self.has_marks else ""
        return ("command", *self.list.argv, str(sorted(self.environment.items())), str(self.user), marked)

    def finds_id(self, output: str) -> bool:
        """Return True if the output of the create command contains an id."""
        found = re.search(self.create.id, output)
        return found is not None and bool(found["id"])

    @property
    def has_marks(self) -> bool:
        """Return True if the list shows the marks of machines, so that several pools can share a place."""
        return "mark" in self.list.fields or "(?P<mark>" in (self.list.match or "")

    def class_of(self, patterns: Sequence[ErrorPattern], text: str) -> ErrorClass | None:
        """Return the class of the first pattern that the text matches; None if no pattern matches."""
        return next((ErrorClass(one.error) for one in patterns if re.search(one.match, text)), None)

    def argvs(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the setting and the arguments of each command."""
        yield "create.argv", self.create.argv
        yield "list.argv", self.list.argv
        for name in ("argv", "pending", "running"):
            if (argv := getattr(self.delete, name)) is not None:
                yield f"delete.{name}", argv


STATE_PHASES: Mapping[str, Phase] = {
    "pending": Phase.PENDING,
    "starting": Phase.PENDING,
    "running": Phase.RUNNING,
    "suspended": Phase.RUNNING,
    "stopping": Phase.STOPPING,
    "gone": Phase.GONE,
}
"""Phases of the settings of ``states``."""


def placeholders(text: str) -> set[str]:
    """Return the names of the placeholders in an argument. Raise ValueError for unbalanced braces."""
    return {name for _, name, _, _ in FORMATTER.parse(text) if name is not None}
