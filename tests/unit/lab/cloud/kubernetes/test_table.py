"""The cells of tables, as kubectl prints them."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.lab.cloud.kubernetes.table import duration, pod_word

POD: dict[str, Any] = {"metadata": {"name": "a"}, "spec": {"containers": []}, "status": {"phase": "Running"}}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (119, "119s"),
        (120, "2m"),
        (3600, "60m"),
        (4 * 3600 + 60, "4h1m"),
        (3 * 86400 + 3600, "3d1h"),
        (9 * 86400, "9d"),
    ],
)
def test_ages_read_as_kubectls(seconds: float, text: str) -> None:
    assert duration(seconds) == text


GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "Running"),
        ({"status": {"phase": "Failed", "reason": "Evicted"}}, "Evicted"),
        ({"status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "X"}}}]}}, "X"),
        (
            {"status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"reason": "Error"}}}]}},
            "Error",
        ),
        ({"status": {"phase": "Pending", "conditions": [GATED]}}, "SchedulingGated"),
        ({"metadata": {"deletionTimestamp": "now"}}, "Terminating"),
    ],
)
def test_the_one_word_for_a_pod(changes: dict[str, Any], word: str) -> None:
    assert pod_word({**POD, **changes}) == word
