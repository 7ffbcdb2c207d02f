"""demand.yaml: every mistake at once, each with file, field and value."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from provisioner.commands.cli import run
from provisioner.demand.kubernetes import Kubernetes
from provisioner.demand.settings import KINDS, Demand, TemplateDemand, load
from provisioner.demand.simple_sources import Url, Window
from provisioner.files.config_error import ConfigError
from provisioner.hostfactory import templates
from tests.support.hostfactory.sites import example_site, small_site

RIGHT = """\
interval_seconds: 10
templates: {Mixed: {least: 1, most: 5}}
sources:
  base: {kind: fixed, template: Mixed, machines: 5}
"""

WRONG = """\
interval_seconds: 0
rise: 3
combine: mean
templates: {Mixed: {least: 9, most: 5}, Mixt: {}}
sources:
  one: {kind: fixd, template: Mixed}
  two: {kind: fixed, template: Mixt, machines: 5}
  three: {kind: fixed, template: Mixed, machines: many}
  four: 4
"""


def problems(directory: Path, text: str) -> list[str]:
    """Return every problem, file name first, as one line."""
    with pytest.raises(ConfigError) as caught:
        loaded(directory, text)
    return [f"{Path(problem.file).name}: {problem}" for problem in caught.value.problems]


def loaded(directory: Path, text: str) -> Demand:
    site = small_site(directory)
    site.write()
    (directory / "demand.yaml").write_text(text)
    return load(directory / "demand.yaml", templates.load(directory, {}))


def test_right_settings_are_read(tmp_path: Path) -> None:
    settings = loaded(tmp_path, RIGHT)
    assert (settings.interval_seconds, settings.combine, settings.rise_at_once) == (10, "sum", 100)
    assert settings.sources["base"].templates() == {"Mixed"}
    assert settings.templates["Mixed"].most == 5


def test_every_mistake_is_reported_at_once(tmp_path: Path) -> None:
    found = problems(tmp_path, WRONG)
    for words in (
        "sources.one.kind: expected a kind of source, got 'fixd'; did you mean 'fixed'?",
        "sources.three.machines: expected a whole number",
        "sources.four: expected a mapping of settings, got 4",
        "rise: unknown setting",
        "combine: expected 'sum' or 'max', got 'mean'",
        "interval_seconds: expected a number > 0, got 0",
        "sources.two.template: unknown template 'Mixt'; did you mean 'Mixed'?",
    ):
        assert any(line.startswith(f"demand.yaml: {words}") for line in found), (words, found)


@pytest.mark.parametrize(
    "settings",
    [
        "kind: kubernetes, node_labels: {Mixt: {a: b}}",
        "kind: kubernetes, node_taints: {Mixt: [a=b:NoSchedule]}",
        "kind: kubernetes, only_templates: [Mixt]",
        "kind: slurm, partitions: {day: [], night: [Mixt]}",
    ],
)
def test_an_unknown_template_is_named_with_its_setting(settings: str, tmp_path: Path) -> None:
    found = problems(tmp_path, f"sources: {{a: {{{settings}}}}}")
    setting = settings.split(", ")[1].split(":")[0]
    assert found == [f"demand.yaml: sources.a.{setting}: unknown template 'Mixt'; did you mean 'Mixed'?"]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("kind: schedule, template: Mixed, zone: UTC, windows: [{end: 6, machines: 1}]", "windows.0.end: expected a"),
        ("kind: schedule, template: Mixed, zone: UTC, windows: []", "windows: expected a list of windows, got []"),
        ("kind: command, argv: [3]", "argv.0: expected a list of texts"),
        ("kind: kubernetes, selector: {team: risk}", "selector: expected a text such as team=risk, got {'team'"),
    ],
)
def test_a_mistake_is_reported_once_with_the_expected_form(settings: str, problem: str, tmp_path: Path) -> None:
    [found] = problems(tmp_path, f"sources: {{a: {{{settings}}}}}")
    assert found.startswith(f"demand.yaml: sources.a.{problem}")


def test_limits_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    text = RIGHT.replace("least: 1", "least: 6").replace("Mixed: {", "Mixt: {}, Mixed: {")
    assert problems(tmp_path, text) == [
        "demand.yaml: templates.Mixt: unknown template 'Mixt'; did you mean 'Mixed'?",
        "demand.yaml: templates.Mixed.least: expected at most 5, got 6",
    ]


@pytest.mark.parametrize("text", ["", "sources: {}", "sources: 3"])
def test_sources_are_required(tmp_path: Path, text: str) -> None:
    assert "sources: expected a mapping of names to sources" in " ".join(problems(tmp_path, text))


def test_check_reads_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example_site(tmp_path, monkeypatch)
    (tmp_path / "conf" / "demand.yaml").write_text(WRONG)
    assert run(["check"]) == 2
    assert "sources.one.kind: expected a kind of source" in capsys.readouterr().err


def test_the_sample_has_each_kind_and_its_files_lie_beside_it() -> None:
    sample = Path(__file__).parents[3] / "config" / "demand.yaml"
    settings = load(sample, templates.load(sample.parent / "production", {"HF_PROVIDER_NAME": "gridinst"}))
    assert {type(source) for source in settings.sources.values()} == {*KINDS.values()}
    page, pods = settings.sources["page"], settings.sources["pods"]
    assert isinstance(page, Url)
    assert isinstance(pods, Kubernetes)
    assert page.token_file == sample.parent / "secrets" / "wanted.token"
    assert pods.kubeconfig == sample.parent / "secrets" / "risk.kubeconfig"


@pytest.mark.parametrize("kind", [Demand, TemplateDemand, Window, *KINDS.values()], ids=lambda kind: kind.__name__)
def test_the_page_has_each_setting(kind: type[BaseModel]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "demand.md").read_text()
    assert [name for name in kind.model_fields if not re.search(rf"\b{name}\b", page)] == []


def test_check_reads_slurm_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_site(tmp_path).write()
    (tmp_path / "slurm.json").write_text('{"nodes": {"c[1-2]": "Mixt"}}')
    assert run(["check", str(tmp_path)]) == 2
    assert "nodes.c[1-2]: expected one of " in capsys.readouterr().err
