"""shellcheck finds no fault in any shell code of the tree, whatever the file's name and directory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checks.shell import ROOT, faults, faults_of

SHEBANG = re.compile(rb"#!.*\b(?:ba|da)?sh\b")
NOT_OURS = {".git", ".venv", "build"}
SPEC = (ROOT / "deploy" / "bundle" / "provisioner.spec").read_text()


def shell_files() -> Iterator[Path]:
    """Yield files that end in .sh, or that a shell runs."""
    for directory, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in NOT_OURS and not name.endswith(("cache", "__"))]
        for path in (Path(directory, name) for name in files):
            if not path.is_file():
                continue
            with path.open("rb") as file:
                if path.suffix == ".sh" or SHEBANG.match(file.readline(100)):
                    yield path.relative_to(ROOT)


def test_every_shell_file_is_clean() -> None:
    files = sorted(shell_files())

    assert {".ci/run", "hf_scripts/python", "deploy/bundle/provisioner", "deploy/gcp/setup.sh"} <= {*map(str, files)}
    assert faults(*files) == ""


@pytest.mark.parametrize("scriptlet", ["post", "posttrans", "preun"])
def test_the_scripts_of_a_package_are_clean(scriptlet: str) -> None:
    (text,) = re.findall(rf"(?ms)^%{scriptlet}\n(.*?)^(?=%\w|\Z)", SPEC)

    assert faults_of(re.sub(r"%\{\w+\}", "macro", text)) == ""
