"""HostFactory's host and the loop's have directories of their own: a change of one is told until it is the other's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.commands import cli
from provisioner.tools.playground import HostFactory
from tests.conformance.stage import Case, Grid, stage
from tests.support.waiting import until

METRIC = "hf_provisioner_config_differs"


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Grid]:
    with stage() as cloud, Grid(tmp_path, cloud, Case(1, "", lambda _: None)) as grid:
        yield grid


@pytest.fixture
def host(loop: Grid, tmp_path: Path) -> HostFactory:
    """HostFactory on a host whose configuration is a copy."""
    copy = shutil.copytree(loop.conf, tmp_path / "of-the-host")
    return HostFactory({**loop.environment, "HF_PROVIDER_CONFDIR": str(copy)}, tmp_path)


def change(file: Path, number: int) -> None:
    """Another maxNumber of the first template."""
    document = json.loads(file.read_text())
    document["templates"][0]["maxNumber"] = number
    file.with_suffix(".new").write_text(json.dumps(document))
    file.with_suffix(".new").replace(file)


def test_a_change_on_one_host_is_told_until_it_is_the_other_s(
    loop: Grid, host: HostFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = Path(host.environment["HF_PROVIDER_CONFDIR"]) / loop.templates_file.name
    for name, value in host.environment.items():
        monkeypatch.setenv(name, value)

    def told() -> tuple[int, list[str | None]]:
        """The exit code of status, and whose templates it calls newer."""
        capsys.readouterr()
        code = cli.run(["status", "-o", "json"])
        differing = json.loads(capsys.readouterr().out)["configuration_differs"]
        return code, [one["newer"] for one in differing if one["file"] == "templates"]

    (template, *_) = host.templates()
    host.request(template, 1)
    loop.cycles()
    assert (told(), loop.metric(METRIC)) == ((0, []), 0)

    change(theirs, 77)
    host.request(template, 1)
    until(lambda: loop.metric(METRIC) == 1, 30, what="the metric says so")
    assert told() == (1, ["scripts"])
    assert cli.run(["check"]) == 0
    assert f"{theirs}: the loop read another content last" in capsys.readouterr().out

    change(loop.templates_file, 77)
    until(lambda: loop.metric(METRIC) == 0, 30, what="it was brought to the loop")
    assert told() == (0, [])

    change(loop.templates_file, 88)
    before = loop.state.config.read()["loop"][0]
    until(lambda: loop.state.config.read()["loop"][0] != before, 30, what="the loop has read it")
    assert told() == (0, []), "what HostFactory would read now nobody knows"
    host.request(template, 1)
    until(lambda: loop.metric(METRIC) == 1, 30, what="HostFactory goes on reading the old one")
    assert told() == (1, ["loop"])
