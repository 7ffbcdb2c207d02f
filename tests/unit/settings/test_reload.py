"""Reading the configuration again: applied whole or refused whole."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provisioner.hostfactory.provider_config import Digests
from provisioner.model import Hold, HoldKind, Limits, Memory, RequestRecord, Verdict
from provisioner.schema.validation import ConfigError
from provisioner.settings.reload import REFUSED, Configuration
from provisioner.state.directory import SLURM_NODES_FILE, STATE_FILES, StateDir
from provisioner.state.directory_note import add_to_note
from provisioner.state.holds import with_hold
from provisioner.state.slurm_nodes import NodeRecord, SlurmNodes
from tests.support.parts import make_slot

EXAMPLE = Path(__file__).parents[3] / "config" / "demoinst"
ENVIRONMENT = {"HF_PROVIDER_NAME": "demoinst", "PROVISIONER_COMPUTE_ENDPOINT": "http://127.0.0.1:1"}


class Site:
    def __init__(self, directory: Path) -> None:
        shutil.copytree(EXAMPLE, directory / "conf")
        self.file = directory / "conf" / "provisioner.yaml"
        self.templates = directory / "conf" / "demoinstprov_templates.json"
        self.judged: list[bool] = []
        """True for each time that the changed files were accepted, False for each time that they were refused."""
        self.configuration = Configuration(self.file, ENVIRONMENT)
        self.limits = self.configuration.limits

    def refresh(self, limits: Limits, memory: Memory | None) -> Limits:
        in_force, refused = self.configuration.limits, self.configuration.refused
        now = self.configuration.refresh(limits, memory)
        if self.configuration.limits is not in_force or self.configuration.refused != refused:
            self.judged.append(not self.configuration.refused)
        return now

    def change(self, old: str, new: str) -> None:
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))

    def change_templates(self, change: Callable[[list[dict[str, object]]], None]) -> None:
        document = json.loads(self.templates.read_text())
        change(document["templates"])
        self.templates.write_text(json.dumps(document))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def memory(template: str, *, gone: bool) -> Memory:
    slot = make_slot("hf-aaaaaaaaaa-000000", "gke-main", Verdict.SUCCEEDED, submitted_at=0.0, is_gone=gone)
    record = RequestRecord("aaaaaaaaaa", template, 1, 0.0, 3600.0, slots={0: slot})
    return Memory("demoinst", requests={record.id: record})


def test_unchanged_files_leave_the_very_same_limits(site: Site) -> None:
    assert site.refresh(site.limits, None) is site.limits
    assert site.judged == []


def test_what_the_loop_writes_beside_the_configuration_is_no_new_one(site: Site) -> None:
    """Configuration and state may share a directory. The loop must not take its own files for a change of the
    configuration."""
    conf = site.file.parent
    before = set(conf.iterdir())
    state = StateDir(conf)
    state.intent.create("demoinst")
    for _ in range(2):
        state.memory.write(memory("GceVm", gone=True))
        state.status.write({}, {})
        state.inventory.write(["h"])
        state.announced.write({"GceVm": 1})
        state.config.note("loop", Digests("0" * 8, "1" * 8))
        state.holds.change(lambda held: with_hold(held, Hold(HoldKind.STOP_ALL)))
        state.pool_status.write({"gke-main": []})
        state.write_demand({})
        SlurmNodes(str(conf / SLURM_NODES_FILE)).change({}, {"n1": NodeRecord("aaaaaaaaaa")})
        add_to_note(site.configuration.note, str(conf))
        assert site.refresh(site.limits, None) is site.limits
    assert site.judged == []
    written = set(conf.iterdir()) - before
    assert {path.name for path in written if path.suffix == ".json"} == STATE_FILES
    assert Path(site.configuration.note) in written


def test_systemds_directory_keeps_the_note_because_its_service_only_reads_the_configuration(site: Site) -> None:
    environment = ENVIRONMENT | {"STATE_DIRECTORY": "/var/lib/hostfactory-provisioner"}
    assert Configuration(site.file, environment).note == "/var/lib/hostfactory-provisioner/.demoinst.state-directories"


def test_a_new_limit_is_applied(site: Site) -> None:
    site.change("max_machines: 200\n    max_pending: 100", "max_machines: 150\n    max_pending: 100")
    limits = site.refresh(site.limits, None)
    assert limits.pools["gke-main"].max_machines == 150
    assert site.judged == [True]


def test_a_template_that_hf_adds_is_applied(site: Site) -> None:
    site.change_templates(lambda templates: templates.append({**templates[0], "templateId": "New"}))
    assert "New" in site.refresh(site.limits, None).templates


def test_a_mistake_is_refused_whole_until_it_is_fixed(site: Site) -> None:
    site.change("name_prefix: hf", "name_prefix: hf\norphan_cap_per_hour: 1\nnonsense: 1")
    limits = site.refresh(site.limits, None)
    assert limits is site.limits
    assert limits.orphans.cap_per_hour == 20
    assert "nonsense: unknown setting" in site.configuration.refused
    site.change("\nnonsense: 1", "")
    assert site.refresh(limits, None).orphans.cap_per_hour == 1
    assert site.configuration.refused == ""
    assert site.judged == [False, True]
    assert site.configuration.limits.orphans.cap_per_hour == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name_prefix: hf", "name_prefix: other"),
        ("id: demo", "id: other"),
        ("namespace: symphony-spare", "namespace: elsewhere"),
    ],
    ids=["the prefix", "the id", "the place of a pool"],
)
def test_what_cannot_change_while_the_loop_runs_is_refused(site: Site, old: str, new: str) -> None:
    site.change(old, new)
    assert site.refresh(site.limits, None) is site.limits
    assert site.judged == [False]


def test_a_setting_that_a_running_loop_does_not_follow_is_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A changed setting that a running loop does not follow must be logged. Otherwise, an operator who sets require_dns
    would believe that it is in force."""
    site.change("name_prefix: hf", "name_prefix: hf\ncompute: {calls_per_minute: 100}")
    site.change("    group: hf-a\n", "    group: hf-a\n    require_dns: true\n")
    limits = site.refresh(site.limits, None)
    logged = [getattr(record, "settings", "") for record in caplog.records if record.levelname == "WARNING"]
    assert logged == ["compute, pools.mig-a.require_dns"]
    site.change("calls_per_minute: 100", "calls_per_minute: 600")
    site.change("    require_dns: true\n", "")
    caplog.clear()
    assert site.refresh(limits, None) is not limits
    assert [record.levelname for record in caplog.records if record.levelname == "WARNING"] == []


