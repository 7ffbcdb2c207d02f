"""The command ``provisioner doctor``: run all checks, and show each problem with its remedy.

The command can also pack all results into a file for support. This file is called the bundle.
"""

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

from provisioner.backends import registry
from provisioner.backends.place_clock import MOST_SECONDS
from provisioner.commands.observe_pools import WAITING, all_at_once
from provisioner.commands.redaction import WITHHELD, cleaned, harmless, make_remover, mask_secrets
from provisioner.commands.shared_options import Document, UsageError, add_shared, find_store, show
from provisioner.files.safe_open import read_regular
from provisioner.files.version import full_version
from provisioner.files.yaml_text import LARGEST, parse
from provisioner.hostfactory.provider_config import (
    KUBERNETES,
    SCRIPTS,
    Directories,
    DirectoryError,
    TemplatesError,
    load_config,
)
from provisioner.hostfactory.templates import NUMERIC_ATTRIBUTES, OWN_FIELDS
from provisioner.schema.validation import Section
from provisioner.settings.definitions import SECTIONS, Settings, TemplateSettings
from provisioner.state.directory import STATE_FILES, StateDir
from provisioner.state.errors import StateError, advice_message, is_denied
from provisioner.state.kube.objects import leases

SECONDS = 300.0
"""Maximum seconds for one of the commands that doctor runs. A live check lasts until the slowest cloud has answered."""

SHOWN = 3
"""Maximum number of lines that doctor shows of a failed command's output. The first shown line starts with a word in
capitals. The bundle and the command itself show the whole output."""

LEAST_FREE = 200_000_000
"""Bytes that should be free on the disk of the state directory: three times the maximum size of the journal."""

PART_BYTES = 20_000_000
"""Maximum number of bytes of a file in the bundle. If a file is longer, the bundle contains only the end of the
file."""

BUNDLE_MODE = 0o600

TEMPLATE_KEYS = {"templates", "pools", "podSpecYaml", "gcp_zone", "gcp_region", "gcp_instance_group", "type"}
TEMPLATE_KEYS |= OWN_FIELDS | NUMERIC_ATTRIBUTES
"""Fields and attributes of HostFactory's templates that contain no secret."""


PARTS = {
    "configuration and clouds": "check --live",
    "state": "recover",
    "loop, requests and pools": "status",
    "HostFactory, memory and clouds": "diff",
    "next cycle": "plan",
}
"""The ``provisioner`` commands that doctor runs, by heading. Doctor shows a command's output below its heading, in this
order."""


class PartResult(NamedTuple):
    """The result of one check. A check runs a command, or it is doctor's own check of the disk or the clock."""

    part: str
    command: str
    """The command that an operator can run to see the same output."""
    fine: bool
    text: str


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_shared(command, "config", "state-dir")
    command.add_argument(
        "--bundle",
        type=Path,
        metavar="FILE",
        help="also write a .tar.gz for support: this output, state files, journal, configuration and the scripts' log, "
        "without secrets, pod specs and kubeconfigs",
    )
    add_shared(command, "output")


def run(options: argparse.Namespace) -> int:
    """Run all commands and checks, and print their results. Return PROBLEM if one of them found a problem. Raises
    UsageError."""
    if options.bundle and os.path.lexists(options.bundle):
        raise UsageError(f"--bundle {options.bundle}: already exists; name another file")
    environment = parts_environment(options)
    install = os.path.join(SCRIPTS, "check_install.sh")
    questions = {"installation": partial(ask, "installation", install, [install], environment)}
    for part, words in PARTS.items():
        command = [sys.executable, "-m", "provisioner", *words.split()]
        questions[part] = partial(ask, part, f"provisioner {words}", command, environment)
    results = [*all_at_once(questions, "parts").values(), disk(environment), clock(environment)]
    document = {"parts": [one._asdict() for one in results], "bundle": str(options.bundle or "")}
    if options.bundle:
        write_bundle(options.bundle, results, environment)
    return show(options, document, doctor_lines, fine=all(one.fine for one in results))


