"""The command ``provisioner run``: run the loop, or print the actions of its cycles without carrying them out."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time

from provisioner.commands.shared_options import FINE, PROBLEM, add_shared, config_file, open_state
from provisioner.process_end import INTERRUPTED, end
from provisioner.settings.definitions import Settings
from provisioner.state.protocols import State


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_shared(command, "config", "state-dir")
    command.add_argument("--once", action="store_true", help="one cycle on complete observations, then end")
    command.add_argument("--dry-run", action="store_true", help="print the actions of each cycle, without any effect")
    command.add_argument(
        "--listen", type=parse_address, metavar="HOST:PORT", help="address of metrics, health and status page"
    )


def parse_address(text: str) -> str:
    """Check the address in the option ``--listen``, and return the address unchanged. Raises ArgumentTypeError if the
    address has no port."""
    if not text.rpartition(":")[2].isdecimal():
        raise argparse.ArgumentTypeError(f"expected HOST:PORT such as 127.0.0.1:9464, got {text!r}")
    return text


def run(options: argparse.Namespace) -> int:
    """Run the loop, and return an exit code.

    With ``--once``, return PROBLEM if the loop could not observe all pools or could not plan. Raises ListenError if the
    server cannot listen, and SupersededError if another loop took over.
    """
    from provisioner.commands.loop_service import Service
    from provisioner.settings.reload import Configuration

    configuration = Configuration(config_file(options.config), os.environ)
    state = open_state(options.state_dir, follows=not (options.dry_run or options.once))
    if options.dry_run:
        dry_run(configuration.settings, state, once=options.once)
        return FINE
    service = Service(configuration, state, listen=options.listen)
    service.follow_signals()
    service.run(once=options.once)
    if service.interrupted:
        return INTERRUPTED
    return PROBLEM if options.once and (service.loop.unseen() or service.loop.problem()) else FINE


def dry_run(settings: Settings, state: State, *, once: bool) -> None:
    """Print the plan of each cycle until a signal ends the process. Carry out no action. ``once``: True to print only
    one plan. Raises StateError, BackendError."""
    from provisioner.commands.plan import plan_document, preview

    signal.signal(signal.SIGTERM, lambda *_: end(FINE))
    while True:
        observations, plan = preview(settings, state)
        print(json.dumps({"time": round(time.time(), 3), **plan_document(plan, observations)}), flush=True)
        if once:
            return
        time.sleep(settings.loop.interval_seconds)
