"""The marker of the cases that are played with undocumented behaviours of Compute Engine flipped."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "flips: plays with what nobody documents of Compute Engine flipped")
