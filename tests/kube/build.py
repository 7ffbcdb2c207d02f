"""Build a real cluster for tests, once per machine, and print its directory: ``python -m tests.kube.build``.

The command ``go`` builds etcd, Kubernetes and kwok from the modules beside this file. The build needs ten minutes on
two cores, and 4.5 GB for caches. If KUBEBUILDER_ASSETS names a directory with all programs, the tests use this
directory and build nothing.

``python -m tests.kube.build kustomize`` builds only kustomize.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PROGRESS_SECONDS = 15.0
"""Seconds between two lines that say how far a build is."""


class BuildError(Exception):
    """The reason why a cluster cannot be built, as one line for the operator."""


@dataclass(frozen=True, slots=True)
class Module:
    """A Go module beside this file."""

    name: str
    """The name of the built programs in the cache directory's name."""
    directory: Path
    source: str
    """The Go module that the programs come from, as go.mod names it."""
    packages: Mapping[str, str]
    """Go package of each program."""

    def version(self) -> str:
        """Return the version that go.mod requires, such as v1.34.3."""
        text = (self.directory / "go.mod").read_text()
        match = re.search(rf"^\s*{re.escape(self.source)} (v\S+)", text, re.MULTILINE)
        if match is None:
            raise BuildError(f"{self.directory}/go.mod: requires no {self.source}")
        return match[1]

    def linker_flags(self) -> str:
        """Return linker flags that leave out debug information.

        Kubernetes gets its version by these flags. Without them it reports v0.0.0.
        """
        if self.source != "k8s.io/kubernetes":
            return "-s -w"
        major, minor, _ = self.version().removeprefix("v").split(".", 2)
        values = {"gitVersion": self.version(), "gitMajor": major, "gitMinor": minor}
        return " ".join(
            ["-s -w", *(f"-X k8s.io/component-base/version.{key}={value}" for key, value in values.items())]
        )


MODULES = (
    Module("etcd", HERE / "etcd", "go.etcd.io/etcd/server/v3", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Module("kwok", HERE / "kwok", "sigs.k8s.io/kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
    Module(
        "kube",
        HERE,
        "k8s.io/kubernetes",
        {
            program: f"k8s.io/kubernetes/cmd/{program}"
            for program in ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
        },
    ),
)
PROGRAMS = tuple(program for module in MODULES for program in module.packages)
KUSTOMIZE = Module(
    "kustomize",
    HERE / "kustomize",
    "sigs.k8s.io/kustomize/kustomize/v5",
    {"kustomize": "sigs.k8s.io/kustomize/kustomize/v5"},
)
"""A module of its own, because tests without a server also build manifests."""


def missing(directory: Path) -> list[str]:
    """Return the programs that a directory lacks."""
    return [program for program in PROGRAMS if not os.access(directory / program, os.X_OK)]


def assets(environment: Mapping[str, str]) -> Path:
    """Return the directory with all programs. Build it if it is missing. Raises BuildError."""
    given = environment.get("KUBEBUILDER_ASSETS")
    if given:
        if lacking := missing(Path(given)):
            raise BuildError(f"KUBEBUILDER_ASSETS={given} lacks {', '.join(lacking)}")
        return Path(given)
    return _built(MODULES, environment)


def kustomize(environment: Mapping[str, str]) -> Path:
    """Return the program kustomize. Build it if it is missing. Raises BuildError."""
    return _built((KUSTOMIZE,), environment) / "kustomize"


def _built(modules: Sequence[Module], environment: Mapping[str, str]) -> Path:
    """Return the directory of the programs that are built from these modules."""
    directory = cache_directory(modules, environment)
    once(directory, lambda aside: _build_all(modules, aside))
    return directory


def once(directory: Path, build: Callable[[Path], None]) -> None:
    """Let ``build`` fill a directory if it does not exist. The directory appears only once it is complete."""
    if directory.is_dir():
        return
    with _lock(directory):
        if directory.is_dir():
            return
        aside = Path(tempfile.mkdtemp(prefix=".building-", dir=directory.parent))
        try:
            build(aside)
            aside.chmod(0o755)
            aside.rename(directory)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def cache_directory(modules: Sequence[Module], environment: Mapping[str, str]) -> Path:
    """Return the directory of the programs of these versions."""
    return cache(environment) / "-".join(f"{module.name}-{module.version()}" for module in reversed(modules))


def cache(environment: Mapping[str, str]) -> Path:
    """Return the directory of everything that is built once per machine."""
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hostfactory-provisioner"


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """Let one build at a time run on a machine; the others wait for it."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / f"{directory.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another build is under way; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build_all(modules: Sequence[Module], directory: Path) -> None:
    """Build every program."""
    programs = ", ".join(program for module in modules for program in module.packages)
    if shutil.which("go") is None:
        instead = f"; or let KUBEBUILDER_ASSETS name a directory that holds {programs}" if modules is MODULES else ""
        raise BuildError(f"Go 1.24 or newer is needed to build {programs} for tests{instead}")
    _say(f"building {programs}: once per machine, minutes on two cores")
    for module in modules:
        _build(module, directory)


def _build(module: Module, directory: Path) -> None:
    """Build the programs of one module. ``go build -v`` names each compiled package, which shows the progress."""
    packages = list(module.packages.values())
    listed = subprocess.run(
        ["go", "list", "-mod=readonly", "-deps", *packages], cwd=module.directory, stdout=subprocess.PIPE, check=False
    )
    if listed.returncode:
        raise BuildError(f"go list failed for {module.name} {module.version()}")
    total, done, printed_at = len(listed.stdout.splitlines()), 0, time.monotonic()
    # A single package may be given its program's name; several get their own in a directory.
    target = directory / next(iter(module.packages)) if len(packages) == 1 else f"{directory}/"
    command = ["go", "build", "-mod=readonly", "-v", "-o", str(target), "-ldflags", module.linker_flags(), *packages]
    _say(f"{module.name} {module.version()}: {total} packages")
    rest: list[str] = []
    with subprocess.Popen(command, cwd=module.directory, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            done += 1
            rest = [*rest[-20:], line]
            if time.monotonic() - printed_at > PROGRESS_SECONDS:
                printed_at = time.monotonic()
                _say(f"{module.name} {module.version()}: {done} of at most {total} packages compiled")
    if process.returncode:
        raise BuildError(f"go build failed for {module.name} {module.version()}:\n{''.join(rest)}")


def _say(text: str) -> None:
    print(f"test cluster: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Print the directory of the programs, or the path of kustomize."""
    try:
        print(kustomize(os.environ) if sys.argv[1:] == ["kustomize"] else assets(os.environ))
    except BuildError as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
