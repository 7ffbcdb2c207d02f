"""``provisioner init``, also called ``initializeDB``: the first intent.json of a state directory."""

from __future__ import annotations

import argparse

from provisioner.commands.options import FINE, add_shared, settings, state_directory


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_shared(command, "config", "state-dir")


def run(options: argparse.Namespace) -> int:
    """Make the first intent.json. Raises StateError where there is one, or was."""
    instance = settings(options.config).instance
    state = state_directory(options.state_dir)
    state.intent.create(instance)
    print(f"Created {state.intent.path} for provider instance {instance}.")
    return FINE
