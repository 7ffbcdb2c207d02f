"""``provisioner simulate``: what is played, what is printed and written, which mistakes are told how."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.commands.cli import run
from provisioner.commands.simulate import SEEDS
from provisioner.virtual import progress, trial
from provisioner.virtual.chosen import choose
from provisioner.virtual.measured import LAWS, MEASURES
from provisioner.virtual.plots import draw
from provisioner.virtual.report import Report, middle, percentile
from provisioner.virtual.run import Provisioner, Result, play
from provisioner.virtual.scenario_file import catalogue, catalogue_text
from tests.support.hostfactory.provider import ROOT

TINY: dict[str, Any] = {
    "about": "Two machines are wanted.",
    "hours": 0.1,
    "pools": {"a": {"boot_seconds": 20}},
    "demand": [{"machines": 2}],
}
"""A run of it takes some milliseconds."""

PAGE = (ROOT / "docs" / "pressure.md").read_text()

Write = Callable[..., str]
"""Writes a scenario file, and gives its name."""


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


Said = Callable[..., tuple[int, str, str]]


def row(text: str, name: str) -> list[str]:
    """The cells of the first line that begins so."""
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


@pytest.mark.parametrize("name", ["step", "slow-but-sure", "crash-loop-narrow", "restarts", "soak"])
def test_what_is_shown_is_the_scenario_and_nothing_else(said: Said, name: str) -> None:
    code, out, _ = said("--show", name)
    assert code == 0
    assert yaml.safe_load(out) == {name: yaml.safe_load(catalogue_text())[name]}
    assert out.splitlines()[0] == f"{name}:"


def test_a_comment_in_a_scenario_is_shown_with_it(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = "# Of the first.\none:\n  # Inside.\n  about: A\n", "two:\n  about: B\n"
    text = f"# --- a heading ---\n\n{first}\n# --- another ---\n\n{second}"
    monkeypatch.setattr("provisioner.virtual.chosen.catalogue_text", lambda: text)
    monkeypatch.setattr("provisioner.virtual.chosen.catalogue", lambda: {"one": None, "two": None})
    assert said("--show", "one")[1] == first
    assert said("--show", "two")[1] == second


def test_a_scenario_that_was_shown_plays_as_a_file_of_its_own(said: Said, write: Write) -> None:
    Path("own.yaml").write_text(said("--show", "few")[1])
    code, out, _ = said("own.yaml", "--seeds", "1", "--no-baselines")
    assert code == 0
    assert row(out, "provisioner")[1:4] == ["150", "150", "150"]


def test_one_scenario_of_a_file_is_chosen_by_its_name(said: Said, write: Write) -> None:
    Path("both.yaml").write_text(yaml.safe_dump({"x": TINY, "y": TINY}))
    both = json.loads(said("both.yaml", "--seeds", "1", "--no-baselines", "-o", "json")[1])
    assert list(both["scenarios"]) == ["x", "y"]
    one = json.loads(said("both.yaml:y", "--seeds", "1", "--no-baselines", "-o", "json")[1])
    assert one["scenarios"] == {"y": both["scenarios"]["y"]}


def test_without_a_name_the_whole_catalogue_is_played(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(runs: list[trial.Run], jobs: int) -> Iterator[Result]:
        planned.extend(runs)
        yield from ()

    planned: list[trial.Run] = []
    monkeypatch.setattr(trial, "play_all", none)
    assert said()[0] == 0
    assert [*dict.fromkeys(one.scenario.name for one in planned)] == [*catalogue()]
    assert len(planned) == len(catalogue()) * len(trial.CONTROLLERS) * SEEDS


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


def test_without_baselines_the_provisioner_is_alone(said: Said, write: Write) -> None:
    out = said(write(), "--seeds", "1", "--no-baselines")[1]
    assert out.startswith("own: Two machines are wanted. (seed 1)\n")
    assert "PRP" not in out


def test_numbers_that_scatter_have_two_lines(said: Said, write: Write) -> None:
    pools = {"a": {"boot_seconds": 60, "boot_p95_seconds": 120}}
    lines = said(write(pools=pools, demand=[{"machines": 20}]), "--seeds", "4", "--no-baselines")[1].splitlines()
    number = next(number for number, line in enumerate(lines) if line.startswith("provisioner"))
    assert float(lines[number + 1].split()[0]) > float(lines[number].split()[3])


def test_what_never_comes_is_never(said: Said, write: Write) -> None:
    out = said(write(pools={"a": {"capacity": 0}}), "--seeds", "1", "--no-baselines")[1]
    assert row(out, "provisioner")[1:5] == ["never"] * 4


def test_goals_that_are_met_and_missed_are_told_with_the_worst_seed(said: Said, write: Write) -> None:
    code, out, _ = said(write(goals={"t90": 30, "created": 1}), "--seeds", "2", "--no-baselines")
    assert code == 1
    assert "  ✓ met    t90 at most 30: 30 in the worst seed\n" in out
    assert "  ✗ MISSED created at most 1: 2 in the worst seed\n" in out
    assert out.endswith("2 runs of the provisioner: laws broken in 0, goals missed 1 of 2.\n")


def test_a_goal_that_is_never_reached_is_missed(said: Said, write: Write) -> None:
    code, out, _ = said(write(pools={"a": {"capacity": 0}}, goals={"t90": 600}), "--seeds", "1", "--no-baselines")
    assert code == 1
    assert "  ✗ MISSED t90 at most 600: never in the worst seed\n" in out


def test_a_goal_that_only_others_miss_is_no_problem(said: Said, write: Write) -> None:
    code, out, _ = said(write(goals={"t90": 60}), "--seeds", "1")
    assert (code, row(out, "PRP")[2]) == (0, "240")


@pytest.mark.parametrize(("quota", "code", "cell"), [(0, 0, "2/2"), (5, 1, "0/2")])
def test_the_reason_that_people_have_to_be_told_is_a_goal(
    said: Said, write: Write, quota: int, code: int, cell: str
) -> None:
    file = write(pools={"a": {"boot_seconds": 20, "quota": quota}}, reason="quota")
    found, out, _ = said(file, "--seeds", "2", "--no-baselines")
    assert (found, row(out, "provisioner")[-1]) == (code, cell)
    assert f"quota is told as the reason: in {cell[0]} of 2 seeds\n" in out


def test_a_broken_law_is_told_with_the_call_that_shows_it_again(
    said: Said, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaking(*arguments: Any) -> Result:
        result = play(*arguments)
        broken = tuple(f"{at} s: double: hf-x was made twice" for at in range(4))
        return Result(
            result.scenario, result.seed, result.controller, {**result.measures, "double": 4.0}, broken, (), ()
        )

    monkeypatch.setattr(trial, "play", breaking)
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


def test_laws_that_others_break_are_no_problem(said: Said, write: Write) -> None:
    code, out, _ = said(write(pools={"a": {"boot_seconds": 60, "max_pending": 1}}), "--seeds", "1")
    assert (code, row(out, "exact")[14]) == (0, "1")


def test_a_run_that_ends_with_a_mistake_of_ours_ends_no_other(
    said: Said, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(scenario: Any, seed: int, decide: Any) -> Result:
        if seed == 2:
            raise ZeroDivisionError("by chance")
        return play(scenario, seed, decide)

    monkeypatch.setattr(trial, "play", failing)
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


def test_results_and_pictures_are_written_and_the_same_each_time(said: Said, write: Write) -> None:
    for directory in ("one", "deep/two"):
        assert said(write(), "--seeds", "3", "--out", directory)[0] == 0
    names = ["own.png", "own.svg", "results.json"]
    assert sorted(path.name for path in Path("one").iterdir()) == names
    for name in names:
        assert (Path("one") / name).read_bytes() == (Path("deep/two") / name).read_bytes()
    picture = Path("one/own.svg").read_text()
    for label in ("wanted", "usable", "running", "pending", "window", "running, PRP", "own, seed 2"):
        assert f">{label}<" in picture
    assert json.loads(Path("one/results.json").read_text())["scenarios"]["own"]["goals"] == {}


def test_a_long_run_is_drawn_in_hours_and_without_the_provisioner_there_is_no_seed(write: Write) -> None:
    scenario = choose([write(hours=4)])["own"].scenario
    report = Report({"own": scenario})
    report.add(trial.played(trial.Run(scenario, 1, "PRP", drawn=True)))
    draw(report, "own", Path("own"))
    picture = Path("own.svg").read_text()
    assert ">hours<" in picture
    assert ">own<" in picture


def test_samples_are_kept_for_pictures_alone_and_not_too_many() -> None:
    few = catalogue()["few"]
    assert trial.played(trial.Run(few, 1, "provisioner")).samples == ()
    samples = trial.played(trial.Run(few.model_copy(update={"hours": 3.0}), 1, "exact", drawn=True)).samples
    assert 200 < len(samples) <= trial.MOST_SAMPLES
    assert samples[-1].at > 3 * 3600 - 60


def test_samples_are_forgotten_once_they_are_drawn(said: Said, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def document(report: Report, **_: object) -> dict[str, Any]:
        reports.append(report)
        return {"fine": True}

    reports: list[Report] = []
    monkeypatch.setattr("provisioner.virtual.report.document", document)
    said(write(), "--seeds", "2", "--no-baselines", "--out", "out")
    assert [len(result.samples) for result in reports[0].of("own")] == [0, 0]
    assert Path("out/own.png").exists()


@pytest.mark.parametrize(
    ("numbers", "p50", "p95"),
    [
        pytest.param([], None, None, id="none"),
        pytest.param([3.0], 3.0, 3.0, id="one"),
        pytest.param([4.0, 1.0, 3.0, 2.0, 5.0], 3.0, 5.0, id="five"),
        pytest.param([1.0, 2.0], 1.0, 2.0, id="two"),
        pytest.param([float(number) for number in range(1, 101)], 50.0, 95.0, id="a hundred"),
        pytest.param([1.0, None, 2.0], 2.0, None, id="what was never reached is beyond all that was"),
        pytest.param([None, None, 1.0], None, None, id="most never got there"),
    ],
)
def test_percentiles(numbers: list[float | None], p50: float | None, p95: float | None) -> None:
    assert (percentile(numbers, 0.5), percentile(numbers, 0.95)) == (p50, p95)


def test_the_middle_run_is_drawn() -> None:
    def result(seed: int, t90: float | None, cost: float) -> Result:
        return Result("own", seed, "provisioner", {"t90": t90, "cost": cost}, (), (), ())

    assert middle([result(1, None, 1.0), result(2, 60.0, 1.0), result(3, 90.0, 1.0)]).seed == 3
    assert middle([result(1, None, 9.0), result(2, None, 1.0), result(3, None, 5.0)]).seed == 3
    assert middle([result(1, 60.0, 1.0), result(2, 60.0, 1.0)]).seed == 1


def test_a_run_tells_what_the_table_knows() -> None:
    assert set(play(catalogue()["few"], 1, Provisioner).measures) == set(MEASURES)
    assert set(LAWS) < set(MEASURES)


def test_the_page_tells_what_each_measure_means() -> None:
    for name, measure in MEASURES.items():
        assert f"| `{name}` | " in PAGE
        assert f" | {measure.meaning} |\n" in PAGE


def test_the_page_s_example_is_a_scenario(write: Write) -> None:
    Path("own.yaml").write_text(PAGE.partition("```yaml\n")[2].partition("```")[0])
    (chosen,) = choose(["own.yaml"]).values()
    assert (chosen.scenario.reason, len(chosen.scenario.events)) == ("stockout", 2)


# --- two side by side -------------------------------------------------------------------------------------------------


def test_two_files_are_compared_with_the_same_seeds(said: Said, write: Write) -> None:
    slow = write("slow.yaml", pools={"a": {"boot_seconds": 80}}, goals={"t90": 60})
    code, out, _ = said("--compare", write("quick.yaml"), slow, "--seeds", "2")
    assert code == 1
    assert row(out, "t90_running") == ["t90_running", "20", "20", "80", "80", "+60", "(+296%)"]
    assert row(out, "created") == ["created", "2", "2", "2", "2", "="]
    assert row(out, "cost")[-1] == "=", "what cannot be seen in the numbers is no difference"
    assert out.splitlines()[0].split() == ["quick.yaml", "slow.yaml", "difference"]
    assert "slow.yaml:\n  ✗ MISSED t90 at most 60: " in out
    assert "quick.yaml:\n" in out
    assert "PRP" not in out


def test_what_one_of_the_two_never_reaches_has_no_difference(said: Said, write: Write) -> None:
    full = write("full.yaml", pools={"a": {"capacity": 0}})
    out = said("--compare", write("quick.yaml"), full, "--seeds", "1")[1]
    assert row(out, "t90") == ["t90", "30", "30", "never", "never", "-"]


def test_several_scenarios_are_compared_by_name(said: Said, write: Write) -> None:
    for file, boot in (("a.yaml", 20), ("b.yaml", 50)):
        scenario = {**TINY, "pools": {"a": {"boot_seconds": boot}}}
        Path(file).write_text(yaml.safe_dump({"x": scenario, "y": scenario}))
    code, out, _ = said("--compare", "a.yaml", "b.yaml", "--seeds", "1", "-o", "json")
    document = json.loads(out)
    assert code == 0
    assert document["compare"] == [["a.yaml:x", "b.yaml:x"], ["a.yaml:y", "b.yaml:y"]]
    assert set(document["scenarios"]) == {"a.yaml:x", "a.yaml:y", "b.yaml:x", "b.yaml:y"}
    code, out, _ = said("--compare", "a.yaml:x", "b.yaml:y", "--seeds", "1")
    assert (code, out.splitlines()[0].split()) == (0, ["a.yaml:x", "b.yaml:y", "difference"])


def test_pictures_of_a_comparison_have_names_that_a_directory_takes(said: Said, write: Write) -> None:
    Path("deep").mkdir()
    said("--compare", write("a.yaml"), write("deep/b.yaml"), "--seeds", "1", "--out", "out")
    assert {path.name for path in Path("out").glob("*.png")} == {"a.yaml.png", "deep_b.yaml.png"}


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fwe"], "the catalogue has no scenario 'fwe'; did you mean 'few'?"),
        (["--show", "fwe"], "the catalogue has no scenario 'fwe'; did you mean 'few'?"),
        (["there"], "the catalogue has no scenario 'there'; there are 'step', "),
        (["own.yaml:x"], "own.yaml has no scenario 'x'; there are 'own'"),
        (["few", "--seeds", "0"], "--seeds and --jobs have to be at least 1, --first-seed at least 0"),
        (["few", "--jobs", "0"], "--seeds and --jobs have to be at least 1, --first-seed at least 0"),
        (["few", "--first-seed", "-1"], "--seeds and --jobs have to be at least 1, --first-seed at least 0"),
        (["few", "--compare", "few", "step"], "--compare takes the two scenarios itself; leave the others out"),
        (["own.yaml", "deep/own.yaml"], "own: own.yaml and deep/own.yaml are both called so; --compare shows two "),
        (["--compare", "both.yaml", "own.yaml"], "both.yaml and own.yaml cannot be compared: give files with one "),
        (["few", "--out", "own.yaml"], "--out own.yaml: File exists"),
        (["none.yaml"], "none.yaml: 1 problem\n  no such file"),
        (["--compare", "few", "none.yaml"], "none.yaml: 1 problem\n  no such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_call_is_told(said: Said, write: Write, arguments: list[str], words: str) -> None:
    Path("deep").mkdir()
    Path("there").touch()
    write()
    write("deep/own.yaml", hours=0.2)
    Path("both.yaml").write_text(yaml.safe_dump({"x": TINY, "y": TINY}))
    code, out, err = said(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(words)


def test_a_file_that_does_not_end_as_one_is_hinted_at(said: Said, write: Write) -> None:
    Path("scenario.txt").write_text(Path(write()).read_text())
    assert said("scenario.txt")[2].endswith("; a file of your own ends in .yaml\n")


def test_scenarios_of_which_only_one_file_knows_are_named(said: Said, write: Write) -> None:
    write()
    Path("both.yaml").write_text(yaml.safe_dump({"own": TINY, "y": TINY}))
    assert said("--compare", "both.yaml", "own.yaml")[2].endswith("or with the same names; in one alone: y\n")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"bogus": 1}, "own.bogus: unknown setting; "),
        ({"hours": "ten"}, "own.hours: expected a number > 0, got 'ten'"),
        ({"pools": {}}, "own.pools: none; name one"),
        (
            {"pools": {"a": {"boot_second": 1}}},
            "own.pools.a.boot_second: unknown setting; did you mean 'boot_seconds'?",
        ),
        ({"pools": {"a": {"hangs": 2}}}, "own.pools.a.hangs: expected a number from 0 to 1, got 2"),
        ({"demand": [{"machines": -1}]}, "own.demand.0.machines: expected a whole number ≥ 0, got -1"),
        ({"demand": [{"machines": 1, "template": "U"}]}, "own.demand.0.template: unknown template 'U'; there are 'T'"),
        ({"templates": {"T": {"pools": ["b"]}}}, "own.templates.T.pools: unknown pool 'b'; there are 'a'"),
        ({"events": [{"at_minutes": 1, "pools": ["b"]}]}, "own.events.0.pools: unknown pool 'b'; there are 'a'"),
        ({"events": [{"at_minutes": 1, "do": "kil"}]}, "own.events.0.do: expected one of preempt, "),
        (
            {"events": [{"at_minutes": 1, "change": {"boot_seconds": "x"}}]},
            "own.events.0.change.boot_seconds: expected a number ≥ 0, got 'x'",
        ),
        ({"settings": {"lop": {}}}, "own.settings.lop: unknown setting; did you mean 'loop'?"),
        (
            {"settings": {"loop": {"interval_secs": 1}}},
            "own.settings.loop.interval_secs: unknown setting; did you mean 'interval_seconds'?",
        ),
        (
            {"settings": {"loop": {"interval_seconds": "1x"}}},
            "own.settings.loop.interval_seconds: expected a number > 0, at most 15, got '1x'",
        ),
        ({"settings": {"loop": 3}}, "own.settings.loop: expected a mapping of settings, got 3"),
        (
            {"settings": {"orphan_grace_minutes": -1}},
            "own.settings.orphan_grace_minutes: expected a number > 0, got -1",
        ),
        ({"settings": {"pools": {}}}, "own.settings.pools: a scenario has its own; leave it out"),
        ({"goals": {"t9": 3}}, "own.goals.t9: unknown measure; did you mean 't90'?"),
        ({"goals": {"t90": "x"}}, "own.goals.t90: expected a number for each measure, got 'x'"),
        ({"reason": "stokout"}, "own.reason: unknown reason 'stokout'; did you mean 'stockout'?"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_mistake_in_a_file_is_told_with_its_place_and_value(
    said: Said, write: Write, more: dict[str, Any], words: str
) -> None:
    code, out, err = said(write(**more))
    assert (code, out) == (2, "")
    assert err.startswith(f"own.yaml: 1 problem\n  {words}")


def test_settings_of_the_provisioner_are_heeded(said: Said, write: Write) -> None:
    file = write(settings={"loop": {"interval_seconds": 10.0}}, hours=0.5)
    assert said(file, "--seeds", "1")[0] == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no scenario; write one, or several by name"),
        ("x: 3", "x: expected a mapping of settings, got 3"),
        ("x: {", "line 1, column 5: "),
        ("- x", "expected a mapping of settings, got ['x']"),
    ],
)
def test_a_file_that_holds_no_scenario_is_told(said: Said, write: Write, text: str, words: str) -> None:
    Path("own.yaml").write_text(text)
    code, _, err = said("own.yaml")
    assert code == 2
    assert err.startswith(f"own.yaml: 1 problem\n  {words}")


# --- as a process -----------------------------------------------------------------------------------------------------


def provisioner(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "provisioner", "simulate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_processes_beside_each_other_give_what_one_alone_gives(said: Said, write: Write) -> None:
    file = write()
    beside = provisioner(file, "--seeds", "3", "--jobs", "2")
    assert (beside.returncode, beside.stderr) == (0, "")
    assert beside.stdout == said(file, "--seeds", "3")[1]


def test_the_help_names_every_option() -> None:
    done = provisioner("--help")
    assert done.returncode == 0
    for option in ("--list", "--show NAME", "--compare A B", "--seeds N", "--first-seed S", "--jobs N", "--out DIR"):
        assert option in done.stdout


# --- progress, processes, and their ends ------------------------------------------------------------------------------


def test_where_no_terminal_is_a_line_is_told_now_and_then(
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


def test_ctrl_c_tells_what_is_finished(said: Said, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(scenario: Any, seed: int, decide: Any) -> Result:
        if seed == 3:
            raise KeyboardInterrupt
        return play(scenario, seed, decide)

    monkeypatch.setattr(trial, "play", interrupted)
    code, out, err = said(write(), "--seeds", "5", "--no-baselines", "--out", "out")
    assert (code, err) == (130, "Ended by Ctrl-C after 2 of 5 runs.\n")
    assert out.startswith("own: Two machines are wanted. (2 seeds from 1: p50, p95)\n")
    assert json.loads(Path("out/results.json").read_text())["interrupted"] is True


def test_ctrl_c_before_anything_is_finished_tells_so(said: Said, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Result:
        raise KeyboardInterrupt

    monkeypatch.setattr(trial, "play", interrupted)
    code, out, err = said("--compare", write("a.yaml"), write("b.yaml"))
    assert (code, out) == (130, "0 runs of the provisioner: laws broken in 0, goals missed 0 of 0.\n")
    assert err == "Ended by Ctrl-C after 0 of 10 runs.\n"


def test_a_process_that_dies_is_told_and_another_takes_its_place() -> None:
    few = catalogue()["few"]
    results = trial.play_all([trial.Run(few, seed, "exact") for seed in range(4)], 2)
    first = next(results)
    workers = multiprocessing.active_children()
    for process in workers:
        process.kill()
        process.join()
    rest = [*results]
    died = [result.broken for result in rest if result.broken]
    assert {result.seed for result in (first, *rest)} == {0, 1, 2, 3}
    assert 1 <= len(died) <= len(workers)
    assert all(broken == ("the run ended: its process died with exit code -9",) for broken in died)
    assert not multiprocessing.active_children()


def test_no_process_outlives_a_caller_that_has_seen_enough() -> None:
    few = catalogue()["few"]
    results = trial.play_all([trial.Run(few, seed, "exact") for seed in (1, 2)], 2)
    assert next(results).scenario == "few"
    assert multiprocessing.active_children()
    results.close()
    assert not multiprocessing.active_children()
