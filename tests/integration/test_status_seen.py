"""`provisioner status` beside a real loop on the embedded cloud: what goes wrong is said, with 1, until it is over."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.conformance.stage import Case, Grid, stage
from tests.support.waiting import until

Shown = tuple[int, dict[str, Any]]
BRAKE_LINE = "Brake latched"


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Grid]:
    with stage() as cloud, Grid(tmp_path, cloud, Case(1, "", lambda _: None)) as grid:
        yield grid


def status(hf: Grid) -> Shown:
    """Exit code and document of the command."""
    command = [sys.executable, "-m", "provisioner", "status", "-o", "json"]
    environment = {**os.environ, **hf.environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def until_shown(hf: Grid, section: str, *, over: bool = False) -> Any:
    """What the section holds once it holds something, with code 1; or once it holds nothing any more, with 0."""
    shown = until(
        lambda: (seen := status(hf))[0] == (0 if over else 1) and bool(seen[1][section]) is not over and seen,
        30,
        every=0.1,
        what=f"status shows {section}, over: {over}",
    )
    return shown[1][section]


def test_a_loop_that_has_ended(hf: Grid) -> None:
    hf.complete(1)
    until(lambda: status(hf)[0] == 0, 30, what="all is well")
    hf.stop_loop()
    code, shown = status(hf)
    assert (code, shown["loop"]["running"]) == (1, False), "it has said that it ends"
    hf.start_loop()
    until(lambda: status(hf)[0] == 0, 30, what="it runs again")


def test_a_refused_configuration(hf: Grid) -> None:
    hf.complete(1)
    hf.configure(nonsense=1)
    trouble = until_shown(hf, "configuration_refused")
    assert "nonsense: unknown setting" in trouble["text"]
    hf.configure()
    until_shown(hf, "configuration_refused", over=True)


@pytest.mark.slow
def test_a_paused_pool(hf: Grid) -> None:
    hf.complete(1)
    pools = {name: pool | {"paused": True} for name, pool in hf.settings["pools"].items()}
    hf.configure(pools=pools)
    assert until_shown(hf, "paused") == ["gke-main"]
    hf.configure()
    until_shown(hf, "paused", over=True)


@pytest.mark.slow
def test_a_pool_that_refuses_every_create_and_delete_although_it_can_be_seen(hf: Grid) -> None:
    machines = hf.complete(2)
    hf.fault("denied")
    back = hf.give_back(*machines)
    refused = until_shown(hf, "refused")
    assert [(one["pool"], one["operation"]) for one in refused] == [("gke-main", "delete")]
    assert "cannot delete" in refused[0]["text"]
    request = hf.request("T2", 1)
    until(lambda: len(until_shown(hf, "refused")) == 2, 30, what="creates are refused as well")
    (create,) = (one for one in status(hf)[1]["refused"] if one["operation"] == "create")
    assert (create["pool"], create["template"], "cannot create" in create["text"]) == ("gke-main", "T2", True)
    hf.faults()
    assert hf.ended(back)["status"] == "complete"
    assert hf.ended(request)["status"] == "complete"
    until_shown(hf, "refused", over=True)


# --- a memory that is to be made again --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_pool_that_holds_up_a_rebuild_is_named_by_health_log_and_status(
    hf: Grid, caplog: pytest.LogCaptureFixture
) -> None:
    machines = hf.complete(2)
    hf.stop_loop()
    Path(hf.state.memory.path).unlink()
    hf.fault("unavailable")
    caplog.set_level(logging.INFO)
    hf.start_loop()
    trouble = until_shown(hf, "nothing_planned")
    assert "made again as soon as every pool was seen" in trouble["text"]
    assert "Not seen yet: gke-main." in trouble["text"]
    since = trouble["since"]
    hf.cycles(5)
    assert status(hf)[1]["nothing_planned"]["since"] == since
    alive, ready = (requests.get(f"{hf.url}/{page}", timeout=10) for page in ("healthz", "readyz"))
    assert (alive.status_code, ready.status_code) == (200, 503)
    assert "Nothing has been planned for" in ready.text
    assert "Pool gke-main cannot be seen: " in ready.text
    told = [record for record in caplog.records if record.message == "Cycle failed"]
    assert len(told) == 1, "it is said once"
    hf.faults()
    until(lambda: requests.get(f"{hf.url}/readyz", timeout=10).ok, 30, what="it is ready")
    code, shown = status(hf)
    assert (code, shown["nothing_planned"], shown["brake"]["reason"]) == (1, None, "memory_lost")
    assert hf.cloud("running") == sorted(machines)


def test_a_brake_that_latches_is_logged_once_and_status_names_the_machines_that_wait(
    hf: Grid, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    machines = hf.complete(8)
    hf.stop_loop()
    for kind in ("intent", "memory", "status"):
        for path in hf.work.glob(f"{kind}.json*"):
            path.unlink()
    for path in (hf.work / "seen").iterdir():
        path.unlink()
    hf.state.intent.create(hf.instance)
    hf.start_loop()
    brake = until_shown(hf, "brake")
    assert brake["reason"] == "memory_lost"
    _, shown = status(hf)
    assert [one["machine"] for one in shown["waiting"]] == sorted(machines)
    assert {one["pool"] for one in shown["waiting"]} == {"gke-main"}
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 500))
    assert all(one["deleted_at"] > soon for one in shown["waiting"]), "ten minutes of grace"
    hf.cycles(5)
    (told,) = (record for record in caplog.records if record.message.startswith(BRAKE_LINE))
    facts = vars(told)
    assert told.levelname == "ERROR"
    assert (facts["reason"], facts["detail"], facts["pool"], facts["orphans"]) == (
        *(brake[word] for word in ("reason", "detail", "pool")),
        8,
    )
    hf.state.ask_recovery()
    until(lambda: "Brake released" in caplog.messages, 30, what="it is said that the brake is released")
