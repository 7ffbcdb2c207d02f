"""The command ``provisioner recover``: show problems of the state files, write lost files again, and release the
brake."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from provisioner.commands.observe_pools import observe_once
from provisioner.commands.shared_options import FINE, PROBLEM, Document, add_shared, open_state, settings, show
from provisioner.commands.status_text import brake_lines
from provisioner.hostfactory.provider_config import DirectoryError
from provisioner.model import Observation, find_failures, find_snapshots
from provisioner.schema.validation import ConfigError
from provisioner.state import intent_recovery
from provisioner.state.errors import StateError, StateUnreadable
from provisioner.state.intent_recovery import Recovery
from provisioner.telemetry.brake_release_forecast import release_fields
from provisioner.telemetry.pool_status import PoolStatus, read_pool_status
from provisioner.telemetry.status_inputs import read_script_calls


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_shared(command, "config", "state-dir")
    command.add_argument("--apply", action="store_true", help="write the files as shown; the brake stays as it is")
    command.add_argument("--release-brake", action="store_true", help="let the loop release the brake")
    add_shared(command, "output")


def run(options: argparse.Namespace) -> int:
    """Print the recovery, and carry it out if an option says so.

    Return PROBLEM if ``--release-brake`` is given but the brake stays latched. Without an option, return PROBLEM if an
    operator has to act.
    """
    state = open_state(options.state_dir)
    plan, observations = _recovery(options, state)
    memory = plan.files.memory if plan.files.is_fine("memory") else None
    unknown_by_pool = intent_recovery.pools_of_unknown(plan, observations)
    pool_status, calls = _pool_status(options, state), read_script_calls(state)
    effects = release_fields(memory, pool_status, calls, time.time(), unknown_by_pool)
    effects["release_asked"] = state.release_asked()
    document = recovery_document(plan, observations, effects)
    releases = options.release_brake and plan.releases(applied=options.apply)
    document["moved"] = intent_recovery.apply_recovery(state, plan) if options.apply else ()
    document |= {"applied": options.apply, "released": releases}
    document["outcome"] = intent_recovery.summary_message(plan, applied=options.apply, release=options.release_brake)
    if options.output == "text":  # before the release begins, so that the operator has read its effects
        show(options, document, recovery_lines)
        sys.stdout.flush()
    if releases:
        state.ask_release()
    if options.output == "text":
        print(f"  {document['outcome']}")
    else:
        show(options, document, recovery_lines)
    is_brake_kept = options.release_brake and plan.keeps_brake(applied=options.apply)
    only_shows = not (options.apply or options.release_brake)
    return PROBLEM if is_brake_kept or (only_shows and plan.is_wrong) else FINE


def _pool_status(options: argparse.Namespace, state: intent_recovery.RecoverableState) -> PoolStatus:
    """Return the pool status that the loop wrote; an empty pool status if it is unreadable.

    If the pool status has no limits, add the limits of the configuration. If the configuration cannot be read, add no
    limits.
    """
    try:
        pool_status = read_pool_status(state)
    except StateUnreadable:
        pool_status = PoolStatus()
    try:
        return pool_status if pool_status.limits else replace(pool_status, limits=settings(options.config).limits())
    except (ConfigError, DirectoryError):  # a mistake in the configuration must not hide the state files
        return pool_status


def _recovery(
    options: argparse.Namespace, state: intent_recovery.RecoverableState
) -> tuple[Recovery, Mapping[str, Observation]]:
    """Return the recovery plan, and the observations on which the plan is based.

    If intent.json is fine, the pools are not observed, and there are no observations. Otherwise the pools are observed,
    which needs a valid configuration.
    """
    files = intent_recovery.read_files(state)
    if files.is_fine("intent"):
        orphans = tuple(files.memory.orphans.since) if files.memory else ()
        return intent_recovery.plan_recovery(files, orphans, "", ""), {}
    configuration = settings(options.config)
    observations = observe_once(configuration, files.memory)
    seen = find_snapshots(observations)
    unseen = sorted(observations.keys() - seen.keys())
    if unseen and files.needs_machines:
        raise StateError(
            f"{state.path}: no file contains every request, so the machines of all pools are needed, and these pools "
            f"cannot be seen: {', '.join(unseen)}. No file was written. Try again when they can be seen."
        )
    names = [name for snapshot in seen.values() for name in snapshot.machines]
    return intent_recovery.plan_recovery(files, names, configuration.name_prefix, configuration.instance), observations


def recovery_document(plan: Recovery, observations: Mapping[str, Observation], effects: Document) -> dict[str, Any]:
    """Return the state of the files, the files to write, and the effects of a release of the brake. Keys of the
    document:

    * ``files``: the condition of each state file, by file (``intent``, ``memory``, ``status``)
    * ``reasons``: the reason for each unreadable file, by file
    * ``requests``: requests to write back; ``kept`` is True for a request of which only the machines are known
    * ``returns``: return requests to write back
    * ``writes``: the files to write or to move aside
    * ``unknown``: machines without a request
    * ``unseen``: pools that could not be observed
    * ``brake``, ``release_asked``, ``waiting``, ``forgotten``: as in ``StatusModel``

    The caller adds the command's effects: ``applied``, ``released``, ``moved`` (files) and ``outcome`` (a sentence).
    """
    intent = plan.intent
    return {
        "files": {kind: str(condition) for kind, condition in plan.files.conditions.items()},
        "reasons": dict(plan.files.reasons),
        "requests": [
            {"id": request.id, "template": request.template, "count": request.count, "kept": request.id in plan.kept}
            for request in (intent.requests.values() if intent else ())
        ],
        "returns": [{"id": one.id, "machines": list(one.names)} for one in (intent.returns.values() if intent else ())],
        "writes": [*(["intent"] if intent else []), *plan.unreadable],
        "unknown": list(plan.unknown),
        "unseen": list(find_failures(observations)),
        **effects,
    }


def recovery_lines(document: Document) -> Iterator[str]:
    """Yield the lines for a terminal."""
    files = document["files"]
    yield from (f"  {kind}.json: {condition}" for kind, condition in files.items())
    yield from (f"  {reason}" for reason in document["reasons"].values())
    for request in document["requests"]:
        kept = ". Known only from its machines, which stay until HostFactory returns them" if request["kept"] else ""
        what = f"machines {request['count']}, template {request['template']}{kept}"
        yield f"  to write back: request {request['id']}, {what}"
    yield from (f"  to write back: return {one['id']} of {', '.join(one['machines'])}" for one in document["returns"])
    yield from (f"  to move aside: {kind}.json" for kind in document["writes"] if files[kind] == "unreadable")
    yield from (f"  pool {pool} cannot be seen" for pool in document["unseen"])
    yield from brake_lines(document)
    if document["waiting"] or document["forgotten"]:
        yield "  This applies if no brake is latched from now on, and HostFactory does not list the machine."
