"""The kind ``yard``, which another distribution brings. Our programs read its settings, check them, and request its
machines, without any change of our code. ``tests/contract`` shows that its backend keeps the promises of all
backends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from provisioner.backends import registry
from provisioner.commands.cli import run
from provisioner.commands.loop_service import Service
from provisioner.hostfactory import templates
from provisioner.settings.reload import Configuration
from provisioner.settings.warnings import find_warnings
from provisioner.state.directory import StateDir
from tests.support.hostfactory.provider import ROOT, TEMPLATES, HostFactory
from tests.support.hostfactory.sites import Site, template
from tests.support.third_kind import install
from tests.support.waiting import PATIENCE, until

BUILT_IN = " or ".join(registry.BUILT_IN)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the distribution for this process, and return its directory."""
    directory = install(tmp_path / "installed")
    monkeypatch.syspath_prepend(directory)
    return directory


@pytest.fixture
def site(tmp_path: Path, installed: Path) -> Site:
    """Return a configuration whose template names two pools: one of the kind ``yard``, and one of a group."""
    pools = {"host": {"kind": "yard", "yard": "north"}, "vm": {"kind": "mig", "project": "demo", "group": "hf-a"}}
    pools["vm"]["zone"] = "us-central1-a"
    return Site(tmp_path, {"id": "demo", "pools": pools}, {}, [template("T", pools=["host", "vm"])])


def test_its_settings_are_read_and_its_limits_are_those_of_every_pool(site: Site) -> None:
    site.settings["pools"]["host"] |= {"max_machines": 7, "boot_seconds": 2}
    settings = site.load()

    pool = settings.pools["host"]
    assert (pool.kind, pool.identity, pool.limits().max_machines) == ("yard", ("yard", "north"), 7)
    assert settings.template_limits["T"].pools == ("host", "vm")
    assert registry.longest_call([pool]) == 90.0


def test_it_inherits_what_it_says_of_the_environment(site: Site) -> None:
    del site.settings["pools"]["host"]["yard"]
    assert site.problems() == ["provisioner.yaml: pools.host.yard: missing; expected a text"]
    site.environment = {"YARD": "south"}
    assert site.load().pools["host"].identity == ("yard", "south")


