"""The command ``provisioner events``: print each message of the Pub/Sub subscription, and how the loop would use the
message."""

from __future__ import annotations

import argparse
import json
import signal
import threading
from typing import TYPE_CHECKING, Any

from provisioner.backends.proxies_and_authorities import prepare
from provisioner.commands.shared_options import FINE, UsageError, add_shared, config_file, settings
from provisioner.process_end import CommandFailed, Latch
from provisioner.settings.definitions import Events

if TYPE_CHECKING:
    from provisioner.backends.pubsub_events import Judged

COLUMNS = "{worth:<10} {timestamp:<30} {kind:<10} {machine}{suffix}"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_shared(command, "config")
    command.add_argument("--seconds", type=float, metavar="N", help="end after N seconds; default: at Ctrl-C")
    add_shared(command, "output")


def run(options: argparse.Namespace) -> int:
    """Print messages. Raises UsageError if no subscription is configured, and CommandFailed if the stream broke."""
    configuration = settings(options.config)
    if configuration.events is None:
        raise UsageError(f"{config_file(options.config)}: no section 'events', so there are no messages to print.")
    as_json = options.output == "json"
    prepare(configuration.ca_bundle)
    listen(configuration.events, configuration.name_prefix, options.seconds, as_json=as_json)
    return FINE


def listen(events: Events, prefix: str, seconds: float | None, *, as_json: bool) -> None:
    """Print every message until the time is over, SIGTERM arrives, or the stream breaks.

    ``seconds``: the time; None for no limit. Raises CommandFailed with the reason if the stream broke. Raises
    BrokenPipeError as soon as the reader of the output has gone, because further messages would be taken from the
    subscription and lost.
    """
    from provisioner.backends.pubsub_events import EventStream

    ended, printing = Latch(), threading.Lock()
    errors: list[Exception] = []

    def end(error: Exception) -> None:
        errors.append(error)
        ended.set()

    def print_message(message: Judged) -> None:
        document = message_document(message)
        line = json.dumps(document) if as_json else message_text(document)
        try:
            with printing:  # several threads call this function
                print(line, flush=True)
        except BrokenPipeError as error:
            end(error)

    def broke(reason: str) -> None:
        end(CommandFailed(reason))

    stream = EventStream(events.project, events.subscription, prefix=prefix, taken=print_message, broke=broke)
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    stream.start()
    ended.wait(seconds)
    stream.close()
    if errors:
        raise errors[0]


def message_document(message: Judged) -> dict[str, Any]:
    """Return the JSON object of a message. ``grace_seconds``: the seconds until the announced end of a preempted
    machine; None for other messages."""
    hint = message.hint
    return {
        "worth": str(message.worth),
        "machine": hint.instance if hint else "",
        "kind": str(hint.event) if hint else "",
        "failed": hint.failed if hint else False,
        "timestamp": hint.timestamp if hint else "",
        "delay_seconds": round(hint.delay, 3) if hint else 0.0,
        "grace_seconds": None if hint is None or hint.grace is None else round(hint.grace, 3),
        "problem": message.problem,
    }


def message_text(document: dict[str, Any]) -> str:
    """Return the line for a terminal from the JSON object of a message."""
    suffix = f" {document['problem']}" if document["problem"] else ""
    suffix += " (failed)" if document["failed"] else ""
    suffix += f" ends in {document['grace_seconds']:.0f} s" if document["grace_seconds"] is not None else ""
    return COLUMNS.format(**document, suffix=suffix).rstrip()
