"""The command ``provisioner``: its commands, and what ends them.

Exit codes: 0 fine, 1 a problem found, 2 wrong usage or configuration, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from provisioner import __version__
from provisioner.backends import BackendError
from provisioner.commands.options import FINE, PROBLEM, WRONG, UsageError
from provisioner.extras import MissingExtra
from provisioner.hostfactory.environment import DirectoryError
from provisioner.hostfactory.templates import TemplatesError
from provisioner.schema.problems import ConfigError
from provisioner.state.errors import StateError
from provisioner.telemetry import logs

EXIT_CODES = "Exit codes: 0 fine, 1 a problem was found, 2 wrong usage or configuration, 130 ended by Ctrl-C."


@dataclass(frozen=True)
class Entry:
    """A command as ``provisioner --help`` lists it."""

    name: str
    text: str
    aliases: tuple[str, ...] = ()

    @property
    def module(self) -> CommandModule:
        """The module of this package that is named as the command is."""
        return cast(CommandModule, import_module(f"provisioner.commands.{self.name.replace('-', '_')}"))


class CommandModule(Protocol):
    """What the module of a command holds."""

    def add_options(self, command: argparse.ArgumentParser) -> None:
        """Add the options that the command takes."""

    def run(self, options: argparse.Namespace) -> int:
        """Do what the options say; returns the exit code."""


COMMANDS = (
    Entry("run", "Run the loop: hold pressure until SIGTERM."),
    Entry("demo", "Play HostFactory against the embedded cloud, and judge each step."),
    Entry("simulator", "Run the embedded cloud."),
    Entry(
        "simulate",
        "Play the loop in virtual time: thousands of machines, days of faults, in seconds. Touches no cloud and no "
        "state; prints how fast machines are there, at what price, and whether a law was broken.",
    ),
    Entry("init", "Create intent.json in a new state directory.", ("initializeDB",)),
    Entry("status", "Show what the state files hold."),
    Entry("plan", "Show what the next cycle would do; touches nothing."),
    Entry(
        "events",
        "Print the messages of the Pub/Sub subscription and what each is good for. What is printed is taken: a loop "
        "that runs meanwhile gets the others only, and sees by looking what it would have been told.",
    ),
    Entry("check", "Check the configuration; every mistake at once."),
    Entry("settings", "Print every setting with its default and why, as a page or as a JSON schema for editors."),
    Entry("render-hf", "Write HostFactory's files for a provider instance, from one settings file."),
    Entry("replay", "Play a recorded trace of HostFactory's calls against the scripts."),
    Entry("trim", "Let ended requests leave the state files, as a running loop does by itself."),
    Entry(
        "recover",
        "Show what is wrong with the state files, why the brake is latched, and what a release sets going: which "
        "machines are deleted, and when, and which requests are cancelled. Changes nothing without a flag.",
    ),
)


class Command(argparse.ArgumentParser):
    """The parser of one command. Its module is imported when the command is called, and not for the others."""

    entry: Entry | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, once the module has added its options."""
        if self.entry is not None:
            module, self.entry = self.entry.module, None
            module.add_options(self)
            self.set_defaults(command=module.run)
        return super().parse_known_args(args, namespace)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console script; ends the process with one of the three codes."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Do what the arguments say; returns the exit code."""
    options = parser().parse_args(arguments)
    logs.configure(options.log_level)
    try:
        code: int = options.command(options)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except (ConfigError, UsageError, DirectoryError, TemplatesError, MissingExtra) as error:
        print(error, file=sys.stderr)
        return WRONG
    except BackendError as error:  # pools whose configuration leads nowhere
        print(error.failure.text, file=sys.stderr)
        return WRONG
    except StateError as error:
        print(error, file=sys.stderr)
        return PROBLEM
    return code


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
