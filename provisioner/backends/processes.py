"""Programs that a backend runs, each with a time-out and a limit on its output. No program outlives its call."""

from __future__ import annotations

import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from provisioner.process_end import ends_process


class Finished(NamedTuple):
    """The result of a program: exit code and outputs."""

    code: int
    output: bytes
    errors: bytes


class TooMuchOutput(OSError):
    """Raised if a program prints more than allowed."""


def run_program(
    argv: Sequence[str], environment: Mapping[str, str], *, seconds: float, most_bytes: int, grace: float = 0.0
) -> Finished:
    """Run a program without a terminal, and return its result. ``environment``: all environment variables of the
    program.

    Raise TimeoutError after ``seconds``, and TooMuchOutput if an output exceeds ``most_bytes``. Raise another OSError
    if the program cannot be run. After TimeoutError or TooMuchOutput, the program's processes get SIGTERM, and SIGKILL
    ``grace`` seconds later.
    """

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    with ends_process(start) as process, process:
        try:
            output, errors = _read_outputs(process, seconds, most_bytes)
        except (subprocess.TimeoutExpired, TooMuchOutput) as error:
            _end_group(process, grace)
            if isinstance(error, TooMuchOutput):
                raise
            raise TimeoutError(f"did not end within {seconds:g} s") from error
        return Finished(process.returncode, output, errors)


def _read_outputs(process: subprocess.Popen[bytes], seconds: float, most_bytes: int) -> tuple[bytes, bytes]:
    """Return both outputs of a program that has ended."""
    deadline = time.monotonic() + seconds
    pieces: dict[Any, list[bytes]] = {process.stdout: [], process.stderr: []}
    with selectors.DefaultSelector() as waiting:
        for pipe in pieces:
            waiting.register(pipe, selectors.EVENT_READ)
        while waiting.get_map():
            if not (ready := waiting.select(max(0.0, deadline - time.monotonic()))):
                raise subprocess.TimeoutExpired(process.args, seconds)
            for key, _ in ready:
                read = pieces[key.fileobj]
                read.append(os.read(key.fd, 1 << 20))
                if not read[-1]:
                    waiting.unregister(key.fileobj)
                elif sum(map(len, read)) > most_bytes:
                    raise TooMuchOutput(f"printed more than {most_bytes >> 10} KiB")
    process.wait(max(0.0, deadline - time.monotonic()))
    return b"".join(pieces[process.stdout]), b"".join(pieces[process.stderr])


def _end_group(process: subprocess.Popen[bytes], grace: float) -> None:
    """End a program with all its processes. Call this function before the program's exit code is read, because the
    process group exists only until then."""
    if grace:
        os.killpg(process.pid, signal.SIGTERM)
        ended = os.pidfd_open(process.pid)
        select.select([ended], [], [], grace)
        os.close(ended)
    os.killpg(process.pid, signal.SIGKILL)
