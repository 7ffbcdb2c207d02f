"""``provisioner events``: the messages of the subscription."""

from __future__ import annotations

import argparse
import sys

from provisioner.backends.network import prepare
from provisioner.commands.options import FINE, PROBLEM, UsageError, add_shared, config_file, settings


def add_options(command: argparse.ArgumentParser) -> None:
    """Whose subscription, for how long, and how to print it."""
    add_shared(command, "config")
    command.add_argument("--seconds", type=float, metavar="N", help="end after so long; default: when interrupted")
    add_shared(command, "output")


def run(options: argparse.Namespace) -> int:
    """Returns PROBLEM when the stream broke. Raises UsageError where the configuration names no subscription."""
    from provisioner.commands.messages import listen

    configuration = settings(options.config)
    if configuration.events is None:
        raise UsageError(f"{config_file(options.config)}: no section 'events', so there is nothing to listen to.")
    as_json = options.output == "json"
    prepare(configuration.ca_bundle)
    broken = listen(configuration.events, configuration.name_prefix, options.seconds, as_json=as_json)
    if broken:
        print(broken, file=sys.stderr)
    return PROBLEM if broken else FINE
