"""What `check` asks the author of a valid configuration to look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.backends.gke.pod_size import quantity
from provisioner.hostfactory import templates
from provisioner.settings import loader
from provisioner.settings.advice import advice
from tests.support.hostfactory.sites import small_site, template


def advised(directory: Path, spec: str = "", **attributes: object) -> list[str]:
    """The advice on a template with these attributes, whose pod has these requests."""
    site = small_site(directory)
    (directory / "spec.yaml").write_text(
        "containers:\n- {name: a, image: a, resources: {requests: {cpu: 3500m, memory: 7Gi}, limits: {memory: 9Gi}}}\n"
        "- {name: b, image: b, resources: {limits: {cpu: 500m, memory: 1Gi}}}\n" + spec
    )
    site.templates = [template("Mixed", pools=["gke-main", "mig-a"], attributes={"type": "X86_64"} | attributes)]
    site.write()
    settings = loader.load(site.path, site.environment)
    return advice(settings, templates.load(directory, site.environment).templates)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        pytest.param({"ncpus": 4, "nram": 8192}, [], id="as big as the pod"),
        pytest.param({"ncores": 4, "ncpus": 1, "nram": 1}, [], id="smaller than the pod"),
        pytest.param({"ncpus": 5, "nram": 1}, ["ncores x ncpus promises 5 cores, but"], id="more cores"),
        pytest.param({"ncpus": 1, "nram": 8193}, ["nram promises 8193 MB, but"], id="more memory"),
        pytest.param({"ncores": 2, "ncpus": 2, "nram": 1}, ["Symphony counts 4 slots"], id="cores and cpus"),
    ],
)
def test_a_template_that_promises_more_than_its_pod_has_is_named(
    tmp_path: Path, attributes: dict[str, object], words: list[str]
) -> None:
    lines = advised(tmp_path, **attributes)
    assert len(lines) == len(words)
    for line, part in zip(lines, words, strict=True):
        assert line.startswith("template Mixed: ")
        assert part in line


def test_a_container_without_requests_adds_nothing(tmp_path: Path) -> None:
    assert advised(tmp_path, "- {name: c, image: c}\n", ncpus=4, nram=8192) == []


@pytest.mark.parametrize(
    ("written", "number"),
    [
        (2, 2),
        ("1.5", 1.5),
        ("250m", 0.25),
        ("1k", 1000),
        ("2Ki", 2048),
        ("3M", 3e6),
        ("1Gi", 2**30),
        ("1e3", 1000),
        ("1E", 1e18),
        ("x", 0),
    ],
)
def test_a_quantity_is_read_as_kubernetes_reads_it(written: object, number: float) -> None:
    assert quantity(written) == number


def test_a_budget_that_counts_machines_as_nothing_is_named(tmp_path: Path) -> None:
    site = small_site(tmp_path)
    site.templates = [template("Mixed", pools=["gke-main", "mig-a"])]
    site.write()
    plain = loader.load(site.path, site.environment)
    text = site.path.read_text()

    def unpriced(more: str) -> list[str]:
        site.path.write_text(text + more)
        settings = loader.load(site.path, site.environment)
        return [line for line in advice(settings, ()) if "price_per_hour" in line]

    assert not [line for line in advice(plain, ()) if "price_per_hour" in line]
    (line,) = unpriced("budget: {per_month: 100}\n")
    assert line.startswith("template Mixed: no price_per_hour, of its own or of pool gke-main, mig-a")
    assert unpriced("budget: {per_hour: 1.5}\ntemplates: {Mixed: {price_per_hour: 0}}\n") == []
