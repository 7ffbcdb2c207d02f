"""Warnings of `check` about a valid configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.backends.gke.pod_spec import quantity
from provisioner.hostfactory import templates
from provisioner.settings import loader
from provisioner.settings.warnings import find_warnings, is_loopback
from tests.support.hostfactory.sites import Site, small_site, template


def advised(directory: Path, spec: str = "", **attributes: object) -> list[str]:
    """Return the warnings about a template with these attributes. ``spec``: further lines of the pod spec, whose
    containers request 4 processors and 8 GiB."""
    site = small_site(directory)
    (directory / "spec.yaml").write_text(
        "containers:\n- {name: a, image: a, resources: {requests: {cpu: 3500m, memory: 7Gi}, limits: {memory: 9Gi}}}\n"
        "- {name: b, image: b, resources: {limits: {cpu: 500m, memory: 1Gi}}}\n" + spec
    )
    site.templates = [template("Mixed", pools=["gke-main", "mig-a"], attributes={"type": "X86_64"} | attributes)]
    site.write()
    settings = loader.load(site.path, site.environment)
    return find_warnings(settings, templates.load(directory, site.environment).templates)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        pytest.param({"ncpus": 4, "nram": 8192}, [], id="as big as the pod"),
        pytest.param({"ncores": 3.2, "ncpus": 1, "nram": 6554}, [], id="smaller by the grid's own programs"),
        pytest.param({"ncpus": 3, "nram": 8192}, ["ncores x ncpus promises only 3 cores, but"], id="fewer cores"),
        pytest.param({"ncpus": 4, "nram": 6000}, ["nram promises only 6000 MB, but"], id="less memory"),
        pytest.param({"ncpus": 5, "nram": 8192}, ["ncores x ncpus promises 5 cores, but"], id="more cores"),
        pytest.param({"ncpus": 4, "nram": 8193}, ["nram promises 8193 MB, but"], id="more memory"),
        pytest.param({"ncores": 2, "ncpus": 2, "nram": 8192}, ["Symphony counts 4 slots"], id="cores and cpus"),
        pytest.param({"ncpus": 4, "nram": 8192, "ncoers": 1}, ["'ncoers' is unknown to H"], id="a misspelt attribute"),
        pytest.param({"ncpus": 4, "nram": 8192, "nThreads": 1}, ["mean 'nthreads'?"], id="another case"),
        pytest.param({"ncpus": 4, "nram": 8192, "ngpus": 1, "rack": "r", "site": "x"}, [], id="the site's own"),
    ],
)
def test_a_template_that_differs_from_its_pod_or_has_an_unknown_attribute_is_named(
    tmp_path: Path, attributes: dict[str, object], words: list[str]
) -> None:
    lines = advised(tmp_path, **attributes)
    assert len(lines) == len(words)
    for line, part in zip(lines, words, strict=True):
        assert line.startswith("template Mixed: ")
        assert part in line


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
        return [line for line in find_warnings(settings, ()) if "price_per_hour" in line]

    assert not [line for line in find_warnings(plain, ()) if "price_per_hour" in line]
    (line,) = unpriced("budget: {per_month: 100}\n")
    assert line.startswith("template Mixed: no price_per_hour, of its own or of pool gke-main, mig-a")
    assert unpriced("budget: {per_hour: 1.5}\ntemplates: {Mixed: {price_per_hour: 0}}\n") == []


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = small_site(tmp_path)
    for name in ("token", "cert", "key"):
        (tmp_path / name).write_text("x")
    return made


def advised_of(site: Site) -> list[str]:
    settings = site.load()
    return find_warnings(settings, templates.load(site.directory, site.environment).templates)


def warnings(site: Site) -> list[str]:
    return [line for line in advised_of(site) if line.startswith(("listen", "server"))]


def test_by_default_only_this_host_reads_without_a_token(site: Site) -> None:
    settings = site.load()
    assert (settings.listen, settings.server.token_file, settings.server.tls_cert) == ("127.0.0.1:9464", None, None)
    assert warnings(site) == []


WARNINGS: dict[str, tuple[str, dict[str, str], list[str]]] = {
    "everybody may read": (
        "0.0.0.0:9464",
        {},
        ["listen: everyone who reaches 0.0.0.0:9464 can read the status page; set server.token_file"],
    ),
    "the token can be read on its way": (
        "[::]:9464",
        {"token_file": "token"},
        ["listen: the token is sent to [::]:9464 in clear text; set server.tls_cert and server.tls_key"],
    ),
    "all is well": ("0.0.0.0:9464", {"token_file": "token", "tls_cert": "cert", "tls_key": "key"}, []),
    "this host alone": ("[::1]:9464", {}, []),
    "this host by its name": ("localhost:9464", {}, []),
}


@pytest.mark.parametrize(("listen", "server", "says"), WARNINGS.values(), ids=WARNINGS)
def test_check_warns_of_who_can_read(site: Site, listen: str, server: dict[str, str], says: list[str]) -> None:
    site.settings |= {"listen": listen, "server": server}
    assert warnings(site) == says


def test_check_warns_of_files_that_are_missing(site: Site) -> None:
    site.settings["server"] = {"token_file": "nothing"}
    site.settings["pools"]["mig-a"]["credentials"] = "key.json"
    lines = [f"{name}: no such file: '{site.directory / file}'" for name, file in
             (("server.token_file", "nothing"), ("pools.mig-a.credentials", "key.json"))]  # fmt: skip
    assert set(lines) <= set(advised_of(site))


def test_another_name_of_this_host_may_be_anybody() -> None:
    assert [is_loopback(f"{host}:1") for host in ("grid.example.com", "127.9.9.9", "10.0.0.1")] == [False, True, False]
