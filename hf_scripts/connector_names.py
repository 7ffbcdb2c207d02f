"""Console scripts under the names of Google's connector: ``hf-gce``, ``hf-gke``, ``hf-monitor``.

These scripts accept the connector's verbs and options, and call our scripts and our loop. So our package may replace
the connector's package, and programs that call the connector need no change.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from hf_scripts.commands import COMMANDS, run
from provisioner.files.version import full_version

PROVISIONER_COMMANDS = {"initializeDB": "init", "monitorEvents": "run"}
"""The command of ``provisioner`` for each of the connector's verbs that is not a script of HostFactory."""


def call_script() -> None:
    """Run ``hf-gce VERB [JSON | -f FILE]``. VERB names a script or a command. The process ends with the exit code of
    this script or command."""
    parser = argparse.ArgumentParser(description="HostFactory's scripts and the loop by the connector's verbs.")
    parser.add_argument("command", choices=[*COMMANDS, *PROVISIONER_COMMANDS])
    parser.add_argument("json", nargs="?", help="the document; takes precedence over FILE")
    parser.add_argument("-f", "--json-file", metavar="FILE")
    parser.add_argument("-v", "--version", action="version", version=f"%(prog)s {full_version()}")
    options = parser.parse_args()
    if options.command in PROVISIONER_COMMANDS:
        _become_provisioner(PROVISIONER_COMMANDS[options.command])
    file = ["-f", options.json_file] if options.json_file is not None else []
    sys.exit(run(options.command, file if options.json is None else [options.json], os.environ))


def run_loop() -> None:
    """Run ``hf-monitor``: the loop in place of the connector's event daemon. The command takes the arguments of
    ``provisioner run``."""
    _become_provisioner("run", sys.argv[1:])


def _become_provisioner(command: str, arguments: Sequence[str] = ()) -> None:
    """Replace this process by ``provisioner COMMAND``, so that a supervisor's signals reach the loop."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", "provisioner", command, *arguments])
