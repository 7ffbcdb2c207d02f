"""A kind that ``provisioner new-kind`` wrote. It is built, installed and tested without any file of this clone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from provisioner.commands import cli
from tests.support.environments import build, build_ours, environment
from tests.support.waiting import PATIENCE

KNOWN = """
import provisioner, pbs_provisioner.backend, provisioner.testing.fault_proxy
from provisioner.backends import registry
print(registry.get_kind("pbs").distribution, provisioner.__file__, pbs_provisioner.backend.__file__)
"""


@pytest.mark.slow
def test_a_new_kind_passes_the_suite_with_the_installed_distributions_alone(tmp_path: Path) -> None:
    written = tmp_path / "pbs"
    assert cli.run(["new-kind", "pbs", "--out", str(written)]) == 0
    wheels = [build_ours(tmp_path), build(written, tmp_path / "wheels")]
    there = environment(tmp_path / "venv", wheels, ["testing"])

    def python(*arguments: str) -> str:
        done = subprocess.run(
            [there / "bin" / "python", "-I", *arguments],
            cwd=written,
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
            timeout=280 * PATIENCE,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    distribution, *modules = python("-c", KNOWN).split()
    assert distribution == "pbs-provisioner"
    assert all(Path(module).is_relative_to(there) for module in modules)
    summary = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests").splitlines()[-1]
    passed = int(summary.split(" passed")[0].split()[-1])
    assert passed >= 50, summary
    assert "warning" not in summary
