"""The command ``provisioner settings``: print every setting of provisioner.yaml, as a page for operators or as a schema
for editors."""

from __future__ import annotations

import argparse
import json

from provisioner.backends import registry
from provisioner.commands.shared_options import FINE
from provisioner.settings import reference


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    text = "a page for operators (default), or a JSON schema for editors"
    command.add_argument("-o", "--output", choices=("markdown", "schema"), default="markdown", help=text)


def run(options: argparse.Namespace) -> int:
    """Print the settings, including the settings of every installed kind of place. Raises MissingExtra."""
    kinds = [registry.get_kind(name) for name in registry.kind_names()]
    if options.output == "schema":
        print(json.dumps(reference.schema(kinds), indent=2, ensure_ascii=False))
    else:
        print(reference.page(kinds), end="")
    return FINE
