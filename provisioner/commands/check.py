"""``provisioner check``: the configuration, and with ``--live`` the clouds' places that it names."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from provisioner.backends import (
    Backend,
    BackendError,
    Checkable,
    Finding,
    MachineSize,
    Rehearsing,
    Severity,
    Sized,
    Timed,
    place_clock,
)
from provisioner.backends.network import ending_authorities
from provisioner.backends.registry import close, kind, usable_backends
from provisioner.commands.offline import CHECK_SECONDS, ask_all, live_findings, look
from provisioner.commands.options import Document, UsageError, add_shared, config_file, settings, show
from provisioner.extras import extra, needing
from provisioner.hostfactory import templates
from provisioner.hostfactory.instance import Directories, DirectoryError
from provisioner.hostfactory.templates import Provider, Template
from provisioner.model import Unobserved
from provisioner.names import NO_TEMPLATE
from provisioner.settings.advice import advice, size_advice
from provisioner.settings.tree import Settings
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateError
from provisioner.state.markers import ReadContent, Side

WHO: Mapping[Side, str] = {"scripts": "HostFactory's scripts", "loop": "the loop"}
"""The two sides that read HF's files."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    command.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="provisioner.yaml or its directory")
    command.add_argument("--live", action="store_true", help="also ask the clouds whether machines can be made there")
    add_shared(command, "output")


def run(options: argparse.Namespace) -> int:
    """Returns PROBLEM for an error in a place. Raises ConfigError, TemplatesError, UsageError."""
    configuration = settings(options.config)
    provider = templates.load(config_file(options.config).parent, os.environ)
    try:
        ending = ending_authorities(configuration.ca_bundle, time.time())
        warnings = [*ending, *advice(configuration, provider.templates), *otherwise_read(provider)]
        document = check_document(configuration, warnings)
    except (OSError, ValueError) as error:
        raise UsageError(f"The configuration changed while it was checked; check it again. ({error})") from error
    if options.live:
        document["findings"] = findings_document(check_live(configuration, provider.templates))
    return show(options, document, check_lines, fine=check_is_fine(document))


def otherwise_read(provider: Provider) -> list[str]:
    """Return a warning for each of HF's two files of which the scripts, or the loop, have read another content.

    Empty if no state directory is known, or it holds no mark.
    """
    read: Mapping[Side, Sequence[ReadContent]] = {}
    with suppress(DirectoryError, StateError):
        read = StateDir(Directories(os.environ).state).config.read()
    paths = (provider.config_path, provider.templates_path)
    return [
        f"{path}: {WHO[side]} read another content last: bring the right one to both sides (docs/deploy-gke.md)"
        for side, contents in read.items()
        if contents
        for path, here, there in zip(paths, provider.digests, contents[0].digests, strict=True)
        if here != there
    ]


# --- what the clouds say ----------------------------------------------------------------------------------------------


def check_live(settings: Settings, templates: Sequence[Template]) -> list[Finding]:
    """Ask if machines can be made in each pool's place as it is now, as big as promised; change nothing.

    A pool of which something is wrong is asked no more; the others are.
    """
    backends, unusable = usable_backends(settings.pools, settings.site)
    findings = [Finding(name, Severity.ERROR, text.removeprefix(f"pool {name}: ")) for name, text in unusable.items()]
    try:
        findings += live_findings(backends, "pools")
        of_sizes = partial(size_findings, templates)
        for question in (rehearsal_findings, clock_findings, of_sizes, event_findings, unseen_findings):
            wrong = {finding.pool for finding in findings if finding.severity is not Severity.WARNING}
            findings += question(settings, {name: one for name, one in backends.items() if name not in wrong})
    finally:
        close(backends)
    return findings


def rehearsal_findings(settings: Settings, backends: Mapping[str, Backend]) -> list[Finding]:
    """The findings of a rehearsal of one create, with the first template that names each pool."""
    last_first = reversed([*settings.template_limits.items()])
    first = {pool: id_ for id_, limits in last_first for pool in limits.pools}
    rehearsing = {name: backend for name, backend in backends.items() if isinstance(backend, Rehearsing)}
    questions = {name: partial(one.rehearse, first.get(name, NO_TEMPLATE)) for name, one in rehearsing.items()}
    return ask_all(questions, "pools")


