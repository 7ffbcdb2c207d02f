"""`provisioner doctor`: the check of the clocks."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from provisioner.commands.doctor import clock


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-900.0, "(899|90.) s ahead of this host.s; sync"), (900.0, "(89.|900) s behind this host.s; ")],
)
def test_a_state_directory_with_another_time_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, words: str
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + seconds)
    answer = clock({"HF_PROVIDER_NAME": "demo", "HF_PROVIDER_WORKDIR": str(tmp_path)})
    assert not answer.fine
    assert re.search(words, answer.text)
    assert list(tmp_path.iterdir()) == []
