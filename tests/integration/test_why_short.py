"""`provisioner status` beside a real loop and the embedded cloud: why a request is short, read from what it prints."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.simulator.server import Simulator
from tests.conformance.stage import MIG_CASES, Case, Grid, stage
from tests.support.waiting import until

TIME = r"\d\d:\d\d:\d\d"


@pytest.fixture(scope="module")
def cloud() -> Iterator[Simulator]:
    with stage() as running:
        yield running


@pytest.fixture
def hf(tmp_path: Path, cloud: Simulator, request: pytest.FixtureRequest) -> Iterator[Grid]:
    """A provider instance at the place that the test names, so that none meets another one's machines."""
    with Grid(tmp_path, cloud, Case(request.param, "", lambda _: None)) as grid:
        grid.cycles()
        yield grid
        grid.faults()


def at(number: int) -> pytest.MarkDecorator:
    """The test plays at this place."""
    return pytest.mark.parametrize("hf", [number], indirect=True, ids=[""])


def call(hf: Grid, *options: str) -> tuple[int, str]:
    """Exit code and output of the real command."""
    command = [sys.executable, "-m", "provisioner", "status", *options]
    environment = {**os.environ, **hf.environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout, done.stderr
    return done.returncode, done.stdout


def until_said(hf: Grid, *patterns: str, code: int = 1) -> str:
    """What is printed, with this exit code, once a line of it fits each pattern."""

    seen = [""]

    def said() -> bool:
        found, seen[0] = call(hf)
        return found == code and all(re.search(pattern, seen[0], re.M) for pattern in patterns)

    try:
        until(said, 30, every=0.1, what=f"status says {patterns}")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{seen[0]}") from error
    return seen[0]


def lacks(hf: Grid, id_: str) -> list[dict[str, Any]]:
    """Why the request is short, as JSON."""
    _, text = call(hf, "-o", "json")
    (entry,) = (one for one in json.loads(text)["requests"] if one["id"] == id_)
    missing: list[dict[str, Any]] = entry["missing"]
    assert sum(one["machines"] for one in missing) == entry["count"] - entry["running"]
    return missing


def one_lack(hf: Grid, id_: str, reasons: set[str]) -> dict[str, Any]:
    """The first entry with one of these reasons, once there is one."""

    def found() -> dict[str, Any] | None:
        return next((one for one in lacks(hf, id_) if one["reason"] in reasons), None)

    entry: dict[str, Any] = until(found, 30, every=0.1, what=f"{id_} lacks machines: {reasons}")
    return entry


@at(MIG_CASES[0])
def test_a_mig_stock_out_is_told_in_the_clouds_words_beside_request_and_pool(hf: Grid) -> None:
    hf.fault("stockout")
    request = hf.request("T2", 3)
    words = rf"stockout since {TIME} \(.*\): .*ZONE_RESOURCE_POOL_EXHAUSTED"
    text = until_said(hf, rf"^    3 in gke-main: asked for and not running, {words}", code=0)
    assert re.search(rf"request {request} .* 0 of 3 running, 3 missing until {TIME}", text)
    assert re.search(r"^  pool gke-main, T2: window \d+, 3 missing, .*last error \d+ s ago", text, re.M)
    entry = one_lack(hf, request, {"troubled"})
    assert (entry["error"], entry["since_seconds"] < 60) == ("stockout", True)


@at(1)
def test_a_paused_pool_is_told_beside_the_requests_that_wait_for_it(hf: Grid) -> None:
    hf.complete(1)
    pools = {name: settings | {"paused": True} for name, settings in hf.settings["pools"].items()}
    hf.configure(pools=pools)
    until_said(hf, "PAUSED pool gke-main")
    request = hf.request("T2", 2)
    until_said(hf, "PAUSED pool gke-main", rf"^    2 in gke-main: paused since {TIME} \(\d+ s\)$")
    assert one_lack(hf, request, {"paused"})["machines"] == 2
    hf.configure()
    assert hf.ended(request)["status"] == "complete"
    until_said(hf, rf"request {request} .* complete, 2 of 2 running; slots", code=0)


@pytest.mark.slow
@at(2)
def test_a_pool_that_denies_is_told_beside_the_requests_that_it_refuses(hf: Grid) -> None:
    hf.fault("denied")
    request = hf.request("T2", 2)
    until_said(hf, "REFUSED by pool gke-main: creates of T2", rf"^    \d in gke-main: .*denied since {TIME} .*cannot")
    assert one_lack(hf, request, {"backoff"})["next_try_seconds"] is not None


@pytest.mark.slow
@at(3)
def test_a_refused_configuration_does_not_hide_why_a_request_is_short(hf: Grid) -> None:
    hf.configure(pools={"gke-main": hf.settings["pools"]["gke-main"] | {"max_machines": 1}})
    until(lambda: one_is_made(hf), 30, what="the cap is in force")
    request = hf.request("T2", 2)
    until_said(hf, rf"^    2 in gke-main: cap of 1 since {TIME} .*; held by", code=0)
    hf.configure(nonsense=1)
    text = until_said(hf, "CONFIGURATION REFUSED, the one before stays in force, since .*")
    assert "nonsense: unknown setting" in text
    assert one_lack(hf, request, {"cap"})["bound"] == 1


def one_is_made(hf: Grid) -> bool:
    """The pool holds the one machine that its cap allows."""
    limits = json.loads(Path(hf.state.notes.path).read_text())["pool_limits"]
    return limits["gke-main"]["max_machines"] == 1 and len(hf.complete(1)) == 1


@at(4)
def test_a_dead_loop_is_told_and_what_it_left_waiting(hf: Grid) -> None:
    hf.complete(1)
    hf.fault("stuck")
    request = hf.request("T2", 2)
    until(lambda: request in hf.state.memory.read().requests, 30, what="the loop knows of it")
    hf.stop_loop()
    text = until_said(hf, r"LOOP NOT RUNNING since \d\d:\d\d:\d\d: start `provisioner run`")
    assert f"request {request} (T2): running, 0 of 2 running, 2 missing" in text
