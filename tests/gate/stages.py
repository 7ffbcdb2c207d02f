"""Name the stages of the gate, and select the stages whose inputs a change touches. The functions read the files of the
repository. They start no process and read no clock."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache, cached_property
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PACKAGES = ("provisioner", "hf_scripts", "tests")


@dataclass(frozen=True)
class Stage:
    """A part of the gate: a make target that passes or fails."""

    name: str
    target: str
    """The make target."""
    is_always_run: bool = False
    """True if the stage runs even if a recorded complete run would make it unnecessary."""
    marker: str = ""
    """The pytest marker of its tests; empty if the target runs no marked tests."""
    paths: tuple[str, ...] = ()
    """Patterns of files on which the stage depends without importing them."""
    needs: tuple[str, ...] = ()
    """Programs without which the stage cannot run at all."""
    judge: str = ""
    """A module that runs the target in the place of a bare make, and judges the effects of the target's processes."""


STAGES = (
    Stage("lint", "lint", is_always_run=True),
    Stage("test", "test", is_always_run=True),
    Stage("checkov", "checkov", paths=("deploy/**", "tests/support/checks/checkov.py", "tests/support/manifests.py")),
    Stage("slow", "test-slow", marker="slow", paths=("deploy/**", "docs/**", "config/**", "README.md")),
    Stage("flips", "test-flips", marker="flips"),
    Stage("pubsub", "test-pubsub", marker="pubsub"),
    Stage("kube", "test-kube", marker="kube", paths=("deploy/**", "config/**"), needs=("go",)),
    Stage("schedulers", "test-schedulers", marker="schedulers", paths=("config/places/**", "config/slurm-first/**")),
    Stage("ray", "test-ray", marker="ray"),
    Stage("vm", "test-vm", marker="vm", paths=("deploy/**", "docs/**", "config/**")),
    Stage("crowd", "test-crowd", marker="crowd"),
    Stage("chaos", "test-chaos", marker="chaos"),
    Stage("demo", "demo", is_always_run=True, judge="tests.support.checks.simulators"),
)

EVERY_STAGE = (
    "setup.cfg",
    "pyproject.toml",
    "Makefile",
    ".ci/run",
    "provisioner/model/**",
    "tests/conftest.py",
    "tests/every_process/**",
    "tests/gate/**",
)
"""Files on which each stage depends."""

NO_STAGE = (
    ".ci/complete-run.json",
    ".github/**",
    ".gitignore",
    ".pre-commit-config.yaml",
    "*.md",
    "LICENSE",
    "docs/**",
    "ruff.toml",
    "config/**",
    "deploy/**",
)
"""Files on which only lint and `make test` depend, which always run. If ``Stage.paths`` of another stage names a file,
that stage depends on it, too."""

LOADED_BY_NAME = {
    "provisioner.backends.registry": (
        "provisioner.backends.gke.kind",
        "provisioner.backends.mig.kind",
        "provisioner.backends.command.kind",
        "provisioner.backends.ray.kind",
        "provisioner.backends.slurm.kind",
    ),
}
"""Modules that another module imports by a name that it computes. Commands are not listed, because a test that starts a
process depends on all of them anyway."""


@dataclass(frozen=True)
class Selection:
    """The selected stages. ``run``: stage → reason why a change needs it. ``left``: stage → reason why it may be left
    out."""

    run: Mapping[str, str]
    left: Mapping[str, str]


