"""The programs of a pool: their arguments, their environment, and the meaning of their exit codes and outputs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from provisioner.backends import BackendError
from provisioner.backends.call_budget import CallBudget
from provisioner.backends.command.settings import CommandPool, Ending
from provisioner.backends.login_refusals import read_secret
from provisioner.backends.processes import Finished, TooMuchOutput, run_program
from provisioner.backends.responses import words
from provisioner.model import ErrorClass

MOST_OUTPUT = 64 << 20
"""Maximum number of bytes that a program may print."""
GRACE_SECONDS = 5.0
"""Seconds between SIGTERM and SIGKILL, which end a program that runs for too long."""
MINUTE = 60.0


class Commands:
    """The programs of one pool. Thread-safe."""

    def __init__(self, pool: CommandPool, known: Mapping[str, object]) -> None:
        """Prepare the programs. ``known``: the values of placeholders that are the same for all machines."""
        self._pool, self._known = pool, {"user": pool.user or "", **known}
        self._budget = CallBudget(pool.calls_per_minute, MINUTE)

    def run(self, argv: Sequence[str], deadline: float, **values: object) -> Finished:
        """Run a program to its end, and return its result.

        Raise BackendError if the program cannot begin before ``deadline`` (monotonic time), cannot be run, prints too
        much (class OTHER), or runs too long (class TIMEOUT).
        """
        self._budget.wait_for_read(deadline)
        pool, seconds = self._pool, self._pool.time_out_seconds
        variables = {**pool.variables, **pool.template_variables.get(str(values.get("template")), {})}
        filled = [argument.format_map({**variables, **self._known, **values}) for argument in argv]
        program, environment = filled[0], self._environment(values)
        try:
            return run_program(filled, environment, seconds=seconds, most_bytes=MOST_OUTPUT, grace=GRACE_SECONDS)
        except TimeoutError as error:
            text = f"{program} {error} (pools.{pool.name}.time_out_seconds)"
            raise BackendError(ErrorClass.TIMEOUT, text) from error
        except TooMuchOutput as error:
            raise BackendError(ErrorClass.OTHER, f"{program} {error}") from error
        except OSError as error:
            text = f"{program} cannot be run: {error.strerror}: install it, or correct pools.{pool.name}"
            raise BackendError(ErrorClass.NOT_FOUND, text) from error

    def close(self) -> None:
        """Start no further program."""
        self._budget.close()

    def failure(self, ended: Finished, program: str) -> BackendError:
        """Return the error of a program that has failed."""
        said = " ".join(part.decode(errors="replace").strip() for part in (ended.errors, ended.output)).strip()
        error = self._pool.class_of(self._pool.errors, said) or ErrorClass.OTHER
        return BackendError(error, words(f"{program} ended with {ended.code}: {said or 'it printed nothing'}"))

    def _environment(self, values: Mapping[str, object]) -> Mapping[str, str]:
        """Return the environment variables of a program. Raise BackendError if the credentials cannot be read."""
        pool = self._pool
        made = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ} | {"LANG": "C.UTF-8"}
        made |= {"HF_MACHINE_NAME": str(values["name"])} if "name" in values else {}
        made |= pool.environment
        if pool.credentials is not None:
            setting = f"pools.{pool.name}.credentials"
            made[pool.credentials_variable] = read_secret(pool.credentials, setting, "utf-8")
        return made


def is_ended_as(ending: Ending | None, ended: Finished) -> bool:
    """Return True if exit code and output of a program match ``ending``; False if ``ending`` is None."""
    if ending is None or ended.code not in ending.exit:
        return False
    said = (ended.errors + b"\n" + ended.output).decode(errors="replace")
    return ending.match is None or re.search(ending.match, said) is not None
