"""The command ``provisioner check``: check the configuration, and with ``--live`` also the places of its pools."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from provisioner.backends import Backend, BackendError, Finding, MachineSize, Rehearsing, Severity, Sized, Timed
from provisioner.backends.place_clock import clock_message
from provisioner.backends.proxies_and_authorities import ending_authorities, prepare
from provisioner.backends.registry import close, get_kind, usable_backends
from provisioner.commands.observe_pools import CHECK_SECONDS, all_at_once, ask_all, live_findings, observe
from provisioner.commands.shared_options import Document, UsageError, add_shared, config_file, settings, show
from provisioner.demand.settings import load_both
from provisioner.hostfactory import templates
from provisioner.hostfactory.provider_config import FIELDS, Directories, DirectoryError
from provisioner.hostfactory.templates import Provider, Template
from provisioner.model import Failure, find_failures, find_snapshots
from provisioner.names import NO_TEMPLATE
from provisioner.optional_packages import extra, require_packages
from provisioner.schema.setting_types import Pool
from provisioner.schema.validation import suggestion
from provisioner.settings.definitions import Settings
from provisioner.settings.warnings import find_size_warnings, find_warnings
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateError
from provisioner.state.marker_files import ConfigMark, Side
from provisioner.telemetry.pool_windows import format_count

WHO: Mapping[Side, str] = {"scripts": "HostFactory's scripts", "loop": "the loop"}
"""The names of the two sides that read HF's files, in messages."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    command.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="provisioner.yaml or its directory")
    command.add_argument("--live", action="store_true", help="also ask the clouds whether machines can be made there")
    add_shared(command, "output")


def run(options: argparse.Namespace) -> int:
    """Check the configuration, and with ``--live`` the places of the pools, and print what was found. Return PROBLEM if
    a pool's place has an error. Raises ConfigError, TemplatesError, UsageError."""
    configuration = settings(options.config)
    provider = templates.load(config_file(options.config).parent, os.environ)
    load_both(config_file(options.config).parent, provider)
    try:
        ending = ending_authorities(configuration.ca_bundle, time.time())
        warnings = [*ending, *find_warnings(configuration, provider.templates)]
        warnings += _config_warnings(configuration, provider)
        document = check_document(configuration, warnings)
    except (OSError, ValueError) as error:
        raise UsageError(f"The configuration changed while it was checked; check it again. ({error})") from error
    if options.live:
        findings, observed = check_live(configuration, provider.templates)
        document |= {"findings": findings_document(findings), "observed": observed}
    return show(options, document, check_lines, fine=check_is_fine(document))


def _config_warnings(settings: Settings, provider: Provider) -> list[str]:
    """Return warnings about HF's files: a file differs from the version that the scripts or the loop last read, or a
    key has no effect."""
    of_kinds = {key for pool in settings.pools.values() for key in get_kind(pool.kind).config_keys}
    return [
        *stale_read_warnings(provider),
        *(
            f"{provider.config_path}: {key} has no effect{suggestion(key, [*FIELDS, *sorted(of_kinds)])}"
            for key in provider.config.unknown
            if key not in of_kinds
        ),
    ]


def stale_read_warnings(provider: Provider) -> list[str]:
    """Compare HF's provider config and templates file with the versions that the scripts and the loop last read. Return
    a warning for each difference.

    Return an empty list if the state directory is unknown, or if it does not record these reads.
    """
    read: Mapping[Side, Sequence[ConfigMark]] = {}
    with suppress(DirectoryError, StateError):
        read = StateDir(Directories(os.environ).state).config.read()
    paths = (provider.config_path, provider.templates_path)
    return [
        f"{path}: {WHO[side]} read another version of this file; bring the right one to both sides (docs/deploy-gke.md)"
        for side, contents in read.items()
        if contents
        for path, digest, read_digest in zip(paths, provider.digests, contents[0].digests, strict=True)
        if digest != read_digest
    ]


# --- questions to the clouds ------------------------------------------------------------------------------------------


def check_live(settings: Settings, templates: Sequence[Template]) -> tuple[list[Finding], dict[str, dict[str, int]]]:
    """Ask the clouds whether each pool can now make machines of the promised size. Observe each pool. Change nothing.

    Return the findings, and for each pool the numbers of our machines and of our queued machines. A pool with an error
    is not checked further. Findings about a clock come first, because a wrong clock makes other calls fail.
    """
    prepare(settings.ca_bundle)
    backends, unusable = usable_backends(settings.pools, settings.site)
    findings = [Finding(name, Severity.ERROR, text) for name, text in unusable.items()]
    try:
        findings += live_findings(backends, "pools")
        sizes = partial(size_findings, templates)
        for question in (rehearsal_findings, sizes, event_findings):
            findings += question(settings, _without_faults(backends, findings))
        observations = observe(_without_faults(backends, findings), 0.0, seconds=0.0)
        findings += [unseen_finding(settings.pools[name], one) for name, one in find_failures(observations).items()]
        findings[:0] = clock_findings(settings, backends)
    finally:
        close(backends)
    seen = {name: list(one.machines.values()) for name, one in find_snapshots(observations).items()}
    return findings, {
        name: {"machines": len(machines), "queued": sum(machine.queued is not None for machine in machines)}
        for name, machines in seen.items()
    }


def _without_faults(backends: Mapping[str, Backend], findings: Sequence[Finding]) -> dict[str, Backend]:
    faulty = {finding.pool for finding in findings if finding.severity.is_fault}
    return {name: backend for name, backend in backends.items() if name not in faulty}


