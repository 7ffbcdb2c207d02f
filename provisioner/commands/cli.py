"""The command ``provisioner``: its commands, and what ends them.

Exit codes: 0 fine, 1 a problem found, 2 wrong usage or configuration, 130 Ctrl-C.
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

from provisioner import __version__
from provisioner.backends import BackendError
from provisioner.commands.shared_options import FINE, PROBLEM, WRONG, UsageError
from provisioner.files.config_error import ConfigError
from provisioner.hostfactory.instance import DirectoryError, TemplatesError
from provisioner.names import printable_lines
from provisioner.optional_packages import MissingExtra, extra, needing
from provisioner.state.errors import StateError
from provisioner.telemetry import logs

log = logging.getLogger(__name__)

STDOUT, STDERR = 1, 2
"""Descriptors that every process is given, the last of them."""

WRONG_ERRORS = (ConfigError, UsageError, DirectoryError, TemplatesError, MissingExtra)
"""Errors of the call or the configuration; a BackendError is one of a pool that names no cluster or group."""

EXIT_CODES = "Exit codes: 0 fine, 1 a problem was found, 2 wrong usage or configuration, 130 ended by Ctrl-C."


AddOptions = Callable[[argparse.ArgumentParser], None]
Run = Callable[[argparse.Namespace], int]


class CommandEntry(NamedTuple):
    """A command as ``provisioner --help`` lists it."""

    name: str
    text: str
    aliases: tuple[str, ...] = ()
    home: str = ""
    """Module that holds several commands, in its ``COMMANDS``; empty if the command has a module of its own name."""
    extra: str = "loop"
    """Extra that the command's packages come with."""
    is_in_lab: bool = False
    """True for a command of the laboratory, which no other module of the product imports."""

    def load(self) -> tuple[AddOptions, Run]:
        """Import the module that holds the command; return its ``add_options`` and ``run``. Raises MissingExtra."""
        package = "provisioner.lab.commands" if self.is_in_lab else "provisioner.commands"
        with needing(extra(self.extra)):
            module: Any = import_module(f"{package}.{self.home or self.name.replace('-', '_')}")
        return module.COMMANDS[self.name] if self.home else (module.add_options, module.run)


COMMANDS = (
    CommandEntry("run", "Run the loop: hold pressure until SIGTERM."),
    CommandEntry(
        "demo", "Play HostFactory against the embedded cloud, and judge each step.", extra="demo", is_in_lab=True
    ),
    CommandEntry("simulator", "Run the embedded cloud.", extra="demo", is_in_lab=True),
    CommandEntry(
        "simulate",
        "Play the loop in virtual time: thousands of machines, days of faults, in seconds. Touches no cloud and no "
        "state; prints how fast machines are there, at what price, and whether a law was broken.",
        extra="simulate",
        is_in_lab=True,
    ),
    CommandEntry("init", "Create intent.json in a new state directory.", ("initializeDB",), "state_files"),
    CommandEntry("status", "Show what the state files hold."),
    CommandEntry(
        "explain",
        "Tell the timeline of a request, a return request, a machine or a pool: what happened when, how it stands, and "
        "what comes next. Reads the state files and the journal alone.",
    ),
    CommandEntry("usage", "Show machine-hours and what they cost, by day, template, pool and account."),
    CommandEntry("plan", "Show what the next cycle would do; touches nothing."),
    CommandEntry("doctor", "Ask everything at once, each answer with what to do; and pack it for support."),
    CommandEntry(
        "diff", "Compare HostFactory's last list, the memory and the clouds, machine by machine; touches nothing."
    ),
    CommandEntry("pause", "Keep new machines from a pool.", home="holds"),
    CommandEntry("resume", "Let go of what pauses or drains a pool.", home="holds"),
    CommandEntry(
        "drain", "Keep new machines from a pool, and ask HostFactory to give its machines back.", home="holds"
    ),
    CommandEntry("cancel", "End an open request with what it got, or ask HostFactory for one machine.", home="holds"),
    CommandEntry("stop-all", "Make and delete no machine; the scripts answer on.", home="holds"),
    CommandEntry("start-all", "Let go of stop-all.", home="holds"),
    CommandEntry(
        "events",
        "Print the messages of the Pub/Sub subscription and what each is good for. What is printed is taken: a loop "
        "that runs meanwhile gets the others only, and sees by looking what it would have been told.",
        extra="events",
    ),
    CommandEntry("check", "Check the configuration; every mistake at once."),
    CommandEntry(
        "settings", "Print every setting with its default and why, as a page or as a JSON schema for editors."
    ),
    CommandEntry("render-hf", "Write HostFactory's files for a provider instance, from one settings file."),
    CommandEntry(
        "configmap", "Print the ConfigMap of the loop's pod, from the directory that HostFactory's scripts read."
    ),
    CommandEntry("replay", "Play a recorded trace of HostFactory's calls against the scripts.", is_in_lab=True),
    CommandEntry("completion", "Print what a shell needs to complete commands, options and files."),
    CommandEntry(
        "trim", "Let ended requests leave the state files, as a running loop does by itself.", home="state_files"
    ),
    CommandEntry("dump", "Save what a state directory must not lose, while scripts and loop go on.", home="backup"),
    CommandEntry(
        "restore",
        "Put a dump back where the state directory was lost. The next loop begins with the brake latched.",
        home="backup",
    ),
    CommandEntry(
        "recover",
        "Show what is wrong with the state files, why the brake is latched, and what a release sets going: which "
        "machines are deleted, and when, and which requests are cancelled. Changes nothing without a flag.",
    ),
)


