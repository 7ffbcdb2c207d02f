"""The metrics of a loop as Prometheus reads them: scraped over HTTP and parsed by the official parser."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import requests
from prometheus_client.parser import text_string_to_metric_families

from tests.support.waiting import until

SECONDS = 30.0
PREFIX = "hf_provisioner_"

Series = Mapping[str, str]


class Scrape:
    """The metrics of a loop. The object also records for which metric families a test has seen an expected value."""

    def __init__(self, url: Callable[[], str]) -> None:
        """Use the function ``url`` to get the loop's address before each scrape, because a restart may change the
        address."""
        self._url = url
        self.found: set[str] = set()
        """The families, without ``hf_provisioner_``, whose values were as expected."""

    def series(self, name: str, **labels: str) -> list[float]:
        """Return the values of the series with these labels. ``name``: name of a sample, without
        ``hf_provisioner_``."""
        text = requests.get(f"{self._url()}/metrics", timeout=10).text
        samples = [
            (family.name, sample) for family in text_string_to_metric_families(text) for sample in family.samples
        ]
        found = [
            (family, sample.value)
            for family, sample in samples
            if sample.name == PREFIX + name and labels.items() <= sample.labels.items()
        ]
        self._read = {family.removeprefix(PREFIX) for family, _ in found}
        return [value for _, value in found]

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the series with these labels; NaN if there is no such series."""
        values = self.series(name, **labels)
        return math.fsum(values) if values else math.nan

    def becomes(
        self,
        expected: float | Callable[[float], bool],
        name: str,
        *,
        meanwhile: Callable[[], object] = lambda: None,
        **labels: str,
    ) -> float:
        """Wait until the value equals ``expected`` or, if ``expected`` is a function, until the function returns True
        for it. Return the value.

        ``meanwhile`` is called before each scrape.
        """
        seen = [math.nan]

        def fits() -> bool:
            meanwhile()
            seen[0] = self.value(name, **labels)
            return expected(seen[0]) if callable(expected) else seen[0] == expected

        try:
            until(fits, SECONDS, what=f"{name} {labels}")
        except AssertionError as error:
            wanted = "what is expected" if callable(expected) else expected
            raise AssertionError(f"{name} {labels} is {seen[0]}, not {wanted}") from error
        self.found |= self._read
        return seen[0]

    def has_no(self, name: str, **labels: str) -> bool:
        """Return True if no series with these labels is exported, or if its value is 0."""
        return not any(self.series(name, **labels))
