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
    """Program and its arguments, started without a shell. No default."""
    id: Pattern
    """Regular expression with the group ``id``, which finds the new job's id in the output. If the program succeeds
    without printing an id, the loop reads the list before it runs the program again. No default."""
    at_once: Calls = 4
    """Maximum number of these programs that run at once. Default 4."""


class ListCommand(Section):
    """The command that lists all machines. If the place can list machines that have ended, the command should list
    them, too."""

    argv: Argv
    """Program and arguments. No default."""
    format: Format
    """Format of the output. ``json``; ``xml``; ``csv``: with a header line; ``separated``: columns between
    ``separator``, without a header; ``lines``: each line is matched by ``match``. No default."""
    items: OptionalText = None
    """Position of the records in the output. For json: the key of the list of records, or a pointer such as
    ``/data/jobs``. For xml: a path such as ``.//job_list``. Default for json: the whole document is the list."""
    fields: Mapping[str, str] = Field(default_factory=dict)
    """Fields of a record. ``name``, ``id`` and ``state`` are needed; ``host``, ``address``, ``reason``, ``created``,
    ``started`` and ``mark`` are optional. Each value says where the output has this field: for ``json``, ``xml`` and
    ``csv`` the output's own name; for ``separated`` the column, counted from 1; for ``lines`` a group of ``match``.
    Default none."""
    separator: Separator = "|"
    """Character between the columns of the formats ``csv`` (usually ``,``) and ``separated``; default ``|``."""
    skip: Annotated[int, Field(ge=0), Expects("a whole number ≥ 0")] = 0
    """Lines to skip before the first record, for the formats ``separated`` and ``lines``; default 0."""
    match: OptionalPattern = None
    """Regular expression with named groups, for the format ``lines``. If a line does not match, the observation fails.
    Default none."""
    time_format: OptionalText = None
    """Format of ``created`` and ``started`` for strptime, or ``epoch``. Without a format, the loop does not read
    ``created`` as a time, but uses its text to identify a machine. The text must then stay the same for the whole life
    of a job. Default none."""
    host: OptionalText = None
    """Name or address of the host of all machines. Set this if the list does not show the host. Default none."""
    empty: Ending | None = None
    """Exit code and output that mean that there are no jobs. Set this if the command prints no list when there are no
    jobs. Default none: an empty output fails the observation."""


class DeleteCommand(Section):
    """The command that ends a machine."""

    argv: OptionalArgv = None
    """Program and arguments. The arguments must contain ``{id}``, because some schedulers end other jobs if no id is
    given. Default none: then set both ``pending`` and ``running``."""
    pending: OptionalArgv = None
    """Program and arguments that delete a machine in a queue, if the place needs another command for this. Default
    ``argv``."""
    running: OptionalArgv = None
    """Program and arguments that delete any other machine. Default ``argv``."""
    gone: Ending | None = None
    """Exit code and output that mean that the machine is already gone. Default none."""


class States(Section):
    """The place's words for the states of its jobs. An unknown word fails the observation."""

    pending: Words = ()
    """Words for a job that waits in a queue. Default none."""
    starting: Words = ()
    """Words for a job that has its node and begins. ``boot_deadline_seconds`` counts from this state. Default none."""
    running: Words
    """Words for a job that runs. No default."""
    suspended: Words = ()
    """Words for a job that the place has stopped for the time being. The machine counts as running, with a problem.
    Default none."""
    stopping: Words = ()
    """Words for a job that is being ended. Default none."""
    gone: Words = ()
    """Words for an ended job that the place still lists. Default none."""
    unknown: Words = ()
    """Words for a job whose present state the place does not know. The machine keeps its last state. Default none."""


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
    """The place's words for the states of a job. No default."""
    errors: Errors = ()
    """Patterns for the output of failed programs, each with an error class. The first match gives the class. A failure
    without a match has the class ``other``. If a pattern matches the error output of the list command, the list fails
    even with exit code 0. Default none."""
    reasons: Errors = ()
    """Patterns for the reasons in the list why jobs wait, each with an error class. With ``quota`` or ``stockout`` the
    machine moves to the next pool at once. A wait for any other reason is no error. Default none."""
    user: OptionalText = None
    """User of the jobs. Arguments contain this value as ``{user}``. Default none."""
    variables: Variables = Field(default_factory=dict)
    """Further placeholders that arguments may contain, with their values. Default none."""
    template_variables: Mapping[str, Variables] = Field(default_factory=dict)
    """Values for single templates, by templateId, that replace values of ``variables``. Each variable needs a value in
    ``variables``, too. Default none."""
    environment: Mapping[str, str] = Field(default_factory=dict)
    """Environment variables of the programs. Besides these, the programs get only HOME, PATH and LANG=C.UTF-8. Default
    none."""
    credentials: OptionalSecretFile = None
    """File with a secret. Each program gets the file's content in the environment variable that
    ``credentials_variable`` names. The file is read before each start of a program. Default none."""
    credentials_variable: Text = "PLACE_TOKEN"
    """Environment variable with the content of ``credentials``. Default PLACE_TOKEN."""
    time_out_seconds: TimeOut = 30.0
    """Seconds that a program may run. Then its processes get SIGTERM, and 5 seconds later SIGKILL. At most 30, because
    a new loop waits only about 45 seconds for the old loop's programs. Default 30."""
    calls_per_minute: Calls = 120
    """Maximum number of programs that the loop starts in any minute. Default 120."""
    exclusive: Switch = True
    """True: no two machines share a host and its name. Set false if the place does not guarantee this. Default true."""
    cleanup: Switch = False
    """True: the place lists ended jobs until the delete command removes them, so the loop runs this command for ended
    jobs, too. Default false."""
    lag_seconds: DurationOrZero = 30.0
    """The loop counts a machine as gone after two observations that lack the machine and begin at least this many
    seconds apart. Default 30, because many schedulers list a new job late."""
    observe_seconds: Duration = 10.0
    """Seconds between two observations. Each observation runs a program. Default 10."""

    read_at_start: ClassVar[tuple[str, ...]] = (*Pool.read_at_start, "calls_per_minute")

    @property
    def where(self) -> str:
        """Return the place of the pool in words, by the program that lists its machines."""
        return f"what {self.list.argv[0]} lists"

    @property
    def identity(self) -> tuple[str, ...]:
        """Return a key of the pool. Two pools have the same key if they run the same list command in the same way and
        the list shows no marks. Such pools could not distinguish their machines."""
        marked = self.name if self.has_marks else ""
        return ("command", *self.list.argv, str(sorted(self.environment.items())), str(self.user), marked)

    def finds_id(self, output: str) -> bool:
        """Return True if the output of the create command contains an id."""
        found = re.search(self.create.id, output)
        return found is not None and bool(found["id"])

    @property
    def has_marks(self) -> bool:
        """Return True if the list shows the machines' marks. Several pools can then share a place."""
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
