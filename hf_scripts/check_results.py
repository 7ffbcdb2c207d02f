"""What ``check_install.sh`` says of one thing."""

from __future__ import annotations

from typing import NamedTuple


class CheckResult(NamedTuple):
    """One thing that was looked at."""

    fine: bool
    text: str

    def __str__(self) -> str:
        return f"{'fine' if self.fine else 'fix'}: {self.text}"


def fine(text: str) -> CheckResult:
    """The result for what is as it should be."""
    return CheckResult(True, text)


def fix(text: str) -> CheckResult:
    """The result for what has to be mended; the text says how."""
    return CheckResult(False, text)
