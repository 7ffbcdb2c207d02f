"""``provisioner doctor``: runs every check at once, shows each result with what to do, and packs them for support."""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import yaml

from provisioner import __version__
from provisioner.backends import registry
from provisioner.backends.place_clock import MOST_SECONDS
from provisioner.commands.offline import WAITING, all_at_once
from provisioner.commands.options import Document, UsageError, add_shared, show
from provisioner.commands.redaction import WITHHELD, cleaned, harmless, masked, without
from provisioner.files.regular import read_regular
from provisioner.files.yaml_text import LARGEST, parse
from provisioner.hostfactory.instance import (
    SCRIPTS,
    Directories,
    DirectoryError,
    TemplatesError,
    load_config,
    read_json,
)
from provisioner.hostfactory.templates import NUMERIC_ATTRIBUTES, OWN_FIELDS
from provisioner.schema.problems import Section
from provisioner.settings.tree import SECTIONS, Settings, TemplateSettings
from provisioner.state.directory import STATE_FILES, StateDir
from provisioner.state.errors import is_denied, what_to_do

SECONDS = 300.0
"""How long one part may take: a live check waits for the slowest cloud."""

SHOWN = 25
"""Lines of a part that are shown; the bundle has them all."""

LEAST_FREE = 200_000_000
"""Bytes that the state directory's disk should have free: three times what the journal may take."""

PART_BYTES = 20_000_000
"""The newest bytes of a file that the bundle takes."""

BUNDLE_MODE = 0o600

TEMPLATE_KEYS = {"templates", "pools", "podSpecYaml", "gcp_zone", "gcp_region", "gcp_instance_group", "type"}
TEMPLATE_KEYS |= OWN_FIELDS | NUMERIC_ATTRIBUTES
"""Fields and attributes of HostFactory's templates that hold no secret."""


@dataclass(frozen=True)
class Part:
    """A question, and the command that answers it: its exit code says whether all is well."""

    name: str
    command: Sequence[str]
    seen_as: str
    """The command as people call it."""


@dataclass(frozen=True)
class Result:
    """The result of a part."""

    part: Part
    fine: bool
    text: str


def add_options(command: argparse.ArgumentParser) -> None:
    """Which installation, and whether a bundle is made."""
    add_shared(command, "config", "state-dir")
    command.add_argument(
        "--bundle",
        type=Path,
        metavar="FILE",
        help="also write a .tar.gz for support: all answers, state files, journal, configuration and the scripts' log, "
        "without secrets; no pod spec, no kubeconfig",
    )
    add_shared(command, "output")


def run(options: argparse.Namespace) -> int:
    """Returns PROBLEM where some part asks for somebody. Raises UsageError."""
    if options.bundle and os.path.lexists(options.bundle):
        raise UsageError(f"--bundle {options.bundle}: it exists; name a file that does not")
    environment = surroundings(options)
    asked = all_at_once({part.name: partial(ask, part, environment) for part in parts()}, "parts")
    results = [*asked.values(), disk(environment), clock(environment)]
    document: dict[str, Any] = {
        "parts": [
            {"part": one.part.name, "command": one.part.seen_as, "fine": one.fine, "text": one.text} for one in results
        ],
        "bundle": str(options.bundle or ""),
    }
    if options.bundle:
        write_bundle(options.bundle, results, environment)
    return show(options, document, doctor_text, fine=all(one.fine for one in results))


def surroundings(options: argparse.Namespace) -> dict[str, str]:
    """The environment that the parts run in: HostFactory's, with the directories that the options name."""
    environment = dict(os.environ)
    if options.config:
        path = options.config if options.config.is_dir() else options.config.parent
        environment["HF_PROVIDER_CONFDIR"] = str(path.absolute())
    if options.state_dir:
        environment["HF_PROVIDER_WORKDIR"] = str(options.state_dir.absolute())
    return environment


def parts() -> list[Part]:
    """The questions, in the order in which their answers are read."""
    ours = [sys.executable, "-m", "provisioner"]
    install = os.path.join(SCRIPTS, "check_install.sh")
    return [
        Part("installation", [install], install),
        Part("configuration and clouds", [*ours, "check", "--live"], "provisioner check --live"),
        Part("state files", [*ours, "recover"], "provisioner recover"),
        Part("loop, requests and pools", [*ours, "status"], "provisioner status"),
        Part("HostFactory, memory and clouds", [*ours, "diff"], "provisioner diff"),
        Part("next cycle", [*ours, "plan"], "provisioner plan"),
    ]


def ask(part: Part, environment: Mapping[str, str]) -> Result:
    """The result of a part; one that does not end in time has a problem, too."""
    try:
        done = subprocess.run(
            part.command,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Result(part, False, f"no answer within {SECONDS:.0f} s")
    except OSError as error:
        return Result(part, False, f"it did not start: {error.strerror}")
    said = [line for line in done.stderr.splitlines() if not line.startswith(WAITING)]
    return Result(part, done.returncode == 0, (done.stdout + "\n".join(said)).strip())


def disk(environment: Mapping[str, str]) -> Result:
    """Whether the state directory's disk has room."""
    part = Part("disk", (), "df")
    try:
        path = Directories(environment).state
        free = shutil.disk_usage(path).free
    except (DirectoryError, OSError) as error:
        return Result(part, False, f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error))
    if (refusal := StateDir(path).refusal()) and not is_denied(refusal):
        return Result(part, False, f"{path}: cannot be written: {refusal.strerror}. {what_to_do(refusal)}")
    enough = free >= LEAST_FREE
    advice = "" if enough else f"; make room: below {LEAST_FREE / 1e6:.0f} MB requests may be refused soon"
    return Result(part, enough, f"{path}: {free / 1e6:.0f} MB free{advice}")


