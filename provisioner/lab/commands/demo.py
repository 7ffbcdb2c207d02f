"""``provisioner demo``: HostFactory played against the embedded cloud."""

from __future__ import annotations

import argparse


def add_options(command: argparse.ArgumentParser) -> None:
    """Whether it ends by itself."""
    command.add_argument("--keep", action="store_true", help="keep cloud and loop running for you to play with")


def run(options: argparse.Namespace) -> int:
    """Play the demo; returns its exit code."""
    from provisioner.lab.demo import demo

    return demo(keep=options.keep)
