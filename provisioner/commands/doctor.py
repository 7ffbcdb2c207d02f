"""``provisioner doctor``: runs every check at once, shows each result with what to do, and packs them for support."""

from __future__ import annotations

import argparse
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from provisioner import __version__
from provisioner.backends.place_clock import MOST_SECONDS
from provisioner.commands.looks import WAITING, all_at_once
from provisioner.commands.options import Document, UsageError, add_shared, show
from provisioner.files.regular import read_regular
from provisioner.hostfactory.environment import SCRIPTS, Directories, DirectoryError
from provisioner.state.directory import StateDir
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

MASK = "***"
SECRETS = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL), MASK),
    (re.compile(r"(?<=://)[^/\s@\"']+(?=@)"), MASK),
    (re.compile(r"(?i)(?<=bearer )[\w.~+/=-]+"), MASK),
    (
        re.compile(
            r"(?i)((?:password|passwd|secret|token|api_?key|userdata)[\"']?\s*[:=]\s*)"
            r"(?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s,}\"']+)"
        ),
        rf'\1"{MASK}"',
    ),
)
"""Patterns of secrets and their masks: keys, an address's login, tokens, and settings with such names."""


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
        "secrets masked; no pod spec, no kubeconfig",
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
    except DirectoryError as error:
        return Result(part, False, str(error))
    except OSError as error:
        return Result(part, False, f"{path}: {error.strerror}")
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
        yield f"Written: {document['bundle']}. Secrets are masked as far as their names tell; look before you send it."


# --- the bundle -------------------------------------------------------------------------------------------------------


def write_bundle(path: Path, results: Sequence[Result], environment: Mapping[str, str]) -> None:
    """Write the answers and the files behind them, masked, for nobody else to read. Raises UsageError."""
    texts = {re.sub(r"\W+", "-", one.part.name) + ".txt": one.text for one in results} | {"versions.txt": versions()}
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, BUNDLE_MODE)
        with open(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as bundle:
            for name, text in [*texts.items(), *files(environment)]:
                _add(bundle, name, masked(text).encode())
    except OSError as error:
        raise UsageError(f"--bundle {path}: {error.strerror}") from error


def _add(bundle: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(f"doctor/{name}")
    entry.size, entry.mtime, entry.mode = len(content), int(time.time()), BUNDLE_MODE
    bundle.addfile(entry, io.BytesIO(content))


def files(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The files that tell what happened, each with its newest content, or with the reason why it cannot be read."""
    directories = Directories(environment)
    for path in _paths(directories):
        try:
            content = read_regular(str(path))[-PART_BYTES:].decode(errors="replace")
        except OSError as error:
            content = f"could not be read: {error.strerror}\n"
        yield f"{path.parent.name}/{path.name}", content


def _paths(directories: Directories) -> Iterator[Path]:
    """State files and journal, the instance's three files, and the scripts' log."""
    try:
        state, conf = Path(directories.state), Path(directories.conf)
        for pattern in ("*.json", "journal.jsonl*", "loop.lock"):
            yield from sorted(state.glob(pattern))
        yield from (conf / name for name in ("provisioner.yaml", *_of_instance(directories)))
    except DirectoryError:
        return
    if directories.logs:
        yield from sorted(Path(directories.logs).glob(f"{directories.name}-provider.*"))


def _of_instance(directories: Directories) -> Sequence[str]:
    return [f"{directories.name}prov_{kind}.json" for kind in ("config", "templates")]


def versions() -> str:
    """The program, the interpreter, the system, and every distribution beside them."""
    beside = sorted({f"{one.metadata['Name']} {one.version}" for one in distributions()}, key=str.lower)
    return "\n".join([f"provisioner {__version__}", f"Python {sys.version}", platform.platform(), *beside]) + "\n"


def masked(text: str) -> str:
    """The text with its secrets masked."""
    for secret, mask in SECRETS:
        text = secret.sub(mask, text)
    return text