class Tree:
    """The files of the repository and their imports."""

    def __init__(self, root: Path = ROOT, graph: grimp.ImportGraph | None = None) -> None:
        self._root = root
        self._graph = graph or grimp.build_graph(*PACKAGES, cache_dir=None, exclude_type_checking_imports=False)
        for importer, names in LOADED_BY_NAME.items():
            for name in names:
                self._graph.add_import(importer=importer, imported=name)
        self._files = {self._file(module): module for module in self._graph.modules}
        if unknown := self._unknown():
            raise ValueError(f"not in the import graph, is an __init__.py missing beside it? {', '.join(unknown)}")

    def _file(self, module: str) -> str:
        path = module.replace(".", "/")
        return f"{path}/__init__.py" if (self._root / path).is_dir() else f"{path}.py"

    def _unknown(self) -> list[str]:
        """Return the test files that the graph lacks. The gate would overlook the dependencies of such files."""
        found = (path.relative_to(self._root).as_posix() for path in (self._root / "tests").rglob("test_*.py"))
        return sorted(set(found) - self._files.keys())

    @cached_property
    def _product(self) -> Set[str]:
        return {module for module in self._graph.modules if not module.startswith("tests")}

    def modules_of(self, file: str) -> Set[str]:
        """Return the modules to which a file belongs; empty for a file outside of the packages.

        A module's file belongs to this module. Another file, such as a template or a golden file, belongs to all
        modules of the nearest folder with modules. The same holds for the file of a deleted module.
        """
        if file in self._files:
            return {self._files[file]}
        for folder in Path(file).parents:
            if beside := {module for path, module in self._files.items() if Path(path).parent == folder}:
                return beside
        return set()

    @cache  # noqa: B019 - there is one tree in a run
    def inputs(self, stage: Stage) -> Set[str]:
        """Return the modules on which the marked tests of a stage depend.

        Imports do not show which modules a process loads. So tests that start a process depend on the whole product.
        """
        if not stage.marker:
            return set()
        mark = re.compile(rf"\bmark\.{stage.marker}\b")
        marked = {module for file, module in self._files.items() if self._is_marked(file, mark)}
        tests = set(marked)
        for module in marked:
            if module.rpartition(".")[2] == "conftest":
                folder = module.rpartition(".")[0]
                tests |= {one for one in self._graph.modules if one.startswith(f"{folder}.")}
            elif not module.rpartition(".")[2].startswith("test_"):
                tests |= self._graph.find_downstream_modules(module)
        reached = set(tests)
        for module in tests:
            reached |= self._graph.find_upstream_modules(module)
        if any("subprocess" in self._text(module) for module in reached if module.startswith("tests.")):
            reached |= self._product
        for module in [*reached]:
            parents = [module.rsplit(".", count)[0] for count in range(1, module.count(".") + 1)]
            reached |= {*parents, *(f"{parent}.conftest" for parent in parents)} & self._graph.modules
        return reached

    def _is_marked(self, file: str, mark: re.Pattern[str]) -> bool:
        return file.startswith("tests/") and not file.startswith("tests/gate/") and bool(mark.search(self._read(file)))

    def _read(self, file: str) -> str:
        return (self._root / file).read_text()

    def _text(self, module: str) -> str:
        return self._read(self._file(module))


def select(changed: Iterable[str] | None, passed: Set[str], tree: Tree, unknown_message: str = "") -> Selection:
    """Return the stages to run after a change. ``changed``: the paths changed since the recorded commit. ``passed``:
    the stages that passed in the recorded run.

    If there is no record, ``changed`` is None and every stage runs. ``unknown_message`` is the reason why there is no
    record.
    """
    if changed is None:
        return Selection({stage.name: unknown_message for stage in STAGES}, {})
    files = sorted(changed)
    everywhere = next((file for file in files if _matches(file, EVERY_STAGE)), None)
    run, left = {}, {}
    for stage in STAGES:
        if stage.is_always_run:
            run[stage.name] = "always runs"
        elif stage.name not in passed:
            run[stage.name] = "did not pass in the recorded run"
        elif everywhere:
            run[stage.name] = f"{everywhere} changed"
        elif (file := _first_input(files, stage, tree)) is not None:
            run[stage.name] = f"{file} changed"
        else:
            left[stage.name] = "passed in the recorded run, and none of its inputs changed"
    return Selection(run, left)


def _first_input(files: Iterable[str], stage: Stage, tree: Tree) -> str | None:
    inputs = tree.inputs(stage)
    for file in files:
        if _matches(file, stage.paths):
            return file
        modules = tree.modules_of(file)
        if modules & inputs or not (modules or _matches(file, NO_STAGE)):
            return file
    return None


def _matches(file: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(file, pattern) for pattern in patterns)
