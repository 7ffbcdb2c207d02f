"""Which skips CI lets stand: only those for what it cannot bring, each of them one that a test may have."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SKIPS = ROOT / ".ci" / "skips.py"
RUN = (ROOT / ".ci" / "run").read_text()
UNMENDED = dict(re.findall(r'(?m)^    "(.+?)": "(.+)",$', SKIPS.read_text()))


def said(
    tmp_path: Path, *reasons: str, expected: tuple[str, ...] = (), require_all: str | None = None
) -> tuple[int, str]:
    """How it ends, and what it prints, after a run with a test skipped for each reason."""
    environment = {name: value for name, value in os.environ.items() if name != "REQUIRE_ALL"}
    if require_all is not None:
        environment["REQUIRE_ALL"] = require_all
    cases = "".join(f'<testcase classname="c" name="t"><skipped message="{reason}"/></testcase>' for reason in reasons)
    (tmp_path / "tests.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    command = [sys.executable, SKIPS, tmp_path / "tests.xml", *expected]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)
    return done.returncode, done.stdout + done.stderr


def test_a_skip_for_what_debian_has_fails_the_run(tmp_path: Path) -> None:
    code, text = said(tmp_path, "needs terraform", "needs promtool (Debian package prometheus)")

    assert code == 1
    assert "not expected: c::t: needs promtool" in text


def test_what_stands_is_counted_with_its_reason(tmp_path: Path) -> None:
    code, text = said(tmp_path, "needs gcloud", "needs gcloud", "make test-kube runs it", expected=("make test-kube",))

    assert code == 0
    assert f"skipped: 2 (needs gcloud): {UNMENDED['needs gcloud']}\n" in text
    assert "skipped: 1 (make test-kube)" in text


@pytest.mark.parametrize("words", [words for words in UNMENDED if words.startswith("needs ")])
def test_where_all_is_required_what_a_machine_can_have_fails_the_run(tmp_path: Path, words: str) -> None:
    assert said(tmp_path, words)[0] == 0
    assert said(tmp_path, words, require_all="")[0] == 0

    code, text = said(tmp_path, words, require_all="1")

    assert code == 1
    assert f"not expected: c::t: {words}" in text


def test_where_all_is_required_what_no_machine_avoids_and_what_another_run_has_stands(tmp_path: Path) -> None:
    reasons = ("Windows only", "make test-kube runs it")
    code, text = said(tmp_path, *reasons, expected=("make test-kube",), require_all="1")

    assert (code, text.count("skipped: 1 ")) == (0, 2)


def test_ci_that_requires_all_leaves_out_nothing(tmp_path: Path) -> None:
    """Where it can find nothing to install or run with."""
    (tmp_path / "dirname").symlink_to("/usr/bin/dirname")
    environment = {"PATH": str(tmp_path), "REQUIRE_ALL": "1", "SKIP_KUBE": "1"}
    done = subprocess.run(
        [ROOT / ".ci" / "run"], env=environment, capture_output=True, text=True, check=False, timeout=30
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert "SKIP_KUBE" in done.stderr


@pytest.mark.parametrize("words", UNMENDED)
def test_each_reason_that_may_stand_is_one_that_a_test_gives(words: str) -> None:
    sources = [path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    tool = words.removeprefix("needs ")

    assert any(f'"{words}' in text for text in sources)
    assert not re.search(rf"^    need {tool} ", RUN, re.MULTILINE), "CI installs it"


def test_ci_brings_every_debian_package_that_a_skip_names() -> None:
    """Each ``(Debian package NAME)`` of a reason is one that ``.ci/run`` installs."""
    text = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))
    named = set(re.findall(r"[Dd]ebian package ([a-z][a-z0-9-]+)", text))
    installed = {package for _, package in re.findall(r"(?m)^    need (\S+) (\S+)$", RUN)}

    assert named
    assert named <= installed
