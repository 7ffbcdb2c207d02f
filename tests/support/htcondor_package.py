"""Install PyPI's package ``htcondor`` for tests, once per machine.

``python -m tests.support.htcondor_package`` prints its Python. The package gets its own environment, because no part of
this project requires it. If TEST_HTCONDOR names the Python of an environment with the package, the tests use that
Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

from tests.kube.build import BuildError, cache, once

VERSION = "25.14.1"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def python(environment: Mapping[str, str], *, install: bool = False) -> Path:
    """Return the Python that has the package. With ``install``, install the package if it is missing. Raise BuildError
    if the package is missing."""
    if given := environment.get("TEST_HTCONDOR"):
        return Path(given)
    directory = cache(environment) / f"htcondor-{VERSION}-python-{PYTHON}"
    if install:
        once(directory, _install)
    if not directory.is_dir():
        raise BuildError("make test-schedulers installs it")
    return directory / "bin" / "python"


def _install(directory: Path) -> None:
    venv.create(directory, with_pip=True)
    pip = [directory / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*pip, f"htcondor=={VERSION}"], stdout=sys.stderr, check=False).returncode:
        raise BuildError(f"pip cannot install htcondor {VERSION} for Python {PYTHON}")


if __name__ == "__main__":
    print(python(os.environ, install=True))
