"""Who may read the HTTP server: what the configuration says of it, and what `check` warns of."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.hostfactory import templates
from provisioner.settings.advice import advice, is_loopback
from tests.support.hostfactory.sites import Site, small_site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = small_site(tmp_path)
    for name in ("token", "cert", "key"):
        (tmp_path / name).write_text("x")
    return made


def warnings(site: Site) -> list[str]:
    settings = site.load()
    provider = templates.load(site.directory, site.environment)
    return [line for line in advice(settings, provider.templates) if line.startswith(("listen", "server"))]


def test_paths_are_relative_to_the_configuration(site: Site) -> None:
    site.settings["server"] = {"token_file": "token", "tls_cert": "cert", "tls_key": "key"}
    server = site.load().server
    assert (server.token_file, server.tls_key) == (site.directory / "token", site.directory / "key")
    assert warnings(site) == []


def test_by_default_only_this_host_reads_and_nobody_is_asked(site: Site) -> None:
    settings = site.load()
    assert (settings.listen, settings.server.token_file, settings.server.tls_cert) == ("127.0.0.1:9464", None, None)
    assert warnings(site) == []


@pytest.mark.parametrize("half", [{"tls_cert": "cert"}, {"tls_key": "key"}])
def test_half_a_certificate_is_a_mistake(site: Site, half: dict[str, str]) -> None:
    site.settings["server"] = half
    assert site.problems() == ["provisioner.yaml: server: tls_cert and tls_key need one another: name both, or neither"]


def test_a_misspelt_setting_of_the_server_is_a_mistake(site: Site) -> None:
    site.settings["server"] = {"token": "x"}
    assert site.problems() == ["provisioner.yaml: server.token: unknown setting; did you mean 'token_file'?"]


WARNINGS: dict[str, tuple[str, dict[str, str], list[str]]] = {
    "everybody may read": (
        "0.0.0.0:9464",
        {},
        ["listen: everybody who reaches 0.0.0.0:9464 can read the status page: name a server.token_file"],
    ),
    "the token can be read on its way": (
        "[::]:9464",
        {"token_file": "token"},
        ["listen: the token is sent to [::]:9464 in the clear: name server.tls_cert and server.tls_key"],
    ),
    "all is well": ("0.0.0.0:9464", {"token_file": "token", "tls_cert": "cert", "tls_key": "key"}, []),
    "this host alone": ("[::1]:9464", {}, []),
    "this host by its name": ("localhost:9464", {}, []),
}


@pytest.mark.parametrize(("listen", "server", "says"), WARNINGS.values(), ids=WARNINGS)
def test_check_warns_of_who_can_read(site: Site, listen: str, server: dict[str, str], says: list[str]) -> None:
    site.settings |= {"listen": listen, "server": server}
    assert warnings(site) == says


def test_check_warns_of_a_token_file_that_is_missing(site: Site) -> None:
    site.settings["server"] = {"token_file": "nothing"}
    assert warnings(site) == [f"server.token_file: no such file: '{site.directory / 'nothing'}'"]


def test_another_name_of_this_host_may_be_anybody() -> None:
    assert [is_loopback(f"{host}:1") for host in ("grid.example.com", "127.9.9.9", "10.0.0.1")] == [False, True, False]
