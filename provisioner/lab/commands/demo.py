"""The command ``provisioner demo``: play HostFactory against the embedded cloud."""

from __future__ import annotations

import argparse


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``provisioner demo``."""
    command.add_argument("--keep", action="store_true", help="keep cloud and loop running for you to play with")


def run(options: argparse.Namespace) -> int:
    """Play the demo and return its exit code."""
    from provisioner.lab.demo import demo

    return demo(keep=options.keep)