@pytest.mark.parametrize("gone", [False, True], ids=["it has a machine", "its machines are gone"])
def test_a_template_cannot_be_removed_while_it_has_machines(site: Site, gone: bool) -> None:
    site.change_templates(lambda templates: templates.__delitem__(1))
    limits = site.refresh(site.limits, memory("GceVm", gone=gone))
    assert ("GceVm" in limits.templates) is not gone
    assert site.judged == [gone]


def test_a_refused_template_is_removed_once_its_machines_are_gone_though_no_file_changes(site: Site) -> None:
    site.change_templates(lambda templates: templates.__delitem__(1))
    limits = site.refresh(site.limits, memory("GceVm", gone=False))
    assert "templates.GceVm: cannot be removed" in site.configuration.refused
    assert "GceVm" not in site.refresh(limits, memory("GceVm", gone=True)).templates
    assert site.configuration.refused == ""


def test_a_pod_spec_in_a_directory_of_its_own_is_refused_and_fixed_as_the_other_files(site: Site) -> None:
    spec = site.file.parent / "pod-specs" / "standard.yaml"
    right = spec.read_text()
    spec.write_text(right.replace('cpu: "4"', "cpu: 4 cores"))
    assert site.refresh(site.limits, None) is site.limits
    words = "'pod-specs/standard.yaml': containers.0.resources.requests.cpu: expected "
    assert f"pools.gke-main.pod_spec: {words}" in site.configuration.refused
    spec.write_text(right.replace('cpu: "4"', "cpu: 4").replace("image: ", "imag: "))
    site.refresh(site.limits, None)
    assert "'pod-specs/standard.yaml': containers.0.image: expected " in site.configuration.refused
    spec.write_text(right)
    site.refresh(site.limits, None)
    assert site.configuration.refused == ""


def test_a_file_that_may_not_be_read_is_refused_until_it_may(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    may = [True, False, False, True]

    def judge(_: object) -> None:
        if not may[0]:
            raise PermissionError("the key may not be read")

    site.configuration.judge = judge
    site.change("max_pending: 100", "max_pending: 99")
    for is_right in may.copy():
        site.refresh(site.limits, None)
        assert site.configuration.refused == ("" if is_right else "the key may not be read")
        site.file.touch()
        del may[0]
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [REFUSED], "it is said once"


@pytest.mark.parametrize("there", [True, False], ids=["a mistake", "no directory"])
def test_a_configuration_that_is_wrong_at_the_start_is_an_error(tmp_path: Path, there: bool) -> None:
    if there:
        shutil.copytree(EXAMPLE, tmp_path / "conf")
        (tmp_path / "conf" / "provisioner.yaml").write_text("pools: 3\n")
    with pytest.raises(ConfigError, match="conf"):
        Configuration(tmp_path / "conf" / "provisioner.yaml", ENVIRONMENT)


def test_a_file_that_goes_while_the_directory_is_read_is_no_error(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """An editor or HF may rename a temporary file while the loop reads the directory."""
    passing = site.file.with_name("passing.json")
    scan = os.scandir

    def listed(path: Path) -> Iterator[os.DirEntry[str]]:
        passing.touch()
        entries = list(scan(path))
        passing.unlink()
        return iter(entries)

    monkeypatch.setattr(os, "scandir", listed)
    assert site.refresh(site.limits, None) is site.limits
    assert site.judged == []


def test_a_directory_that_is_away_leaves_what_is_in_force(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    away = site.file.parent.with_name("away")
    site.file.parent.rename(away)
    for _ in range(3):
        assert site.refresh(site.limits, None) is site.limits
    assert site.judged == [False]
    assert [record.levelname for record in caplog.records] == ["ERROR"], "it is said once"
    away.rename(site.file.parent)
    site.refresh(site.limits, None)
    assert site.judged == [False, True]


def test_whatever_breaks_while_files_are_read_the_limits_stay(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("provisioner.settings.reload.load", broken)
    site.change("max_pending: 100", "max_pending: 99")
    assert site.refresh(site.limits, None) is site.limits
    assert site.judged == [False]
    assert REFUSED in caplog.text
    assert "MemoryError" in (caplog.records[-1].exc_text or "")
