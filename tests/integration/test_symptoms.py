"""The faults of docs/troubleshooting.md: each is caused, and the first command of its section prints what the page
shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from provisioner.commands.cli import run
from provisioner.model import BrakeReason
from provisioner.telemetry import cost, holds, losses, pool_alarms, status_inputs, status_model
from tests.conformance.stage import Case, Grid, stage
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
FIRST_MACHINE = (ROOT / "docs" / "first-machine.md").read_text()
SECTIONS = {part.splitlines()[0]: " ".join(part.split()) for part in re.split(r"(?m)^## ", PAGE)[1:]}
CASE = Case(1, "", lambda _: None, settings={"backoff": {"first_seconds": 0.1, "no_room_seconds": 0.2}})
Ask = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    with stage() as cloud, Grid(tmp_path_factory.mktemp("site"), cloud, CASE) as grid:
        grid.complete(1)
        yield grid


@pytest.fixture
def ask(hf: Grid, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Return a function that runs a command of ours in HostFactory's environment. It returns the exit code, and what
    the command prints on stdout and stderr."""
    for name, value in hf.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KUBECONFIG", str(hf.simulator.kubeconfig))

    def called(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = run(arguments)
        out, error = capsys.readouterr()
        return code, " ".join((out + error).split())

    return called


def shows(ask: Ask, section: str, *words: str, code: int = 1, command: str = "provisioner status") -> bool:
    """Check that the section of the page has the command and these words. Then wait until the command prints the words
    and ends with exit code ``code``. Raises AssertionError if it does not in time."""
    assert [text for text in (f"$ {command}", *words) if text not in SECTIONS[section]] == [], section
    arguments = [one.strip('"') for one in re.findall(r"\"[^\"]*\"|\S+", command)[1:]]

    def says() -> bool:
        ended, text = ask(*arguments)
        return ended == code and all(word in text for word in words)

    return until(says, 30, every=0.1, what=f"{command} says {words} with {code}")


MODULES = (status_inputs, holds, losses, status_model, pool_alarms, cost)
"""The modules with the words in capitals."""


def test_every_alarm_and_every_reason_of_the_brake_is_on_the_page() -> None:
    table = PAGE.partition("## ")[0]
    sources = "".join(Path(str(module.__file__)).read_text() for module in MODULES)
    alarms = set(re.findall(r"\"([A-Z]{4,}(?: [A-Z]{2,})*)\b", sources))
    assert {"LOOP NOT RUNNING", "REFUSED", "STUCK", "PLANNING STOPPED", "INTENT OLD"} <= alarms
    assert {alarm for alarm in alarms if not re.search(rf"\b{alarm.split()[0]}\b", PAGE)} == set()
    assert "BRAKE" in table
    symptoms = " ".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `"))
    assert {reason for reason in BrakeReason if f"`{reason}`" not in symptoms} == set()


def test_every_line_of_the_table_leads_to_a_section_and_each_section_is_led_to() -> None:
    led = re.findall(r"\(#([\w-]+)\)", PAGE.partition("## ")[0])
    assert set(led) == {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in SECTIONS}
    for title, text in SECTIONS.items():
        assert "$ " in text, f"{title}: which command first"
        assert "**Means.**" in text, title
        assert "**Do.**" in text, title


def test_no_templates(hf: Grid) -> None:
    words = "not JSON: Expecting property name enclosed in double quotes"
    assert words in SECTIONS["HostFactory shows no templates"]
    before = hf.templates_file.read_text()
    hf.templates_file.write_text("{\n")
    assert words in hf.run(hf.command("getAvailableTemplates", {})).refusal
    hf.templates_file.write_text(before)
    logged = hf.log[-1]
    assert f"`{logged['message']}` with a `problem`" in FIRST_MACHINE
    assert words in logged["problem"]
    hf.call("getAvailableTemplates", {})
    answered = {key: hf.log[-1][key] for key in ("severity", "message", "command")}
    assert all(f'"{key}": "{value}"' in FIRST_MACHINE for key, value in answered.items())


def test_holds(hf: Grid, ask: Ask) -> None:
    line = 'provisioner stop-all --reason "machines are made again and again, INC-4711"'
    words = "No machine is made or deleted until `provisioner start-all`; the scripts still answer."
    assert shows(ask, "Stop all now", words, code=0, command=line)
    assert "STOPPED" in ask("status")[1]
    assert ask("start-all")[0] == 0


def test_nothing_is_created(hf: Grid, ask: Ask) -> None:
    words = ("The next cycle has no action.", "pool gke-main: ")
    assert shows(ask, "No machine is created", *words, code=0, command="provisioner plan")


def test_a_paused_pool_is_shown_beside_the_request_that_waits_for_it(hf: Grid, ask: Ask) -> None:
    hf.configure(pools={name: pool | {"paused": True} for name, pool in hf.settings["pools"].items()})
    until(lambda: "PAUSED pool gke-main" in ask("status")[1], 30, what="the pool is paused")
    request = hf.request("T2", 2)
    until(lambda: "2 in gke-main: paused since" in ask("status")[1], 30, what="the reason is shown")
    hf.configure()
    assert hf.ended(request)["status"] == "complete"
    until(lambda: ask("status")[0] == 0, 30, what="it is over")


def test_a_refused_configuration(hf: Grid, ask: Ask) -> None:
    hf.configure(lop={"interval_seconds": 1})
    words = ("1 problem lop: unknown setting; did you mean 'loop'?",)
    assert shows(ask, "CONFIGURATION REFUSED", *words, code=2, command="provisioner check")
    until(lambda: "CONFIGURATION REFUSED since" in ask("status")[1], 30, what="status shows it")
    hf.configure()
    until(lambda: ask("status")[0] == 0, 30, what="it is over")


def test_a_place_that_denies(hf: Grid, ask: Ask) -> None:
    hf.fault("denied")
    hf.request("T1", 1)
    assert shows(ask, "403", "REFUSED by pool gke-main: creates of template ", 'cannot create resource "pods"')
    hf.faults()


def test_machines_that_hostfactory_does_not_list_and_one_that_is_deleted_from_outside(hf: Grid, ask: Ask) -> None:
    hf.call("getReturnRequests", {"machines": []})
    machines = hf.complete(2)
    words = ("not listed; memory: succeeded; cloud: running. Meaning: HostFactory does not list the machine",)
    assert shows(ask, "Machines run but HostFactory does not see them", *words, command="provisioner diff")
    hf.simulator.preempt(machines[0])
    hf.reclaims(machines[0], among=machines)
    words = ("The loop reports to HostFactory that ", " was lost in pool gke-main: ")
    section = SECTIONS["Machines are deleted and made again"]
    assert all(word in section for word in words)
    timeline = until(
        lambda: words[1] in (text := ask("explain", machines[0])[1]) and text, 30, what="the loss is shown"
    )
    assert all(word in timeline for word in words)
    assert shows(
        ask,
        "The bill is too high",
        "Machine-hours from ",
        code=0,
        command="provisioner usage --since 7d --by template,pool,account",
    )


@pytest.mark.slow
def test_requests_hang_for_a_stock_out(hf: Grid, ask: Ask) -> None:
    hf.fault("stockout")
    hf.request("T2", 1)
    assert shows(ask, "Requests hang", "missing; the request ends at", "not running, stockout since", code=0)
    assert shows(
        ask,
        "Stock-out",
        "FailedScaleUp: ",
        "GCE out of resources.",
        code=0,
        command="provisioner status --pool gke-main",
    )
    hf.faults()


def test_a_loop_that_has_ended_and_files_that_are_lost(hf: Grid, ask: Ask) -> None:
    machines = hf.complete(2, "T1")
    hf.stop_loop()
    until(lambda: "LOOP NOT RUNNING since" in ask("status")[1], 30, what="the dead loop is shown")
    assert shows(ask, "LOOP NOT RUNNING", "LOOP NOT RUNNING since", "no machine is made or deleted until then")
    for path in hf.work.glob("memory.json*"):
        if path.name == "memory.json":
            path.unlink()
    hf.fault("unavailable")
    hf.start_loop()
    assert shows(ask, "PLANNING STOPPED", "PLANNING STOPPED since", "Not observed yet: gke-main.")
    assert [requests.get(f"{hf.url}/{page}", timeout=10).status_code for page in ("healthz", "readyz")] == [200, 503]
    hf.faults()
    until(lambda: "BRAKE memory_lost since" in ask("status")[1], 30, every=0.1, what="the brake latches")
    assert shows(
        ask,
        "Brake latched",
        "intent.json: fine",
        "memory.json: fine",
        "BRAKE memory_lost since",
        command="provisioner recover",
    )
    hf.stop_loop()
    for name in ("intent.json", "memory.json"):
        (hf.work / name).unlink()
    words = ("to write back: request ", "No file was changed. To make these changes: provisioner recover --apply")
    assert shows(ask, "After a restore", "intent.json: missing", *words, command="provisioner recover")
    assert hf.cloud("running") == sorted(set(hf.cloud("running")) | set(machines)), "none was deleted for it"
