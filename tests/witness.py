"""Sees every answer of the simulated Compute API in this process, and checks it against Google's discovery document."""

from __future__ import annotations

import json

from provisioner.simulator.compute_calls import Method
from provisioner.simulator.compute_http import Face, Incoming
from tests.discovery_schema import problems_of_answer, problems_of_query

GOOGLES_OWN = {"$alt", "returnPartialSuccess"}
"""Parameters that clients send and the discovery document does not list."""

problems: list[str] = []
"""What was wrong with the answers since somebody last emptied this list."""

_reply = Face.reply


async def reply(face: Face, method: Method, incoming: Incoming) -> tuple[int, str]:
    """In place of the simulator's own: the same answer, looked at."""
    status, text = await _reply(face, method, incoming)
    problems.extend(problems_of_answer(method.verb, incoming.path, status, json.loads(text)))
    names = [name for name in incoming.query if name not in GOOGLES_OWN]
    problems.extend(problems_of_query(method.verb, incoming.path, names))
    return status, text


def watch() -> None:
    """From now on every face of this process is seen."""
    Face.reply = reply  # type: ignore[method-assign]
