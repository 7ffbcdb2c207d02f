"""The command ``provisioner`` with its subcommands.

A command ends with one of these exit codes:

* 0: success
* 1: the command found a problem
* 2: wrong usage or configuration
* 130: Ctrl-C
* 141: the reader of the output has closed the output
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, TextIO

from provisioner.backends import BackendError
from provisioner.commands.shared_options import PROBLEM, WRONG, UsageError
from provisioner.files.config_error import ConfigError
from provisioner.files.version import full_version
from provisioner.hostfactory.provider_config import DirectoryError, TemplatesError
from provisioner.names import format_printable_lines
from provisioner.optional_packages import MissingExtra, extra, require_packages
from provisioner.process_end import CLOSED_PIPE, CommandFailed
from provisioner.state.errors import StateError, advice_message
from provisioner.telemetry import logs

log = logging.getLogger(__name__)

STDOUT, STDERR = 1, 2
"""File descriptors of standard output and standard error."""

WRONG_ERRORS = (ConfigError, UsageError, DirectoryError, TemplatesError, MissingExtra)
"""Errors in the call or in the configuration, which end the process with exit code WRONG. A BackendError that reaches
``run`` also ends the process with WRONG."""

EXIT_CODES = (
    "Exit codes: 0 fine, 1 a problem was found, 2 wrong usage or configuration, 130 ended by Ctrl-C, 141 the reader "
    "closed the output."
)


AddOptions = Callable[[argparse.ArgumentParser], None]
Run = Callable[[argparse.Namespace], int]


class CommandEntry(NamedTuple):
    """A command as ``provisioner --help`` lists it."""

    name: str
    text: str
    aliases: tuple[str, ...] = ()
    home: str = ""
    """Module whose ``COMMANDS`` contains the command; empty if the module has the name of the command."""
    extra: str = "loop"
    """Extra of the distribution (``pip install hostfactory-provisioner[EXTRA]``) with the packages that the command
    needs."""
    is_in_lab: bool = False
    """True for a command of the laboratory (``provisioner.lab``)."""

    def load(self) -> tuple[AddOptions, Run]:
        """Import the command's module, and return its ``add_options`` and ``run``. Raises MissingExtra."""
        package = "provisioner.lab.commands" if self.is_in_lab else "provisioner.commands"
        with require_packages(extra(self.extra)):
            module: Any = import_module(f"{package}.{self.home or self.name.replace('-', '_')}")
        return module.COMMANDS[self.name] if self.home else (module.add_options, module.run)


COMMANDS = (
    CommandEntry("run", "Run the loop until SIGTERM."),
    CommandEntry(
        "demo", "Play HostFactory against the embedded cloud, and judge each step.", extra="demo", is_in_lab=True
    ),
    CommandEntry("simulator", "Run the embedded cloud.", extra="demo", is_in_lab=True),
    CommandEntry(
        "simulate",
        "Play the loop in virtual time: thousands of machines, days of faults, in seconds. Touches no cloud and no "
        "state; prints the time until machines run, their cost, and broken laws.",
        extra="simulate",
        is_in_lab=True,
    ),
    CommandEntry(
        "demand", "Request and return machines as HostFactory does: as many as the sources in demand.yaml want."
    ),
    CommandEntry("init", "Create intent.json in a new state directory.", ("initializeDB",), "init_and_trim"),
    CommandEntry("status", "Show what the state files hold."),
    CommandEntry(
        "explain",
        "Show the timeline of a request, a return request, a machine or a pool: past events with their times, present "
        "state, and next steps. Reads only the state files and the journal.",
    ),
    CommandEntry("usage", "Show machine-hours and what they cost, by day, template, pool and account."),
    CommandEntry("plan", "Show what the next cycle would do; touches nothing."),
    CommandEntry("doctor", "Run every check at once, and show each problem with its remedy; --bundle packs all."),
    CommandEntry(
        "diff", "Compare HostFactory's list of machines, the memory and the clouds, by machine; changes nothing."
    ),
    CommandEntry("request", "Request machines of a template by HostFactory's scripts.", home="requests"),
    CommandEntry("return", "Return machines by HostFactory's scripts.", home="requests"),
    CommandEntry("requests", "Show the requests of `provisioner request` and their machines.", home="requests"),
    CommandEntry("pause", "Create no new machines in a pool.", home="holds"),
    CommandEntry("resume", "Release a pause or drain of a pool.", home="holds"),
    CommandEntry("drain", "Create no new machines in a pool; ask HostFactory to return its machines.", home="holds"),
    CommandEntry(
        "cancel", "End an open request with its running machines, or ask HostFactory to return a machine.", home="holds"
    ),
    CommandEntry("stop-all", "Make and delete no machine; the scripts still answer.", home="holds"),
    CommandEntry("start-all", "Release stop-all.", home="holds"),
    CommandEntry(
        "events",
        "Print the messages of the Pub/Sub subscription, and how the loop would use each. A printed message is "
        "consumed: a running loop does not receive it, and detects the end of that machine by observation.",
        extra="events",
    ),
    CommandEntry("check", "Check the configuration; report every mistake at once."),
    CommandEntry(
        "settings", "Print every setting with its default and reason, as a page or as a JSON schema for editors."
    ),
    CommandEntry("render-hf", "Write HostFactory's files for a provider instance, from one settings file."),
    CommandEntry(
        "configmap", "Print the ConfigMap of the loop's pod, from the directory that HostFactory's scripts read."
    ),
    CommandEntry("replay", "Play a recorded trace of HostFactory's calls against the scripts.", is_in_lab=True),
    CommandEntry(
        "new-kind",
        "Write the skeleton of a distribution that adds a kind of place, with the tests of all kinds.",
        is_in_lab=True,
    ),
    CommandEntry("completion", "Print the code with which a shell completes commands, options and files."),
    CommandEntry(
        "trim", "Remove ended requests from the state files, as a running loop does by itself.", home="init_and_trim"
    ),
    CommandEntry("state", "Copy the state from files into a Kubernetes API, or back."),
    CommandEntry(
        "dump", "Save the state directory in one file, while scripts and loop continue.", home="dump_and_restore"
    ),
    CommandEntry(
        "restore",
        "Put a dump back after the state directory was lost. The next loop begins with the brake latched.",
        home="dump_and_restore",
    ),
    CommandEntry(
        "recover",
        "Show problems of the state files, the reason of a latched brake, and the effects of its release: which "
        "machines are deleted, and when, and which requests are cancelled. Changes nothing without a flag.",
    ),
)


