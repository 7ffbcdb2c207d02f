"""Imports point one way, and each library has one importer."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("provisioner", "hf_scripts")
    for path in (ROOT / package).rglob("*.py")
}

STORE_MODULES = (
    "store",
    "storage",
    "durable",
    "locks",
    "wishes",
    "marks",
    "told",
    "published",
    "journal",
    "records",
    "users",
)
WORDS = {"provisioner.model", "provisioner.names"}
STORE = {f"provisioner.{name}" for name in STORE_MODULES}
PURE = {
    f"provisioner.{name}"
    for name in (
        *("plan", "draft", "notices", "reflect", "demand", "returns", "remains", "housekeeping", "claims", "remember"),
        *("moves", "early_loss", "pressure", "status", "rebuild", "release", "model", "names", "answers"),
    )
}
CYCLE = {f"provisioner.{name}" for name in ("reconcile", "contacts", "acting", "loop")}
BACKENDS = {name for name in MODULES if name.startswith("provisioner.backends")}
SETTINGS = {f"provisioner.{name}" for name in ("settings", "config", "templates", "problems", "yaml_text")}
CORE = STORE | PURE | CYCLE | BACKENDS
SIMULATOR = {name for name in MODULES if name.startswith("provisioner.simulator")}
TOP = {
    f"provisioner.{name}"
    for name in ("cli", "server", "metrics", "reporting", "notes", "overview", "service", "demo", "playground")
}


def imported(module: str, *, lazy: bool = True) -> set[str]:
    """What a module imports: every dotted name, modules of ours resolved. Type-checking blocks do not count."""
    tree = ast.parse(MODULES[module].read_text())
    return {
        name if name in MODULES or not name.startswith(("provisioner.", "hf_scripts.")) else name.rpartition(".")[0]
        for node in _imports(tree, lazy)
        for name in _names(node)
    }


def _imports(tree: ast.AST, lazy: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif lazy or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _imports(node, lazy)


def _names(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    else:
        assert node.level == 0, "imports are absolute"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(module: str) -> set[str]:
    return imported(module) & set(MODULES) - {module, "provisioner"}


@pytest.mark.parametrize(
    ("modules", "allowed"),
    [
        pytest.param(PURE, PURE, id="what is pure imports only what is pure"),
        pytest.param(STORE, STORE | WORDS | {"provisioner.answers"}, id="the store imports the model"),
        pytest.param(
            BACKENDS,
            BACKENDS
            | WORDS
            | {"provisioner.settings", "provisioner.problems", "provisioner.yaml_text", "provisioner.interrupts"},
            id="backends import model and settings, and say what is wrong with a pod spec as of settings",
        ),
        pytest.param(CYCLE, CORE, id="the cycle imports store, pure modules, backends"),
        pytest.param(
            {name for name in MODULES if name.startswith("hf_scripts")},
            STORE
            | WORDS
            | {"provisioner.templates", "provisioner.answers"}
            | {name for name in MODULES if name.startswith("hf_scripts")},
            id="the scripts import store, templates and model",
        ),
        pytest.param(
            SIMULATOR,
            SIMULATOR | SETTINGS | BACKENDS | WORDS | {"provisioner.interrupts"},
            id="the simulator imports backends (its virtual-time face is one), nothing of the loop",
        ),
    ],
)
def test_imports_point_one_way(modules: set[str], allowed: set[str]) -> None:
    wrong = {module: sorted(ours(module) - allowed) for module in sorted(modules) if ours(module) - allowed}
    assert wrong == {}


def test_the_core_knows_neither_command_line_nor_metrics_nor_simulator() -> None:
    assert {module: found for module in CORE if (found := ours(module) & (TOP | SIMULATOR))} == {}


@pytest.mark.parametrize(
    ("library", "importers"),
    [
        ("tinydb", {"provisioner.storage"}),
        ("kubernetes", {"provisioner.backends.kube_login"}),
        ("google.cloud.compute_v1", {"provisioner.backends.mig"}),
        ("google.cloud.pubsub_v1", {"provisioner.events"}),
        ("prometheus_client", {"provisioner.metrics", "provisioner.server", "provisioner.service"}),
    ],
)
def test_each_library_has_its_importers(library: str, importers: set[str]) -> None:
    found = {
        module
        for module in MODULES
        if any(name == library or name.startswith(f"{library}.") for name in imported(module))
    }
    assert found == importers


@pytest.mark.parametrize("library", ["kubernetes", "google", "yaml", "pydantic", "requests", "aiohttp"])
def test_a_script_loads_no_cloud_client_and_no_yaml(library: str) -> None:
    code = f"import sys, hf_scripts.commands; sys.exit({library!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