def clock_findings(_: Settings, backends: Mapping[str, Backend]) -> list[Finding]:
    """Places whose clock is not this host's."""
    timed = {name: backend for name, backend in backends.items() if isinstance(backend, Timed)}
    return [finding for name, backend in timed.items() for finding in place_clock.clock_findings(name, backend.ahead())]


def size_findings(templates: Sequence[Template], settings: Settings, backends: Mapping[str, Backend]) -> list[Finding]:
    """Templates that promise more than the machines have that these places make."""
    sizes: dict[str, MachineSize] = {}
    unknown = []
    for name, backend in backends.items():
        try:
            if isinstance(backend, Sized) and (size := backend.size(CHECK_SECONDS)):
                sizes[name] = size
        except BackendError as error:
            text = f"how big its machines are cannot be read, so it was not checked: {error.failure.text}"
            unknown.append(Finding(name, Severity.WARNING, text))
    return unknown + size_advice(settings, templates, sizes)


def unseen_findings(_: Settings, backends: Mapping[str, Backend]) -> list[Finding]:
    """Pools that cannot be looked at, of the kinds that check nothing by themselves."""
    looks = look({name: one for name, one in backends.items() if not isinstance(one, Checkable)}, 0.0, seconds=0.0)
    return [
        Finding(one.pool, Severity.ERROR, one.failure.text) for one in looks.values() if isinstance(one, Unobserved)
    ]


def event_findings(settings: Settings, _: Mapping[str, Backend]) -> list[Finding]:
    """Findings on the Pub/Sub subscription, if one is configured. Raises MissingExtra."""
    if settings.events is None:
        return []
    with needing(extra("events")):
        from provisioner.backends.subscription import subscription_findings

    return subscription_findings(settings.events.project, settings.events.subscription, CHECK_SECONDS)


# --- documents and text -----------------------------------------------------------------------------------------------


def check_document(settings: Settings, advice: Sequence[str]) -> dict[str, Any]:
    """The pools and templates that follow from the configuration, and warnings."""
    return {
        "id": settings.id,
        "name_prefix": settings.name_prefix,
        "pools": {name: {"kind": pool.kind, "place": list(pool.identity)} for name, pool in settings.pools.items()},
        "templates": {
            id_: {"pools": list(limits.pools), "max_machines": limits.max_machines}
            for id_, limits in settings.template_limits.items()
        },
        "warnings": [*(text for pool in settings.pools.values() for text in kind(pool.kind).warnings(pool)), *advice],
    }


def findings_document(findings: Sequence[Finding]) -> list[dict[str, str]]:
    """The findings on the pools, the worst first."""
    ordered = sorted(findings, key=lambda finding: list(Severity).index(finding.severity), reverse=True)
    return [{"pool": one.pool, "severity": str(one.severity), "text": one.text} for one in ordered]


def check_is_fine(document: Document) -> bool:
    """True when no finding is worse than a warning."""
    return all(finding["severity"] == Severity.WARNING for finding in document.get("findings", ()))


def _verdict(document: Document) -> str:
    """The first words of the text: warnings are counted there, as they are easily missed below many pools."""
    warnings = len(document["warnings"]) + len(document.get("findings", ()))
    if not check_is_fine(document):
        return "Wrong"
    return f"Usable, with {warnings} warning{'s' * (warnings > 1)} below" if warnings else "Fine"


def check_lines(document: Document) -> Iterator[str]:
    """The document as lines for a terminal."""
    yield f"{_verdict(document)}: provisioner {document['id']}, machines named {document['name_prefix']}-…"
    pools, findings = document["pools"], document.get("findings")
    for name, pool in pools.items():
        yield f"  pool {name}: {' '.join(part for part in (pool['kind'], *pool['place'][1:]) if part)}"
    for id_, limits in document["templates"].items():
        most = "any number" if limits["max_machines"] is None else limits["max_machines"]
        yield f"  template {id_}: {' → '.join(limits['pools'])}, at most {most}"
    yield from (f"  WARNING {text}" for text in document["warnings"])
    for one in findings or ():
        whose = f"pool {one['pool']}" if one["pool"] in pools else one["pool"]
        yield f"  {one['severity'].upper()} {whose}: {one['text']}"
    if findings == []:
        yield "  every pool's place is as it should be"