class Command(argparse.ArgumentParser):
    """The parser of a command, which imports the command's module only when the command is called."""

    entry: CommandEntry | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Let the command's module add its options, then parse the arguments. An unknown argument is reported as an
        error of this command."""
        self.actions()
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def actions(self) -> list[argparse.Action]:
        """Let the command's module add the command's options, unless it has added them already. Return the options."""
        if self.entry is not None:
            entry, self.entry = self.entry, None
            add_options, run = entry.load()
            add_options(self)
            self.set_defaults(command=run, extra=entry.extra)
        return self._actions


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. End the process with one of the exit codes, and never with a traceback."""
    _open_closed_streams()
    sys.stdout, sys.stderr = _screen(sys.stdout), _screen(sys.stderr)
    try:
        code = run(sys.argv[1:] if arguments is None else arguments)
    except BrokenPipeError:
        code = CLOSED_PIPE
        _discard_output()
    except Exception as error:  # an operator needs a message with a remedy instead of a traceback
        code = PROBLEM
        if isinstance(error, OSError):
            _discard_output()
            print(_refused_message(error), file=sys.stderr)
        else:
            log.debug("Internal error", exc_info=True)
            print(_internal_error_message(error), file=sys.stderr)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name, and return its exit code."""
    try:
        with require_packages(extra("loop")):
            options = parser().parse_args(arguments)
            logs.configure(options.log_level)
        with require_packages(extra(options.extra)):
            code: int = options.command(options)
        sys.stdout.flush()
    except (*WRONG_ERRORS, BackendError, StateError, CommandFailed) as error:
        lines = error.lines if isinstance(error, BackendError) else [error]
        print(*lines, sep="\n", file=sys.stderr)
        return PROBLEM if isinstance(error, (StateError, CommandFailed)) else WRONG
    return code


def _open_closed_streams() -> None:
    """Open the null device in place of a closed stdin, stdout or stderr. Otherwise a file that is opened later would
    get the number of the closed stream."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(STDOUT, "w")
    sys.stderr = sys.stderr or os.fdopen(STDERR, "w")


class _Screen(io.TextIOWrapper):
    """A standard stream that removes control characters from texts. Texts of clouds and files may contain such
    characters."""

    is_drawn_on = False
    """True while the package rich draws on the terminal. Then control characters are kept, because rich writes them."""

    def write(self, text: str) -> int:
        """Write the text without control characters. Characters that the stream's encoding lacks are escaped."""
        super().write(text if self.is_drawn_on else format_printable_lines(text))
        return len(text)


def _screen(stream: TextIO) -> TextIO:
    """Return the stream as a ``_Screen``. If the stream was replaced, for example by a test, return it unchanged."""
    if type(stream) is not io.TextIOWrapper:
        return stream
    encoding, lines = stream.encoding, stream.line_buffering
    return _Screen(stream.detach(), encoding=encoding, errors="backslashreplace", line_buffering=lines)


def _discard_output() -> None:
    """Redirect standard output to the null device. Python then also discards the text that it flushes at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refused_message(error: OSError) -> str:
    """Return the message about an error of the operating system. If the error names no file, the operating system
    refused a write to standard output."""
    refused = error.filename or "a write to our output"
    return (
        f"The operating system refused {refused}: {error.strerror or error}. {advice_message(error)}, then try again."
    )


def _internal_error_message(error: Exception) -> str:
    """Return the message about a bug of this program: the line of code, and the next steps of the operator."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    words = " ".join(str(error).split())
    return (
        f"Internal error at {frame.filename}:{frame.lineno}: {type(error).__name__}: {words}. State files are "
        "replaced as a whole, so they are intact; try again. If the error repeats, report this line, and the log of "
        "`provisioner --log-level DEBUG …`."
    )


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands. A command's own options are added when the command is called."""
    top = argparse.ArgumentParser(
        prog="provisioner", description="HostFactory provisioner for Google Cloud.", epilog=EXIT_CODES
    )
    top.add_argument("--version", action="version", version=f"provisioner {full_version()}")
    top.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"], help="default INFO")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=Command)
    for entry in COMMANDS:
        command = commands.add_parser(entry.name, help=entry.text, description=entry.text, aliases=entry.aliases)
        command.entry = entry
    return top


def commands_of(top: argparse.ArgumentParser) -> list[Command]:
    """Return the parsers of all commands. A command with aliases is returned only once."""
    (choices,) = (action.choices for action in top._actions if isinstance(action, argparse._SubParsersAction))
    return list(dict.fromkeys(choices.values()))
