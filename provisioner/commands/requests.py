"""The commands ``provisioner request``, ``provisioner return`` and ``provisioner requests``: machines for an operator
without HostFactory.

The commands call HostFactory's scripts. So the loop treats the operator's requests like HostFactory's requests.

The commands never poll HostFactory's own requests. If they did, getRequestStatus would record a terminal answer as
reported to HostFactory, although HostFactory has not read it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from provisioner.commands.shared_options import FINE, Document, add_shared, open_states, show
from provisioner.demand.service import read_requests
from provisioner.hostfactory.script_calls import HostFactory
from provisioner.names import OPERATOR_ACCOUNT

POLL_SECONDS = 1.0


def add_request_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    command.add_argument("template", metavar="TEMPLATE")
    command.add_argument("count", type=int, metavar="N", help="the number of machines")
    command.add_argument("--wait", action="store_true", help="wait until the request has ended")
    add_shared(command, "output")


def run_request(options: argparse.Namespace) -> int:
    """Request machines, and print the id of the request or, with ``--wait``, its answer. Raises ScriptFailed."""
    hf = HostFactory(os.environ)
    id_ = hf.request(options.template, options.count, OPERATOR_ACCOUNT)
    if options.wait:
        print(f"Request {id_}", file=sys.stderr)
    entry: dict[str, Any] = {"requestId": id_, "status": "running", "message": "", "machines": []}
    while options.wait and (entry := hf.status(id_))["status"] == "running":
        time.sleep(POLL_SECONDS)
    document = {"requests": [entry | {"template": options.template, "count": options.count}]}
    return show(options, document, _request_lines, fine=entry["status"] != "complete_with_error")


def run_return(options: argparse.Namespace) -> int:
    """Return machines, and print the id of the return request. Raises ScriptFailed."""
    print(HostFactory(os.environ).return_machines(options.machines))
    return FINE


def run_requests(options: argparse.Namespace) -> int:
    """Print the answers to the requests of ``provisioner request``, without machines that were returned. Raises
    ScriptFailed, StateError."""
    mine, returns = read_requests(open_states(), OPERATOR_ACCOUNT)
    returned = frozenset[str]().union(*returns.values())
    entries = HostFactory(os.environ).statuses([*mine]) if mine else []
    for entry, request in zip(entries, mine.values(), strict=True):
        kept = [machine for machine in entry["machines"] if machine["machineId"] not in returned]
        entry |= {"template": request.template, "count": request.count, "machines": kept}
    return show(options, {"requests": entries}, _request_lines)


def _request_lines(document: Document) -> Iterator[str]:
    for entry in document["requests"]:
        message = f": {entry['message']}" if entry["message"] else ""
        yield f"{entry['requestId']}  {entry['count']} of {entry['template']}  {entry['status']}{message}"
        for machine in entry["machines"]:
            reason = machine["message"] or machine["privateIpAddress"] or ""
            yield f"  {machine['name']}  {machine['status']}  {reason}".rstrip()
    if not document["requests"]:
        yield "No request was made by `provisioner request`."


COMMANDS = {
    "request": (add_request_options, run_request),
    "return": (lambda command: command.add_argument("machines", nargs="+", metavar="MACHINE"), run_return),
    "requests": (lambda command: add_shared(command, "output"), run_requests),
}
