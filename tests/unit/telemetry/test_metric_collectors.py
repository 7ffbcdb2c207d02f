"""Metrics that kinds of places bring: scraped beside ours, and a backend that fails harms no other."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from provisioner.backends import Measure
from provisioner.telemetry.metric_collectors import KindMetrics

KINDS = {"a": "yard", "b": "yard", "c": "old-yard", "d": "yard"}


class Measured:
    """A backend with one metric."""

    def __init__(self, value: float = 1.0, name: str = "gates_open", error: Exception | None = None) -> None:
        self.value, self.name, self.error = value, name, error

    def measures(self) -> list[Measure]:
        if self.error:
            raise self.error
        return [Measure("hosts", "Hosts.", 4.0), Measure(self.name, "Open gates.", self.value)]


def scraped(registry: CollectorRegistry) -> list[str]:
    """Return the samples of a scrape."""
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def made(**backends: Any) -> CollectorRegistry:
    """Return the registry of these pools."""
    registry = CollectorRegistry()
    KindMetrics(KINDS, backends, registry)
    return registry


def test_each_metric_has_the_kind_in_its_name_and_a_series_of_each_pool() -> None:
    registry = made(a=Measured(2.0), b=Measured(3.0), c=Measured(), d=object())
    assert scraped(registry) == [
        'hf_provisioner_yard_hosts{pool="a"} 4.0',
        'hf_provisioner_yard_hosts{pool="b"} 4.0',
        'hf_provisioner_yard_gates_open{pool="a"} 2.0',
        'hf_provisioner_yard_gates_open{pool="b"} 3.0',
        'hf_provisioner_old_yard_hosts{pool="c"} 4.0',
        'hf_provisioner_old_yard_gates_open{pool="c"} 1.0',
    ]
    assert "# HELP hf_provisioner_yard_gates_open Open gates." in generate_latest(registry).decode()


@pytest.mark.parametrize(
    "broken",
    [Measured(error=RuntimeError("a bug")), Measured(value="many")],  # type: ignore[arg-type]
    ids=["raises", "no number"],
)
def test_a_backend_that_fails_has_no_series_and_is_logged_once(
    broken: Measured, caplog: pytest.LogCaptureFixture
) -> None:
    registry = made(a=broken, b=Measured())
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert [line for line in scraped(registry) if 'pool="a"' in line] == []
            assert 'hf_provisioner_yard_gates_open{pool="b"} 1.0' in scraped(registry)
        assert [record.__dict__["pool"] for record in caplog.records] == ["a"]
        broken.error, broken.name, broken.value = None, "gates_open", 5.0
        assert 'hf_provisioner_yard_gates_open{pool="a"} 5.0' in scraped(registry)
        broken.error = RuntimeError("again")
        scraped(registry)
    assert len(caplog.records) == 2, "a new failure is logged"