def test_it_has_keys_of_its_own_in_hostfactorys_config_and_others_are_reported(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    del site.settings["pools"]["host"]["yard"]
    site.provider |= {"YARD_NAME": "west", "YARD_NAMES": "east"}
    assert site.load().pools["host"].identity == ("yard", "west")
    assert run(["check", str(site.path), "-o", "json"]) == 0
    said = [text for text in json.loads(capsys.readouterr().out)["warnings"] if "YARD_" in text]
    assert said == [f"{site.directory}/tprov_config.json: YARD_NAMES has no effect; did you mean 'YARD_NAME'?"]
    site.provider["YARD_NAME"] = 7
    assert site.problems() == ["provisioner.yaml: pools.host.yard: expected a text, got 7"]


@pytest.mark.parametrize(
    ("pool", "problem"),
    [
        ({"yard": 5}, "pools.host.yard: expected a text, got 5"),
        ({"yard": "junk"}, "pools.host.yard: is closed"),
        ({"yard": "north", "yardd": 1}, "pools.host.yardd: unknown setting; did you mean 'yard'?"),
        ({"yard": "north", "kind": "yrad"}, f"pools.host.kind: expected {BUILT_IN} or yard, got 'yrad'"),
    ],
    ids=["a wrong type", "a mistake of its own", "an unknown setting", "an unknown kind"],
)
def test_its_faults_are_reported_like_those_of_every_pool(site: Site, pool: dict[str, object], problem: str) -> None:
    site.settings["pools"]["host"] = {"kind": "yard", **pool}
    assert f"provisioner.yaml: {problem}" in site.problems()


def test_two_pools_that_are_one_yard_are_a_mistake(site: Site) -> None:
    site.settings["pools"]["again"] = {"kind": "yard", "yard": "north"}
    assert site.problems() == ["provisioner.yaml: pools.again: the same place as pool 'host'"]


def test_a_template_that_promises_more_than_its_hosts_have_is_advised_against(site: Site) -> None:
    settings = site.load()
    (line,) = find_warnings(settings, templates.load(site.directory, {}).templates)
    assert line == "template T: nram promises 8192 MB, but every host of yard north has 4096 MB (pool host)"


def test_its_metrics_are_scraped_beside_ours(site: Site, tmp_path: Path) -> None:
    del site.settings["pools"]["vm"]
    site.templates[0]["pools"] = ["host"]
    site.write()
    (tmp_path / "state").mkdir()
    service = Service(Configuration(site.path, site.environment), StateDir(tmp_path / "state"))
    assert service.registry.get_sample_value("hf_provisioner_yard_hosts", {"pool": "host"}) == 0


def test_without_the_distribution_it_is_an_unknown_kind(tmp_path: Path) -> None:
    pools = {"host": {"kind": "yard", "yard": "north"}}
    problems = Site(tmp_path, {"id": "demo", "pools": pools}, {}, [template("T", pools=["host"])]).problems()
    assert problems[0] == f"provisioner.yaml: pools.host.kind: expected {BUILT_IN}, got 'yard'"


def test_the_schema_for_editors_accepts_its_pools_and_refuses_misspelt_settings(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["settings", "-o", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert list(validator.iter_errors(site.settings)) == []
    for wrong in ({"yard": 5}, {"yardd": "north"}, {"kind": "yrad"}):
        host = {**site.settings["pools"]["host"], **wrong}
        assert not validator.is_valid({**site.settings, "pools": {"host": host}}), wrong
    assert run(["settings"]) == 0
    page = capsys.readouterr().out
    assert "kind `yard`\n\nHosts in one yard" in page
    assert "\nMore about the kind: https://yard.example/kind\n" in page


# --- as processes -----------------------------------------------------------------------------------------------------


class Grid(HostFactory):
    """A provider instance whose machines are made by a pool of the kind ``yard``."""

    def __init__(self, directory: Path, installed: Path) -> None:
        entries = [{**entry, "pools": ["host"]} for entry in TEMPLATES["templates"]]
        super().__init__(directory, templates={"templates": entries})
        self._installed = installed
        loop = {"interval_seconds": 0.2, "floor_seconds": 0.05}
        pools = {"host": {"kind": "yard", "yard": "old-north", "observe_seconds": 0.1, "boot_seconds": 0.2}}
        settings = {"id": "demo", "name_prefix": "hf", "loop": loop, "listen": "127.0.0.1:0", "pools": pools}
        (self.conf / "provisioner.yaml").write_text(yaml.safe_dump(settings))

    @property
    def command_environment(self) -> dict[str, str]:
        return {**self.environment, "PYTHONPATH": str(self._installed)}

    def provisioner(self, *arguments: str) -> str:
        """Return the output of a command."""
        command = [sys.executable, "-m", "provisioner", *arguments]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self.command_environment,
            capture_output=True,
            text=True,
            timeout=60 * PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def loop(self) -> Iterator[None]:
        """Run ``provisioner run`` during the context."""
        with (self.logs.parent / "loop.err").open("w") as log:
            command = [sys.executable, "-m", "provisioner", "run"]
            process = subprocess.Popen(command, cwd=ROOT, env=self.command_environment, stderr=log)
            try:
                yield
            finally:
                process.terminate()
                assert process.wait(30 * PATIENCE) == 0

    def ended(self, id_: str) -> dict[str, Any]:
        """Return the answer of a request, once it has ended."""
        return until(
            lambda: (entry := self.status(id_)[0])["status"] != "running" and entry, 60, every=0.2, what=f"{id_} ends"
        )


def test_a_request_runs_through_the_five_scripts_and_the_loop(tmp_path: Path, installed: Path) -> None:
    grid = Grid(tmp_path, installed)
    with grid.loop():
        assert len(grid.call("getAvailableTemplates", {})["templates"]) == len(TEMPLATES["templates"])
        answer = grid.ended(grid.request("T1", 3))
        assert answer["status"] == "complete"
        machines = [machine["name"] for machine in answer["machines"]]
        assert len(set(machines)) == 3
        assert grid.call("getReturnRequests", {"machines": [{"name": one, "machineId": one} for one in machines]})
        assert grid.ended(grid.return_machines(*machines))["status"] == "complete"
