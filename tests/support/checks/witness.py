"""Check every response of the simulated Compute API in this process against Google's discovery document.

Each response adds a line to the process's own file in ``$SIMULATOR_NOTES``. If Google's API could have given the
response, the line is empty. Otherwise the line names the call and the response's faults.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from provisioner.lab.cloud.compute.api import ComputeHandlers, Incoming
from provisioner.lab.cloud.compute.method_table import PATH, Method
from tests.support.checks.discovery_schema import problems_of_call
from tests.support.checks.simulators import NOTES

GOOGLES_OWN = {"$alt", "returnPartialSuccess"}
"""Parameters that Google's clients send but that are not in the discovery document."""

_reply, _lacks = ComputeHandlers.reply, ComputeHandlers._lacks


async def reply(self: ComputeHandlers, method: Method, incoming: Incoming) -> tuple[int, str]:
    """Call the simulator's method ``reply``, which this function replaces, and check the response."""
    status, text = await _reply(self, method, incoming)
    note(method.verb, incoming.path, incoming.query, status, text)
    return status, text


def lacks(self: ComputeHandlers, verb: str, path: str) -> tuple[int, str]:
    """Check the simulator's response to a call of a method that the simulator does not have."""
    status, text = _lacks(self, verb, path)
    note(verb, path.removeprefix(PATH), (), status, text)
    return status, text


def note(verb: str, path: str, query: Iterable[str], status: int, text: str) -> None:
    """Check a response, and write the line about the response into this process's file."""
    names = [name for name in query if name not in GOOGLES_OWN]
    problems = problems_of_call(verb, path, names, status, json.loads(text))
    line = f"{verb} {path} is answered {status}: {'; '.join(problems)}" if problems else ""
    with (Path(os.environ[NOTES]) / str(os.getpid())).open("a") as notes:
        notes.write(f"{line}\n")


def watch() -> None:
    """Check every response of this process's simulators from now on."""
    ComputeHandlers.reply, ComputeHandlers._lacks = reply, lacks  # type: ignore[method-assign]
