"""The command ``provisioner simulator``: run the embedded cloud as a server."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from provisioner.commands.shared_options import UsageError, add_shared, settings

LAST_PORT = 65535


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``provisioner simulator``."""
    add_shared(command, "config")
    command.add_argument("--listen", metavar="HOST", default="127.0.0.1", help="address; default 127.0.0.1")
    command.add_argument("--unsafe-listen", action="store_true", help="allow a --listen that other machines reach")
    command.add_argument("--port", type=_port, default=0, help="default 0: a free port")
    command.add_argument("--kubeconfig", type=Path, metavar="FILE", help="path of the kubeconfig; default: a new file")
    command.add_argument("--faults", type=Path, metavar="FILE", help="faults and timings, JSON or YAML")
    command.add_argument("--seed", type=int, default=0, help="seed of the random numbers; default 0")


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > LAST_PORT:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to {LAST_PORT}, got {text!r}")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Run the cloud until SIGTERM or Ctrl-C. Raises UsageError for an address or a file that cannot be used."""
    from provisioner.lab.cloud.server import Serving, serve

    serving = Serving(
        host=options.listen,
        port=options.port,
        kubeconfig=options.kubeconfig,
        pubsub=os.environ.get("PUBSUB_EMULATOR_HOST", ""),
        seed=options.seed,
    )
    try:
        configuration = settings(options.config)
        return serve(configuration, serving, unsafe_listen=options.unsafe_listen, faults_file=options.faults)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise UsageError(f"{where}{error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(str(error)) from error
