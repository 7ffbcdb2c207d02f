"""The command ``provisioner replay``: call the scripts with the recorded calls of a HostFactory."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from provisioner.commands.shared_options import FINE, PROBLEM, UsageError
from provisioner.hostfactory.provider_config import Directories
from provisioner.process_end import interruptible


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``provisioner replay``."""
    command.add_argument("trace", type=Path, metavar="TRACE", help="Morgan Stanley's sqlite file, or JSON lines")
    command.add_argument("--speed", type=float, default=1.0, help="speed-up factor; default 1")
    command.add_argument("--yes", action="store_true", help="play even if a loop runs and makes machines")
    command.add_argument(
        "--longest-gap",
        type=float,
        default=float("inf"),
        metavar="SECONDS",
        help="longest wait between two calls; default: no limit",
    )


def run(options: argparse.Namespace) -> int:
    """Replay the trace. Return PROBLEM if a call was refused. Raises UsageError, DirectoryError."""
    from provisioner.lab.replay import Replay, is_loop_alive, run_script
    from provisioner.lab.trace import TraceError, read_trace
    from provisioner.state.directory import StateDir

    if not (options.speed > 0 and options.longest_gap >= 0):  # comparisons with nan are false
        raise UsageError("--speed has to be above 0, --longest-gap at least 0")
    try:
        events = read_trace(options.trace)
    except TraceError as error:
        raise UsageError(f"{error}; name a trace that --record wrote, or Morgan Stanley's") from error
    state = StateDir(Directories(os.environ).state)
    if not options.yes and is_loop_alive(state):
        raise UsageError(
            f"{state.path}: a loop runs there and would make machines for the replayed requests; no call was made. "
            "Set HF_PROVIDER_WORKDIR to another directory, or give --yes."
        )
    replay = Replay(run_script, speed=options.speed, longest_gap=options.longest_gap)
    with interruptible():
        replay.play(events)
    print(json.dumps(replay.report(), indent=2))
    return PROBLEM if any(replay.refused.values()) else FINE
