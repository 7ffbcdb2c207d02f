"""Install Ray for tests, once per machine, and print its Python: ``python -m tests.ray.build``.

Ray gets its own environment, in a cache directory for each version of Ray and Python. The installation takes a minute
and several hundred megabytes. If TEST_RAY names the Python of an environment with Ray, the tests use that Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

from tests.kube.build import BuildError, cache, once

VERSION = "2.60.0"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def python(environment: Mapping[str, str], *, install: bool = False) -> Path:
    """Return the path of a Python that has Ray. Raises BuildError if there is none.

    ``install``: install Ray first if it is missing.
    """
    if given := environment.get("TEST_RAY"):
        return Path(given)
    directory = cache(environment) / f"ray-{VERSION}-python-{PYTHON}"
    if install:
        once(directory, _install)
    if not directory.is_dir():
        raise BuildError("make test-ray installs it")
    return directory / "bin" / "python"


def _install(directory: Path) -> None:
    """Make the environment. The caller renames the directory later, which breaks the environment's scripts, so Ray is
    run by the environment's Python."""
    _say(f"installing Ray {VERSION}: once per machine, a minute")
    venv.create(directory, with_pip=True)
    pip = [directory / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, f"ray[default]=={VERSION}"], stdout=sys.stderr, check=False)
    if done.returncode:
        raise BuildError(f"pip cannot install Ray {VERSION} for Python {PYTHON}")


def _say(text: str) -> None:
    print(f"test Ray: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Print the Python that has Ray."""
    try:
        print(python(os.environ, install=True))
    except BuildError as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
