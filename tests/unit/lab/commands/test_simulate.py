"""``provisioner simulate``: the runs that are played, the output, the written files, and the reported mistakes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from provisioner.commands.cli import run
from provisioner.lab.commands.simulate import SEEDS
from provisioner.lab.virtual import parallel_runs, progress
from provisioner.lab.virtual.measures import MEASURES
from provisioner.lab.virtual.report import Report
from provisioner.lab.virtual.run import Result, play
from provisioner.lab.virtual.scenario_file import catalogue
from tests.unit.lab.virtual.test_true_events import TINY

Write = Callable[..., str]
"""A function that writes a scenario file and returns its name."""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def file(name: str = "own.yaml", **more: Any) -> str:
        (tmp_path / name).write_text(yaml.safe_dump({**TINY, **more}))
        return name

    return file


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(["simulate", "--jobs", "1", *arguments])
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Path]]:
    """Replace the function that draws a picture, and return the list of its calls: each picture's number of samples,
    and its path. ``test_plots.py`` tests the function itself."""
    asked: list[tuple[int, Path]] = []

    def draw(report: Report, scenario: str, path: Path) -> None:
        asked.append((min(len(result.samples) for result in report.results(scenario)), path))

    monkeypatch.setitem(sys.modules, "provisioner.lab.virtual.plots", SimpleNamespace(draw=draw))
    return asked


Said = Callable[..., tuple[int, str, str]]


def row(text: str, name: str) -> list[str]:
    """Return the cells of the first line that begins with the name."""
    return next(line for line in text.splitlines() if line.startswith(f"{name} ")).split()


# --- which scenarios --------------------------------------------------------------------------------------------------


def test_the_list_names_the_whole_catalogue(said: Said) -> None:
    code, out, _ = said("--list")
    assert code == 0
    assert {line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines()} == {
        name: scenario.about for name, scenario in catalogue().items()
    }
    code, out, _ = said("--list", "-o", "json")
    assert json.loads(out)["few"] == "Three machines are wanted."
    assert said("--show", "few")[1].startswith("few:\n")


def test_without_a_name_the_whole_catalogue_is_played(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(runs: list[parallel_runs.Run], jobs: int) -> Iterator[Result]:
        planned.extend(runs)
        yield from ()

    planned: list[parallel_runs.Run] = []
    monkeypatch.setattr(parallel_runs, "play_all", none)
    assert said()[0] == 0
    assert [*dict.fromkeys(one.scenario.name for one in planned)] == [*catalogue()]
    assert len(planned) == len(catalogue()) * len(parallel_runs.CONTROLLERS) * SEEDS


# --- what is printed --------------------------------------------------------------------------------------------------


def test_each_controller_has_a_row_with_its_numbers(said: Said, write: Write) -> None:
    code, out, err = said(write(), "--seeds", "2")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "own: Two machines are wanted. (2 seeds from 1: p50, p95)"
    assert [line.split()[0] for line in out.splitlines()[4:8]] == ["provisioner", "exact", "GlideinWMS", "PRP"]
    assert row(out, "provisioner")[1:] == [
        *("30", "30", "30", "20"),  # HF polls each half minute
        *("0.00", "1.00", "0.00", "1", "0.0", "0.2", "2"),
        *"0000000",
        "-",
    ]
    assert row(out, "PRP")[-8:] == ["0", "-", "0", "0", "-", "-", "0", "-"]
    assert out.endswith("2 runs of the provisioner: laws broken in 0, goals missed 0 of 0.\n")


def test_numbers_that_scatter_have_two_lines(said: Said, write: Write) -> None:
    pools = {"a": {"boot_seconds": 60, "boot_p95_seconds": 120}}
    lines = said(write(pools=pools, demand=[{"machines": 20}]), "--seeds", "4", "--no-baselines")[1].splitlines()
    number = next(number for number, line in enumerate(lines) if line.startswith("provisioner"))
    assert float(lines[number + 1].split()[0]) > float(lines[number].split()[3])


def test_goals_that_are_met_and_missed_are_reported_with_the_worst_seed(said: Said, write: Write) -> None:
    code, out, _ = said(write(goals={"t90": 30, "created": 1}), "--seeds", "2", "--no-baselines")
    assert code == 1
    assert "  ✓ met    t90 at most 30: 30 in the worst seed\n" in out
    assert "  ✗ MISSED created at most 1: 2 in the worst seed\n" in out
    assert out.endswith("2 runs of the provisioner: laws broken in 0, goals missed 1 of 2.\n")


def test_a_goal_that_is_never_reached_is_missed_and_without_baselines_the_provisioner_is_alone(
    said: Said, write: Write
) -> None:
    code, out, _ = said(write(pools={"a": {"capacity": 0}}, goals={"t90": 600}), "--seeds", "1", "--no-baselines")
    assert code == 1
    assert out.startswith("own: Two machines are wanted. (seed 1)\n")
    assert row(out, "provisioner")[1:5] == ["never"] * 4
    assert "  ✗ MISSED t90 at most 600: never in the worst seed\n" in out
    assert "PRP" not in out


def test_goals_that_others_miss_and_laws_that_others_break_are_no_problem(said: Said, write: Write) -> None:
    code, out, _ = said(write(pools={"a": {"boot_seconds": 60, "max_pending": 1}}, goals={"t90": 150}), "--seeds", "1")
    assert code == 0, out
    assert float(row(out, "PRP")[2]) > 150
    assert row(out, "exact")[14] == "1"


@pytest.mark.parametrize(("quota", "code", "cell"), [(0, 0, "2/2"), (5, 1, "0/2")])
def test_the_reason_that_has_to_be_reported_is_a_goal(
    said: Said, write: Write, quota: int, code: int, cell: str
) -> None:
    file = write(pools={"a": {"boot_seconds": 20, "quota": quota}}, reason="quota")
    found, out, _ = said(file, "--seeds", "2", "--no-baselines")
    assert (found, row(out, "provisioner")[-1]) == (code, cell)
    assert f"quota is reported as the reason: in {cell[0]} of 2 seeds\n" in out


def test_a_broken_law_is_reported_with_the_call_that_shows_it_again(
    said: Said, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaking(*arguments: Any) -> Result:
        result = play(*arguments)
        broken = tuple(f"{at} s: double: hf-x was made twice" for at in range(4))
        return Result(
            result.scenario, result.seed, result.controller, {**result.measures, "double": 4.0}, broken, (), ()
        )

    monkeypatch.setattr(parallel_runs, "play", breaking)
    code, out, _ = said(write("my own.yaml"), "--first-seed", "7", "--seeds", "6", "--no-baselines")
    assert code == 1
    assert row(out, "provisioner")[12] == "24"
    assert out.count("a law was broken") == 5
    assert (
        "my own, seed 7: a law was broken\n"
        "  0 s: double: hf-x was made twice\n"
        "  1 s: double: hf-x was made twice\n"
        "  2 s: double: hf-x was made twice\n"
        "  Again: provisioner simulate 'my own.yaml' --first-seed 7 --seeds 1\n"
    ) in out
    assert "1 more runs broke a law; -o json and --out name them all.\n" in out
    assert out.endswith("6 runs of the provisioner: laws broken in 6, goals missed 0 of 0.\n")


def test_a_run_that_ends_with_a_mistake_of_ours_ends_no_other(
    said: Said, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(scenario: Any, seed: int, decide: Any) -> Result:
        if seed == 2:
            raise ZeroDivisionError("by chance")
        return play(scenario, seed, decide)

    monkeypatch.setattr(parallel_runs, "play", failing)
    code, out, _ = said(write(goals={"t90": 60}), "--seeds", "3", "--no-baselines", "-o", "json")
    runs = json.loads(out)["scenarios"]["own"]["controllers"]["provisioner"]["runs"]
    assert code == 1
    assert [len(runs[seed]["broken"]) for seed in "123"] == [0, 1, 0]
    assert runs["2"]["broken"][0].endswith("ZeroDivisionError: by chance")
    assert json.loads(out)["scenarios"]["own"]["goals"]["t90"] == {"most": 60, "worst": None, "met": False}


# --- what is written --------------------------------------------------------------------------------------------------


def test_json_holds_every_measure_of_every_run(said: Said, write: Write) -> None:
    code, out, _ = said(write(reason="quota", goals={"t90": 60}), "--first-seed", "4", "--seeds", "2", "-o", "json")
    document = json.loads(out)
    own = document["scenarios"]["own"]
    assert code == 1
    assert (document["version"], document["interrupted"], document["fine"]) == (1, False, False)
    assert own["about"] == "Two machines are wanted."
    assert own["goals"] == {"t90": {"most": 60, "worst": 30, "met": True}}
    assert own["reason"] == {"asked": "quota", "seeds": 0, "met": False}
    assert list(own["controllers"]) == ["provisioner", "exact", "GlideinWMS", "PRP"]
    ours = own["controllers"]["provisioner"]
    assert set(ours["runs"]) == {"4", "5"}
    assert ours["runs"]["4"]["broken"] == ours["runs"]["4"]["reasons"] == []
    assert set(ours["runs"]["4"]["measures"]) == set(ours["summary"]) == set(MEASURES)
    assert ours["summary"]["t90"] == {"p50": 30, "p95": 30}


def test_results_are_written_and_each_scenario_is_drawn_and_its_samples_are_forgotten(
    said: Said, write: Write, drawn: list[tuple[int, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[Report] = []
    monkeypatch.setattr(
        "provisioner.lab.virtual.report.document", lambda made, **_: reports.append(made) or {"fine": True}
    )
    for directory in ("one", "deep/two"):
        assert said(write(), "--seeds", "2", "--no-baselines", "--out", directory)[0] == 0
        assert json.loads(Path(directory, "results.json").read_text()) == {"fine": True}
    assert [path for _, path in drawn] == [Path("one/own"), Path("deep/two/own")]
    assert all(samples > 0 for samples, _ in drawn)
    assert [len(result.samples) for result in reports[0].results("own")] == [0, 0]


# --- two side by side -------------------------------------------------------------------------------------------------


def test_two_files_are_compared_with_the_same_seeds(said: Said, write: Write) -> None:
    slow = write("slow.yaml", pools={"a": {"boot_seconds": 80}}, goals={"t90": 60})
    code, out, _ = said("--compare", write("quick.yaml"), slow, "--seeds", "2")
    assert code == 1
    assert row(out, "t90_running") == ["t90_running", "20", "20", "80", "80", "+60", "(+296%)"]
    assert row(out, "created") == ["created", "2", "2", "2", "2", "="]
    assert row(out, "cost")[-1] == "=", "differences below the shown digits do not count"
    assert out.splitlines()[0].split() == ["quick.yaml", "slow.yaml", "difference"]
    assert "slow.yaml:\n  ✗ MISSED t90 at most 60: " in out
    assert "quick.yaml:\n" in out
    assert "PRP" not in out


def test_several_scenarios_are_compared_by_name_and_drawn_by_names_that_a_directory_takes(
    said: Said, write: Write, drawn: list[tuple[int, Path]]
) -> None:
    Path("deep").mkdir()
    full = {**TINY, "pools": {"a": {"capacity": 0}}}
    Path("a.yaml").write_text(yaml.safe_dump({"x": TINY, "y": TINY}))
    Path("deep/b.yaml").write_text(yaml.safe_dump({"x": full, "y": full}))
    code, out, _ = said("--compare", "a.yaml", "deep/b.yaml", "--seeds", "1", "-o", "json", "--out", "out")
    document = json.loads(out)
    compared = [["a.yaml:x", "deep/b.yaml:x"], ["a.yaml:y", "deep/b.yaml:y"]]
    assert (code, document["compare"]) == (0, compared)
    assert set(document["scenarios"]) == {name for pair in compared for name in pair}
    assert {path.name for _, path in drawn} == {"a.yaml_x", "a.yaml_y", "deep_b.yaml_x", "deep_b.yaml_y"}
    out = said("--compare", "a.yaml:x", "deep/b.yaml:y", "--seeds", "1")[1]
    assert row(out, "t90") == ["t90", "30", "30", "never", "never", "-"], "this measure has no difference"


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fwe"], "the catalogue has no scenario 'fwe'; did you mean 'few'?"),
        (["--show", "fwe"], "the catalogue has no scenario 'fwe'; did you mean 'few'?"),
        (["few", "--seeds", "0"], "--seeds and --jobs have to be at least 1, --first-seed at least 0"),
        (["few", "--jobs", "0"], "--seeds and --jobs have to be at least 1, --first-seed at least 0"),
        (["few", "--first-seed", "-1"], "--seeds and --jobs have to be at least 1, --first-seed at least 0"),
        (["few", "--compare", "few", "step"], "--compare names its two scenarios itself; leave out the others"),
        (["few", "--out", "own.yaml"], "--out own.yaml: File exists"),
        (["none.yaml"], "none.yaml: 1 problem\n  no such file"),
        (["--compare", "few", "none.yaml"], "none.yaml: 1 problem\n  no such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_call_is_reported(said: Said, write: Write, arguments: list[str], words: str) -> None:
    write()
    code, out, err = said(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(words)


# --- progress, and Ctrl-C ------------------------------------------------------------------------------


def test_without_a_terminal_a_line_is_printed_now_and_then(
    said: Said, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    lines = said(write(), "--seeds", "2", "--no-baselines")[2].splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("2 of 2 runs in ")
    assert lines[1].endswith(" s; the last: own, provisioner, seed 2")


def test_on_a_terminal_a_bar_is_shown_and_taken_away(said: Said, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    code, _, err = said(write(), "--seeds", "2", "--no-baselines")
    assert code == 0
    assert "2/2" in err
    assert "own, provisioner, seed 2" in err
    assert err.endswith("\x1b[2K")


@pytest.mark.parametrize("first", [3, 1], ids=["some runs have ended", "none has"])
def test_ctrl_c_reports_the_finished_runs(
    said: Said, write: Write, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    def interrupted(scenario: Any, seed: int, decide: Any) -> Result:
        if seed == first:
            raise KeyboardInterrupt
        return play(scenario, seed, decide)

    monkeypatch.setattr(parallel_runs, "play", interrupted)
    code, out, err = said("--compare", write("a.yaml"), write("b.yaml"), "--out", "out")
    assert (code, err) == (130, f"Ended by Ctrl-C after {first - 1} of 10 runs.\n")
    assert out.endswith(f"{first - 1} runs of the provisioner: laws broken in 0, goals missed 0 of 0.\n")
    assert json.loads(Path("out/results.json").read_text())["interrupted"] is True