def rehearsal_findings(settings: Settings, backends: Mapping[str, Backend]) -> list[Finding]:
    """Try a create without effect in each pool, and return the findings. The create is for the first template that
    names the pool."""
    last_first = reversed([*settings.template_limits.items()])
    first = {pool: id_ for id_, limits in last_first for pool in limits.pools}
    rehearsing = {name: backend for name, backend in backends.items() if isinstance(backend, Rehearsing)}
    questions = {name: partial(one.rehearse, first.get(name, NO_TEMPLATE)) for name, one in rehearsing.items()}
    return ask_all(questions, "pools")


def clock_findings(_: Settings, backends: Mapping[str, Backend]) -> list[Finding]:
    """Return an error for each place whose clock differs too much from this host's clock."""
    ahead = {name: backend.ahead() for name, backend in backends.items() if isinstance(backend, Timed)}
    return [Finding(name, Severity.ERROR, text) for name, one in ahead.items() if (text := clock_message(one))]


def size_findings(templates: Sequence[Template], settings: Settings, backends: Mapping[str, Backend]) -> list[Finding]:
    """Return a warning for each template that promises larger machines than its pools make. Also warn about each pool
    whose machine size is unreadable."""

    def size_of(name: str, backend: Sized) -> MachineSize | Finding | None:
        try:
            return backend.size(CHECK_SECONDS)
        except BackendError as error:
            text = f"the size of the pool's machines cannot be read, so it was not checked: {error.failure.text}"
            return Finding(name, Severity.WARNING, text)

    sized = {name: backend for name, backend in backends.items() if isinstance(backend, Sized)}
    answers = all_at_once({name: partial(size_of, name, backend) for name, backend in sized.items()}, "pools")
    unknown = [answer for answer in answers.values() if isinstance(answer, Finding)]
    sizes = {name: answer for name, answer in answers.items() if isinstance(answer, MachineSize)}
    return unknown + find_size_warnings(settings, templates, sizes)


def unseen_finding(pool: Pool, failure: Failure) -> Finding:
    """Return an error about a pool that could not be observed. The error names the next step and the documentation page
    of the pool's kind."""
    is_setting, docs = failure.error.needs_operator, get_kind(pool.kind).docs
    step = f"correct pools.{pool.name} or its rights" if is_setting else "let this host reach the place; try again"
    more = f" ({docs})" if docs else ""
    return Finding(pool.name, Severity.ERROR, f"cannot be observed: {failure.error}: {failure.text}; {step}{more}")


def event_findings(settings: Settings, _: Mapping[str, Backend]) -> list[Finding]:
    """Return the findings about the Pub/Sub subscription; empty if none is configured. Raises MissingExtra."""
    if settings.events is None:
        return []
    with require_packages(extra("events")):
        from provisioner.backends.pubsub_subscription import subscription_findings

    question = partial(subscription_findings, settings.events.project, settings.events.subscription, CHECK_SECONDS)
    return ask_all({"events": question}, "the subscription")


# --- documents and text -----------------------------------------------------------------------------------------------


def check_document(settings: Settings, advice: Sequence[str]) -> dict[str, Any]:
    """Return the JSON object about the configuration: its pools, templates and warnings. ``advice``: further
    warnings."""
    return {
        "id": settings.id,
        "name_prefix": settings.name_prefix,
        "pools": {name: {"kind": pool.kind, "place": list(pool.identity)} for name, pool in settings.pools.items()},
        "templates": {
            id_: {"pools": list(limits.pools), "max_machines": limits.max_machines}
            for id_, limits in settings.template_limits.items()
        },
        "warnings": [
            *(text for pool in settings.pools.values() for text in get_kind(pool.kind).warnings(pool)),
            *advice,
        ],
    }


def findings_document(findings: Sequence[Finding]) -> list[dict[str, str]]:
    """Return the findings as JSON objects, the worst first."""
    ordered = sorted(findings, key=lambda finding: list(Severity).index(finding.severity), reverse=True)
    return [{"pool": one.pool, "severity": str(one.severity), "text": one.text} for one in ordered]


def check_is_fine(document: Document) -> bool:
    """Return True if every finding is a warning or a note."""
    return not any(Severity(finding["severity"]).is_fault for finding in document.get("findings", ()))


def _verdict(document: Document) -> str:
    """Return the numbers of errors and warnings as text, or ``Fine`` if there are neither."""
    severities = [Severity(finding["severity"]) for finding in document.get("findings", ())]
    warnings = len(document["warnings"]) + severities.count(Severity.WARNING)
    numbers = {"error": sum(one.is_fault for one in severities), "warning": warnings}
    return ", ".join(f"{number} {word}{'s' * (number > 1)}" for word, number in numbers.items() if number) or "Fine"


def check_lines(document: Document) -> Iterator[str]:
    """Yield the lines for a terminal: errors, warnings, then pools and templates."""
    yield f"{_verdict(document)}: provisioner {document['id']}, machines named {document['name_prefix']}-…"
    pools, findings = document["pools"], document.get("findings")
    for one in findings or ():
        subject = f"pool {one['pool']}" if one["pool"] in pools else one["pool"]
        yield f"  {one['severity'].upper()} {subject}: {one['text']}"
    yield from (f"  WARNING {text}" for text in document["warnings"])
    for name, pool in pools.items():
        seen = document.get("observed", {}).get(name)
        numbers = (
            f": {format_count(seen['machines'], 'machine')} of ours, {seen['queued']} in the queue" if seen else ""
        )
        yield f"  pool {name}: {' '.join(part for part in (pool['kind'], *pool['place'][1:]) if part)}{numbers}"
    for id_, limits in document["templates"].items():
        most = limits["max_machines"]
        words = {None: "any number", 0: "none, because maxNumber is 0"}.get(most, f"at most {most}")
        yield f"  template {id_}: {' → '.join(limits['pools'])}, {words}"
    if findings is not None and all(one["severity"] == Severity.NOTE for one in findings):
        yield "  every pool's place is as it should be"