class Command(argparse.ArgumentParser):
    """The parser of one command. Its module is imported when the command is called, and not for the others."""

    entry: CommandEntry | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, once the module has added its options; what is unknown is told with these."""
        self.actions()
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def actions(self) -> list[argparse.Action]:
        """The command's options, which its module has added."""
        if self.entry is not None:
            entry, self.entry = self.entry, None
            add_options, run = entry.load()
            add_options(self)
            self.set_defaults(command=run, extra=entry.extra)
        return self._actions


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console script; ends the process with one of the three codes, and never with a traceback."""
    _open_what_is_closed()
    sys.stdout, sys.stderr = _screen(sys.stdout), _screen(sys.stderr)
    try:
        code = run(sys.argv[1:] if arguments is None else arguments)
    except Exception as error:  # no traceback reaches a person: the sentence tells what to do
        code = PROBLEM
        if isinstance(error, OSError):
            _discard_output()
            print(_refused_message(error), file=sys.stderr)
        else:
            log.debug("Internal error", exc_info=True)
            print(_broken_message(error), file=sys.stderr)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Do what the arguments say; returns the exit code."""
    try:
        with needing(extra("loop")):
            options = parser().parse_args(arguments)
            logs.configure(options.log_level)
        with needing(extra(options.extra)):
            code: int = options.command(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has closed it
        _discard_output()
        return FINE
    except (*WRONG_ERRORS, BackendError, StateError) as error:
        lines = error.lines if isinstance(error, BackendError) else [error]
        print(*lines, sep="\n", file=sys.stderr)
        return PROBLEM if isinstance(error, StateError) else WRONG
    return code


def _open_what_is_closed() -> None:
    """Open the null device for a closed stdin, stdout or stderr, so that no other file gets its number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(STDOUT, "w")
    sys.stderr = sys.stderr or os.fdopen(STDERR, "w")


class _Screen(io.TextIOWrapper):
    """A standard stream that shows words from outside without their control characters."""

    is_drawn_on = False
    """True while rich steers the terminal: the words that it draws are printable already."""

    def write(self, text: str) -> int:
        """Write the text without control characters; with escapes for those that the stream's encoding lacks."""
        super().write(text if self.is_drawn_on else printable_lines(text))
        return len(text)


def _screen(stream: TextIO) -> TextIO:
    """Return the stream as a ``_Screen``; a stream that another program has put in its place stays."""
    if type(stream) is not io.TextIOWrapper:
        return stream
    encoding, lines = stream.encoding, stream.line_buffering
    return _Screen(stream.detach(), encoding=encoding, errors="backslashreplace", line_buffering=lines)


def _discard_output() -> None:
    """Print the rest to the null device, also what Python prints at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refused_message(error: OSError) -> str:
    """Return the refusal of the operating system; without a file's name it is of our output, as on a full disk."""
    return (
        f"The operating system refused {error.filename or 'a write to our output'}: {error.strerror or error}. See to "
        "disk space, rights and mounts there, then try again."
    )


def _broken_message(error: Exception) -> str:
    """Return the place of a mistake in this program, and what to do."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    words = " ".join(str(error).split())
    return (
        f"Internal error at {frame.filename}:{frame.lineno}: {type(error).__name__}: {words}. State files are written "
        "whole, so they are as they were; try again. If it comes again, report this line, and what "
        "`provisioner --log-level DEBUG …` logs."
    )


def parser() -> argparse.ArgumentParser:
    """The commands; each adds its options when it is called."""
    top = argparse.ArgumentParser(
        prog="provisioner", description="HostFactory provisioner for Google Cloud.", epilog=EXIT_CODES
    )
    top.add_argument("--version", action="version", version=f"provisioner {__version__}")
    top.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"], help="default INFO")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=Command)
    for entry in COMMANDS:
        command = commands.add_parser(entry.name, help=entry.text, description=entry.text, aliases=entry.aliases)
        command.entry = entry
    return top


def commands_of(top: argparse.ArgumentParser) -> list[Command]:
    """The parsers of all commands, each once."""
    (choices,) = (action.choices for action in top._actions if isinstance(action, argparse._SubParsersAction))
    return list(dict.fromkeys(choices.values()))
