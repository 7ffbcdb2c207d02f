"""`provisioner doctor`: every other command's answer at once, and a bundle that gives no secret away."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.commands.doctor import clock, masked
from tests.conformance.stage import Case, Grid, stage

SECRET = "hunter2"


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Grid]:
    with stage() as cloud, Grid(tmp_path, cloud, Case(1, "", lambda _: None)) as grid:
        yield grid


def doctor(hf: Grid, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "provisioner", "doctor", *arguments],
        env={**os.environ, **hf.environment, "KUBECONFIG": str(hf.simulator.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_all_is_asked_at_once_and_what_is_wrong_says_what_to_do(hf: Grid, tmp_path: Path) -> None:
    machines = hf.complete(2)
    assert hf.reclaimed(*machines) == {}
    parts = {one["part"]: one for one in json.loads(doctor(hf, "-o", "json").stdout)["parts"]}
    told = ("state files", "loop, requests and pools", "HostFactory, memory and clouds", "next cycle", "disk", "clock")
    assert {name: parts[name]["fine"] for name in told} == dict.fromkeys(told, True), parts

    hf.stop_loop()
    hf.fault("denied")
    (hf.work / "intent.json").write_text("{")
    bundle = tmp_path / "bundle.tar.gz"
    (hf.conf / "provisioner.yaml").write_text(f"password: {SECRET}\n")
    wrong = doctor(hf, "--bundle", str(bundle))
    assert (wrong.returncode, wrong.stderr) == (1, "")
    lines = wrong.stdout.splitlines()
    assert "fine  disk" in lines
    assert any("password" in line for line in lines)  # the configuration's own words
    assert any("intent.json" in line for line in lines)
    assert lines[-1].startswith(f"Written: {bundle}")

    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    with tarfile.open(bundle) as packed:
        texts = {one.name: packed.extractfile(one).read().decode() for one in packed}  # type: ignore[union-attr]
    names = set(texts)
    assert {"doctor/state-files.txt", "doctor/versions.txt", f"doctor/{hf.work.name}/memory.json"} <= names
    assert f"doctor/{hf.conf.name}/provisioner.yaml" in names
    assert not [name for name in names if "pod" in name]
    assert not [name for name, text in texts.items() if SECRET in text]

    again = doctor(hf, "--bundle", str(bundle))
    assert (again.returncode, "it exists" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("seconds", "words"), [(-900.0, "900 s ahead of this host's; synchronize"), (900.0, "900 s behind this host's; ")]
)
def test_a_state_directory_with_another_time_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, words: str
) -> None:
    monkeypatch.setattr(time, "time", lambda now=time.time: round(now() + seconds))
    told = clock({"HF_PROVIDER_NAME": "demo", "HF_PROVIDER_WORKDIR": str(tmp_path)})
    assert not told.fine
    assert words in told.text.replace("899", "900").replace("901", "900")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("proxy: http://me:hunter2@proxy:3128/", "proxy: http://***@proxy:3128/"),
        ('{"password": "hun\\"ter2", "id": 1}', '{"password": "***", "id": 1}'),
        ("export API_KEY=hunter2 x", 'export API_KEY="***" x'),
        ("Authorization: Bearer hunter2.a-b\n", "Authorization: Bearer ***\n"),
        ("a\n-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----\nb", "a\n***\nb"),
        ("token_file: /etc/token\n", "token_file: /etc/token\n"),
        ("hf-0123456789-000001 is lost: preempted", "hf-0123456789-000001 is lost: preempted"),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, expected: str) -> None:
    assert masked(text) == expected
