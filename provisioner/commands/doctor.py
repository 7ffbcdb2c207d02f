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
from contextlib import suppress
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

import yaml

from provisioner import __version__
from provisioner.backends import registry
from provisioner.backends.place_clock import MOST_SECONDS
from provisioner.commands.observe_pools import WAITING, all_at_once
from provisioner.commands.redaction import WITHHELD, cleaned, harmless, masked, without
from provisioner.commands.shared_options import Document, UsageError, add_shared, show
from provisioner.files.safe_open import read_regular
from provisioner.files.yaml_text import LARGEST, parse
from provisioner.hostfactory.instance import SCRIPTS, Directories, DirectoryError, TemplatesError, load_config
from provisioner.hostfactory.templates import NUMERIC_ATTRIBUTES, OWN_FIELDS
from provisioner.schema.problems import Section
from provisioner.settings.definitions import SECTIONS, Settings, TemplateSettings
from provisioner.state.directory import STATE_FILES, StateDir
from provisioner.state.errors import is_denied, what_to_do

SECONDS = 300.0
"""Seconds that a part may take: a live check waits for the slowest cloud."""

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


PARTS = {
    "configuration and clouds": "check --live",
    "state files": "recover",
    "loop, requests and pools": "status",
    "HostFactory, memory and clouds": "diff",
    "next cycle": "plan",
}
"""Each part and the command that answers it, in the order in which the answers are read."""


class Answer(NamedTuple):
    """The answer of one part."""

    part: str
    command: str
    """The command that gives the same answer."""
    fine: bool
    text: str


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
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
    install = os.path.join(SCRIPTS, "check_install.sh")
    questions = {"installation": partial(ask, "installation", install, [install], environment)}
    for part, words in PARTS.items():
        command = [sys.executable, "-m", "provisioner", *words.split()]
        questions[part] = partial(ask, part, f"provisioner {words}", command, environment)
    answers = [*all_at_once(questions, "parts").values(), disk(environment), clock(environment)]
    document = {"parts": [answer._asdict() for answer in answers], "bundle": str(options.bundle or "")}
    if options.bundle:
        write_bundle(options.bundle, answers, environment)
    return show(options, document, doctor_lines, fine=all(answer.fine for answer in answers))


def surroundings(options: argparse.Namespace) -> dict[str, str]:
    """The environment that the parts run in: HostFactory's, with the directories that the options name."""
    environment = dict(os.environ)
    if options.config:
        path = options.config if options.config.is_dir() else options.config.parent
        environment["HF_PROVIDER_CONFDIR"] = str(path.absolute())
    if options.state_dir:
        environment["HF_PROVIDER_WORKDIR"] = str(options.state_dir.absolute())
    return environment


def ask(part: str, seen_as: str, command: Sequence[str], environment: Mapping[str, str]) -> Answer:
    """The answer of a command by its exit code; one that does not end in time has a problem, too."""
    said = partial(Answer, part, seen_as)
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return said(False, f"no answer within {SECONDS:.0f} s")
    except OSError as error:
        return said(False, f"it did not start: {error.strerror}")
    errors = [line for line in done.stderr.splitlines() if not line.startswith(WAITING)]
    return said(done.returncode == 0, (done.stdout + "\n".join(errors)).strip())


def disk(environment: Mapping[str, str]) -> Answer:
    """Check that the state directory's disk has room."""
    said = partial(Answer, "disk", "df")
    try:
        path = Directories(environment).state
        free = shutil.disk_usage(path).free
    except (DirectoryError, OSError) as error:
        return said(False, f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error))
    if (refusal := StateDir(path).refusal()) and not is_denied(refusal):
        return said(False, f"{path}: cannot be written: {refusal.strerror}. {what_to_do(refusal)}")
    enough = free >= LEAST_FREE
    advice = "" if enough else f"; make room: below {LEAST_FREE / 1e6:.0f} MB requests may be refused soon"
    return said(enough, f"{path}: {free / 1e6:.0f} MB free{advice}")


def clock(environment: Mapping[str, str]) -> Answer:
    """Compare the clocks of this host and the state directory's file system; ``check --live`` asks the clouds."""
    said = partial(Answer, "clock", "date")
    try:
        path = Directories(environment).state
        ahead = StateDir(path).now() - time.time()
    except DirectoryError as error:
        return said(False, str(error))
    except OSError as error:
        return said(is_denied(error), f"{path}: what time it is there cannot be found: {error.strerror}")
    text = f"{path}: its file system's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this host's"
    agrees = abs(ahead) <= MOST_SECONDS
    return said(agrees, text if agrees else f"{text}; synchronize both (chronyc tracking)")


def doctor_lines(document: Document) -> Iterator[str]:
    """The document as lines for a terminal: one for each part that is fine, all words of any other."""
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


def write_bundle(path: Path, answers: Sequence[Answer], environment: Mapping[str, str]) -> None:
    """Write the answers and the files behind them, without secrets, for their owner alone. Raises UsageError."""
    taken: set[str] = set()
    contents = dict(files(environment, taken))
    clear = without(taken)
    contents |= {re.sub(r"\W+", "-", answer.part) + ".txt": clear(masked(answer.text)) for answer in answers}
    contents["versions.txt"] = versions()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, BUNDLE_MODE)
        with open(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as bundle:
            for name, text in contents.items():
                content, entry = text.encode(), tarfile.TarInfo(f"doctor/{name}")
                entry.size, entry.mtime, entry.mode = len(content), int(time.time()), BUNDLE_MODE
                bundle.addfile(entry, io.BytesIO(content))
    except OSError as error:
        raise UsageError(f"--bundle {path}: {error.strerror}") from error


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
        templates = conf / f"{directories.name}prov_templates.json"
        known = {conf / "provisioner.yaml": setting_names(), of_hf: config_keys(str(of_hf)), templates: TEMPLATE_KEYS}
        yield from ((path, partial(configuration, known=names, taken=taken)) for path, names in known.items())
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
    with suppress(TemplatesError):
        config, _, document = load_config(path)
        return document.keys() - {*config.unknown}
    return set()


def versions() -> str:
    """Return the versions of the program, the interpreter, the system, and every distribution beside them."""
    beside = sorted({f"{one.metadata['Name']} {one.version}" for one in distributions()}, key=str.lower)
    return "\n".join([f"provisioner {__version__}", f"Python {sys.version}", platform.platform(), *beside]) + "\n"