def clock(environment: Mapping[str, str]) -> Result:
    """Whether this host and the state directory's file system agree on the time; ``check --live`` asks the clouds."""
    part = Part("clock", (), "date")
    try:
        path = Directories(environment).state
        ahead = StateDir(path).now() - time.time()
    except DirectoryError as error:
        return Result(part, False, str(error))
    except OSError as error:
        return Result(part, is_denied(error), f"{path}: what time it is there cannot be found: {error.strerror}")
    text = f"{path}: its file system's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this host's"
    agrees = abs(ahead) <= MOST_SECONDS
    return Result(part, agrees, text if agrees else f"{text}; synchronize both (chronyc tracking)")


def doctor_text(document: Document) -> str:
    """The document as text for a terminal: a line for each part that is fine, all words of any other."""
    return "\n".join(_lines(document))


def _lines(document: Document) -> Iterator[str]:
    for one in document["parts"]:
        lines = [line for line in one["text"].splitlines() if not line.startswith("fine: ")]
        if one["fine"]:
            yield f"fine  {one['part']}"
            continue
        yield f"LOOK  {one['part']} ({one['command']}):"
        yield from (f"        {line}" for line in lines[:SHOWN])
        if len(lines) > SHOWN:
            yield f"        and {len(lines) - SHOWN} more lines: {one['command']}"
    if document["bundle"]:
        yield f"Written: {document['bundle']}. It holds no value of an unknown setting; look before you send it."


# --- the bundle -------------------------------------------------------------------------------------------------------


def write_bundle(path: Path, results: Sequence[Result], environment: Mapping[str, str]) -> None:
    """Write the answers and the files behind them, without secrets, for their owner alone. Raises UsageError."""
    taken: set[str] = set()
    contents = dict(files(environment, taken))
    clear = without(taken)
    contents |= {re.sub(r"\W+", "-", one.part.name) + ".txt": clear(masked(one.text)) for one in results}
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, BUNDLE_MODE)
        with open(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as bundle:
            for name, text in (contents | {"versions.txt": versions()}).items():
                _add(bundle, name, text.encode())
    except OSError as error:
        raise UsageError(f"--bundle {path}: {error.strerror}") from error


def _add(bundle: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(f"doctor/{name}")
    entry.size, entry.mtime, entry.mode = len(content), int(time.time()), BUNDLE_MODE
    bundle.addfile(entry, io.BytesIO(content))


def files(environment: Mapping[str, str], taken: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and what may be shown of each file; ``taken`` gets what may not."""
    for path, shown in _paths(Directories(environment), taken):
        try:
            content = shown(read_regular(str(path))[-PART_BYTES:].decode(errors="replace"))
        except OSError as error:
            content = f"could not be read: {error.strerror}\n"
        yield f"{path.parent.name}/{path.name}", content


def _paths(directories: Directories, taken: set[str]) -> Iterator[tuple[Path, Callable[[str], str]]]:
    """Yield the instance's files, then state, journal and the scripts' log, with what makes them harmless."""
    try:
        state, conf = Path(directories.state), Path(directories.conf)
        of_hf = conf / f"{directories.name}prov_config.json"
        yield conf / "provisioner.yaml", partial(configuration, known=setting_names(), taken=taken)
        yield of_hf, partial(configuration, known=config_keys(str(of_hf)), taken=taken)
        yield conf / f"{directories.name}prov_templates.json", partial(configuration, known=TEMPLATE_KEYS, taken=taken)
    except DirectoryError:
        return
    ours = [state / name for name in (*STATE_FILES, "loop.lock") if (state / name).exists()]
    ours += state.glob("journal.jsonl*")
    ours += Path(directories.logs).glob(f"{directories.name}-provider.*") if directories.logs else ()
    clear = without(taken)  # of all three by now
    yield from ((path, lambda text: clear(records(text))) for path in sorted(ours))


def configuration(text: str, known: Collection[str], taken: set[str]) -> str:
    """Return a configuration file's harmless settings as JSON."""
    text = text.removeprefix("\ufeff")
    try:
        try:
            document = json.loads(text)  # YAML takes no tabs
        except ValueError:
            document, _ = parse(text[:LARGEST])
        return json.dumps(harmless(document, known, taken), indent=2) + "\n"
    except (yaml.YAMLError, RecursionError):
        return f"{WITHHELD}: it is no YAML or JSON\n"


def records(text: str) -> str:
    """Return a JSON document, or lines of JSON, without secrets; other lines are no program's of ours."""
    return _record(text) or "\n".join((_record(line) or WITHHELD) if line.strip() else "" for line in text.split("\n"))


def _record(text: str) -> str:
    try:
        return json.dumps(cleaned(json.loads(text)))
    except (ValueError, RecursionError):
        return ""


def setting_names() -> set[str]:
    """Return the names of all settings of provisioner.yaml."""
    kinds = [registry.kind(name).pool for name in registry.names()]
    models: list[type[Section]] = [Settings, TemplateSettings, *SECTIONS.values(), *kinds]
    return {name for model in models for name in model.model_fields}


def config_keys(path: str) -> set[str]:
    """Return the keys of HostFactory's configuration of the instance that connectors know."""
    try:
        document = read_json(path)
        return set(document).difference(load_config(path)[0].unknown) if isinstance(document, dict) else set()
    except TemplatesError:
        return set()


def versions() -> str:
    """Return the versions of the program, the interpreter, the system, and every distribution beside them."""
    beside = sorted({f"{one.metadata['Name']} {one.version}" for one in distributions()}, key=str.lower)
    return "\n".join([f"provisioner {__version__}", f"Python {sys.version}", platform.platform(), *beside]) + "\n"
