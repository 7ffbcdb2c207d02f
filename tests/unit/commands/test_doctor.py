"""`provisioner doctor`: which clock is wrong, and that no secret leaves the host."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from provisioner.commands.doctor import clock, masked


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-900.0, "(899|90.) s ahead of this host.s; sync"), (900.0, "(89.|900) s behind this host.s; ")],
)
def test_a_state_directory_with_another_time_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, words: str
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + seconds)
    told = clock({"HF_PROVIDER_NAME": "demo", "HF_PROVIDER_WORKDIR": str(tmp_path)})
    assert not told.fine
    assert re.search(words, told.text)
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