def parts_environment(options: argparse.Namespace) -> dict[str, str]:
    """Return the environment of the commands that doctor runs.

    It is this process's environment, with the directories that the options name. Raises UsageError.
    """
    environment = dict(os.environ)
    if options.config:
        path = options.config if options.config.is_dir() else options.config.parent
        environment["HF_PROVIDER_CONFDIR"] = str(path.absolute())
    if options.state_dir:
        if str(options.state_dir).startswith(KUBERNETES):
            raise UsageError(f"--state-dir {options.state_dir}: doctor reads STATE in the provider config instead")
        environment["HF_PROVIDER_WORKDIR"] = str(options.state_dir.absolute())
    return environment


def ask(part: str, seen_as: str, command: Sequence[str], environment: Mapping[str, str]) -> PartResult:
    """Run a command, and return its output under the heading ``part``.

    The result is fine if the exit code is 0. A command that does not end within ``SECONDS`` is a problem. ``seen_as``:
    the command as an operator types it.
    """
    part_result = partial(PartResult, part, seen_as)
    try:
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return part_result(False, f"the command did not end within {SECONDS:.0f} s")
    except OSError as error:
        return part_result(False, f"the program did not start: {error.strerror}")
    errors = [line for line in result.stderr.splitlines() if not line.startswith(WAITING)]
    return part_result(result.returncode == 0, (result.stdout + "\n".join(errors)).strip())


def disk(environment: Mapping[str, str]) -> PartResult:
    """Check that the disk of the state directory has enough free space and can be written."""
    part_result = partial(PartResult, "disk", "df")
    try:
        directories = Directories(environment)
        if find_store(environment) and not environment.get("HF_PROVIDER_WORKDIR"):
            return part_result(True, "the state is in a Kubernetes API, and no directory is set for the journal")
        path = directories.state
        free = shutil.disk_usage(path).free
    except OSError as error:
        return part_result(False, f"{path}: {error.strerror}")
    except (DirectoryError, TemplatesError, StateError) as error:
        return part_result(False, str(error))
    if (refusal := StateDir(path).find_write_error()) and not is_denied(refusal):
        return part_result(False, f"{path}: cannot be written: {refusal.strerror}. {advice_message(refusal)}")
    text = f"{path}: {free / 1e6:.0f} MB free"
    advice = f"free some space, because below {LEAST_FREE / 1e6:.0f} MB requests may be refused soon"
    return part_result(True, text) if free >= LEAST_FREE else part_result(False, f"{text}; {advice}")


def clock(environment: Mapping[str, str]) -> PartResult:
    """Compare this host's clock with the clock of the state's file system or API server. The clocks of the clouds are
    compared by ``check --live``."""
    part_result = partial(PartResult, "clock of the state against this host's", "date")
    try:
        directories = Directories(environment)
        if (store := find_store(environment)) is None:
            path = directories.state
            now = StateDir(path).now()
        else:
            api = store.api()  # every response has the time, also that of a missing object
            path, now = api.name, api.call("GET", f"{leases(api.namespace)}/none").at
        ahead = now - time.time()
    except (DirectoryError, TemplatesError, StateError) as error:
        return part_result(False, str(error))
    except OSError as error:
        return part_result(is_denied(error), f"{path}: the time of its file system cannot be read: {error.strerror}")
    text = f"{path}: its clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this host's"
    is_close = abs(ahead) <= MOST_SECONDS
    return part_result(is_close, text if is_close else f"{text}; synchronize both clocks (chronyc tracking)")


def doctor_lines(document: Document) -> Iterator[str]:
    """Yield the lines for a terminal: one line for each result that is fine, and the problems of every other result."""
    for one in document["parts"]:
        lines = [line for line in one["text"].splitlines() if not line.startswith("fine: ")]
        if one["fine"]:
            yield f"fine  {one['part']}"
            continue
        yield f"PROBLEM  {one['part']} ({one['command']}):"
        first = next((number for number, line in enumerate(lines) if re.match(r"\s*[A-Z]{3,}\b", line)), 0)
        yield from (f"        {line}" for line in lines[first : first + SHOWN])
        if len(lines) > SHOWN:
            yield f"        and {len(lines) - SHOWN} more lines: {one['command']}"
    if document["bundle"]:
        yield f"Written: {document['bundle']}. Values of unknown settings are withheld. Check it before you send it."


# --- the bundle -------------------------------------------------------------------------------------------------------


