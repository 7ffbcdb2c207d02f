"""Each library may be imported by certain modules only. The contracts in setup.cfg limit the imports of our own
modules."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("provisioner", "hf_scripts")
    for path in (ROOT / package).rglob("*.py")
}


@cache
def imported(module: str) -> set[str]:
    """Return the dotted names that a module imports: a module of ours, or the imported name of a library. Imports that
    only type checkers read do not count."""
    tree = ast.parse(MODULES[module].read_text())
    return {
        name if name in MODULES or not name.startswith(("provisioner.", "hf_scripts.")) else name.rpartition(".")[0]
        for node in _imports(tree)
        for name in _names(node)
    }


def _imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        else:
            yield from _imports(node)


def _names(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    else:
        assert node.level == 0, "imports are absolute"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(
    ("library", "importers"),
    [
        ("tinydb", {"provisioner.state.database"}),
        ("kubernetes", {f"provisioner.backends.gke.{name}" for name in ("credentials", "login", "pod_fields")}),
        ("google.cloud.compute_v1", set()),
        ("google.cloud.pubsub_v1", {"provisioner.backends.pubsub_events", "provisioner.backends.pubsub_subscription"}),
        ("jinja2", {"provisioner.telemetry.status_page"}),
        ("tornado", {"provisioner.telemetry.http_connections"}),
        (
            "prometheus_client",
            {
                "provisioner.telemetry.metric_collectors",
                "provisioner.telemetry.metrics",
                "provisioner.telemetry.server",
                "provisioner.commands.loop_service",
                "provisioner.commands.demand",
                "provisioner.commands.demand_metrics",
            },
        ),
    ],
)
def test_each_library_has_its_importers(library: str, importers: set[str]) -> None:
    importing = {
        module
        for module in MODULES
        if any(name == library or name.startswith(f"{library}.") for name in imported(module))
    }
    assert importing == importers


def loaded(module: str, *libraries: str) -> list[str]:
    """Import a module in a new process. Return which of these libraries the process has then loaded."""
    code = f"import sys, {module}; print(*{{*sys.modules}} & {{*{libraries!r}}})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_script_loads_no_cloud_client_and_no_yaml() -> None:
    libraries = ("kubernetes", "google", "yaml", "pydantic", "requests", "aiohttp")
    assert loaded("hf_scripts.commands", *libraries) == []


def test_status_loads_only_what_it_uses() -> None:
    """``status`` must load none of these libraries, because the import of each takes longer than ``status`` itself
    takes for a thousand machines."""
    libraries = ("pydantic", "yaml", "rich", "jinja2", "requests", "google", "kubernetes")
    assert loaded("provisioner.commands.cli, provisioner.commands.status", *libraries) == []
