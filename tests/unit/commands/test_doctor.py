"""`provisioner doctor`: the check of the clocks."""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

import pytest

from provisioner.commands.doctor import PartResult, clock, disk, doctor_lines, parts_environment
from provisioner.commands.shared_options import UsageError
from provisioner.state.opening import KubeStore
from tests.support.kube_state_server import MemoryApiServer, ObjectServer


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-900.0, "(899|90.) s ahead of this host.s; sync"), (900.0, "(89.|900) s behind this host.s; ")],
)
def test_a_state_directory_with_another_time_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, words: str
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + seconds)
    result = clock({"HF_PROVIDER_NAME": "demo", "HF_PROVIDER_WORKDIR": str(tmp_path)})
    assert not result.fine
    assert re.search(words, result.text)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("seconds", "fine"), [(0.0, True), (-900.0, False), (900.0, False)])
def test_an_api_server_with_another_time_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, fine: bool
) -> None:
    server = ObjectServer("hf", lambda: time.time() + seconds)
    monkeypatch.setattr(KubeStore, "api", lambda store: MemoryApiServer(server))
    (tmp_path / "demoprov_config.json").write_text('{"STATE": "kubernetes:hf"}')
    environment = {"HF_PROVIDER_NAME": "demo", "HF_PROVIDER_CONFDIR": str(tmp_path)}
    result = clock(environment)
    assert (result.fine, "https://memory: its clock is" in result.text) == (fine, True), result.text
    assert disk(environment).fine, "no directory is needed"


def test_the_place_of_an_api_is_that_of_the_scripts() -> None:
    options = argparse.Namespace(config=None, state_dir=Path("kubernetes:hf"))
    with pytest.raises(UsageError, match="doctor reads STATE in the provider config"):
        parts_environment(options)


@pytest.mark.parametrize(("count", "shown"), [(3, 3), (4, 3), (40, 3)])
def test_three_lines_of_a_part_are_shown_and_the_command_that_shows_all(count: int, shown: int) -> None:
    texts = [f"line {number}" for number in range(count)]
    part = PartResult("state", "provisioner recover", False, "\n".join(texts))._asdict()
    lines = list(doctor_lines({"parts": [part], "bundle": ""}))
    more = [f"        and {count - shown} more lines: provisioner recover"] * (count > shown)
    assert lines == ["PROBLEM  state (provisioner recover):", *(f"        {one}" for one in texts[:shown]), *more]


def test_the_lines_shown_of_a_part_begin_with_its_first_problem() -> None:
    texts = [
        "Provisioner demo in /work",
        "  loop last ran at 08:00:00",
        "  HostFactory polled",
        "  PAUSED pool a",
        "  end",
    ]
    part = PartResult("loop", "provisioner status", False, "\n".join(texts))._asdict()
    assert list(doctor_lines({"parts": [part], "bundle": ""}))[1:] == [
        "          PAUSED pool a",
        "          end",
        "        and 2 more lines: provisioner status",
    ]