def write_bundle(path: Path, results: Sequence[PartResult], environment: Mapping[str, str]) -> None:
    """Write the bundle as a new file ``path``, which only the owner may read.

    The bundle contains the results, configuration, state, journal and log. Secrets are removed. Raises UsageError if
    the file cannot be written.
    """
    withheld: set[str] = set()
    contents = dict(files(environment, withheld))
    remove_withheld = make_remover(withheld)
    contents |= {re.sub(r"\W+", "-", one.part) + ".txt": remove_withheld(mask_secrets(one.text)) for one in results}
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


def files(environment: Mapping[str, str], withheld: set[str]) -> Iterator[tuple[str, str]]:
    """Yield name and content of each file for the bundle, without secrets. Of a file with more than ``PART_BYTES``
    bytes, the content is the last ``PART_BYTES`` bytes. Add each value that is left out to ``withheld``."""
    for path, redact in _paths(Directories(environment), withheld):
        try:
            content = redact(read_regular(str(path))[-PART_BYTES:].decode(errors="replace"))
        except OSError as error:
            content = f"could not be read: {error.strerror}\n"
        yield f"{path.parent.name}/{path.name}", content


def _paths(directories: Directories, withheld: set[str]) -> Iterator[tuple[Path, Callable[[str], str]]]:
    """Yield the path of each file for the bundle, with a function that removes secrets from the file's content.

    The configuration files come first. Their functions add the removed values to ``withheld``. The functions of state,
    journal and log then remove the same values from these files.
    """
    try:
        state, conf = Path(directories.state), Path(directories.conf)
        of_hf = conf / f"{directories.name}prov_config.json"
        templates = conf / f"{directories.name}prov_templates.json"
        known = {conf / "provisioner.yaml": setting_names(), of_hf: config_keys(str(of_hf)), templates: TEMPLATE_KEYS}
        yield from ((path, partial(configuration, known=names, withheld=withheld)) for path, names in known.items())
    except DirectoryError:
        return
    own_files = [state / name for name in (*STATE_FILES, "loop.lock") if (state / name).exists()]
    own_files += state.glob("journal.jsonl*")
    own_files += Path(directories.logs).glob(f"{directories.name}-provider.*") if directories.logs else ()
    remove_withheld = make_remover(withheld)
    yield from ((path, lambda text: remove_withheld(records(text))) for path in sorted(own_files))


def configuration(text: str, known: Collection[str], withheld: set[str]) -> str:
    """Return a configuration file's text as JSON, with only the values of the ``known`` settings.

    Add all other values to ``withheld``. If the text is neither JSON nor YAML, return a note in its place.
    """
    text = text.removeprefix("\ufeff")
    try:
        try:
            document = json.loads(text)  # parse as JSON first, because YAML does not allow tabs
        except ValueError:
            document, _ = parse(text[:LARGEST])
        return json.dumps(harmless(document, known, withheld), indent=2) + "\n"
    except (yaml.YAMLError, RecursionError):
        return f"{WITHHELD}: neither YAML nor JSON\n"


def records(text: str) -> str:
    """Return a JSON document, or lines of JSON, without secrets. A line that is not JSON is withheld, because the
    provisioner did not write it."""
    return _record(text) or "\n".join((_record(line) or WITHHELD) if line.strip() else "" for line in text.split("\n"))


def _record(text: str) -> str:
    with suppress(ValueError, RecursionError):
        return json.dumps(cleaned(json.loads(text)))
    return ""


def setting_names() -> set[str]:
    """Return the names of all settings of provisioner.yaml."""
    kinds = [registry.get_kind(name).pool for name in registry.kind_names()]
    models: list[type[Section]] = [Settings, TemplateSettings, *SECTIONS.values(), *kinds]
    return {name for model in models for name in model.model_fields}


def config_keys(path: str) -> set[str]:
    """Return those keys of the provider config at ``path`` that the provisioner knows."""
    with suppress(TemplatesError):
        config, _, document = load_config(path)
        return document.keys() - {*config.unknown}
    return set()


def versions() -> str:
    """Return the versions of the program, the interpreter, the system, and every installed distribution."""
    installed = sorted({f"{one.metadata['Name']} {one.version}" for one in distributions()}, key=str.lower)
    return "\n".join([f"provisioner {full_version()}", f"Python {sys.version}", platform.platform(), *installed]) + "\n"
