"""`provisioner render-hf` as a process of a user without rights. It writes into a scratch HF_TOP, in which other
providers have entries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.hostfactory.provider import ROOT, SCRIPTS
from tests.support.waiting import PATIENCE

USER = 65501
"""A user id without an account."""
AS_USER = f"""
import os, sys
from contextlib import redirect_stdout
from provisioner.commands.cli import main, run
with open(os.devnull, "w") as nothing, redirect_stdout(nothing):
    run([*sys.argv[1:3], "--out", "/nonexistent", "--dry-run"])
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid({USER}, {USER}, {USER})
    os.setresuid({USER}, {USER}, {USER})
main(sys.argv[1:])
"""
"""As ``python -m provisioner``, by that user. All is imported before: Python may be where only root reads."""
SETTINGS = ROOT / "config" / "hf" / "settings.yaml"
OTHERS = {
    "providerplugins/hostProviderPlugins.json": {
        "providerplugins": [{"name": "aws", "enabled": 1, "scriptPath": "/a/"}]
    },
    "providers/hostProviders.json": {"providers": [{"name": "awsinst", "enabled": 1, "plugin": "aws", "x": [1]}]},
    "requestors/hostRequestors.json": {
        "requestors": [{"name": "symAinst", "enabled": 1, "providers": ["awsinst"], "requestMode": "POLL"}]
    },
}


@pytest.fixture
def top() -> Iterator[Path]:
    """Yield HF_TOP of a site with another provider. It belongs to a user without rights if the tests may change
    owners."""
    with TemporaryDirectory() as directory:
        top = Path(directory)
        for name, document in OTHERS.items():
            file = top / "conf" / name
            file.parent.mkdir(parents=True)
            file.write_text(json.dumps({"version": 2} | document))
        if os.geteuid() == 0:
            for path in (top, *top.rglob("*")):
                os.chown(path, USER, USER)
        yield top


def render_hf(top: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", AS_USER, "render-hf", str(SETTINGS), "--out", str(top), *options]
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd="/", env=environment, capture_output=True, text=True, timeout=60 * PATIENCE, check=False
    )


def registered(top: Path) -> dict[str, object]:
    return {name: json.loads((top / "conf" / name).read_text()) for name in OTHERS}


def test_a_user_without_rights_previews_installs_and_reverts(top: Path) -> None:
    looked = render_hf(top, "--dry-run")
    assert (looked.returncode, looked.stderr) == (1, "")
    assert '+      "name": "gridinst",' in looked.stdout
    assert registered(top) == {name: {"version": 2} | document for name, document in OTHERS.items()}
    done = render_hf(top)
    assert (done.returncode, done.stderr) == (0, "")
    again = render_hf(top, "--dry-run")
    assert (again.returncode, again.stdout) == (0, "No file would change.\n")
    [(_, requestors)] = [item for item in registered(top).items() if "Requestors" in item[0]]
    assert [entry["providers"] for entry in requestors["requestors"]] == [["awsinst", "gridinst"], ["gridinst"]]  # type: ignore[index]
    assert {path.stat().st_uid for path in top.rglob("*")} == {top.stat().st_uid}
    environment = {"HF_TOP": str(top), "HF_PROVIDER_NAME": "gridinst", "HF_PYTHON": sys.executable}
    listed = subprocess.run(
        [SCRIPTS / "getAvailableTemplates.sh", "{}"], env=environment, capture_output=True, text=True, check=True
    )
    assert [one["templateId"] for one in json.loads(listed.stdout)["templates"]] == ["Grid8"]
    taken = render_hf(top, "--uninstall")
    assert (taken.returncode, taken.stderr) == (0, "")
    left = {name: {"version": 2} | document for name, document in OTHERS.items()}
    admin = {"name": "admin", "enabled": 0, "providers": [], "requestMode": "REST_MANUAL"}
    left["requestors/hostRequestors.json"]["requestors"].append(admin)  # type: ignore[attr-defined]
    assert registered(top) == left
