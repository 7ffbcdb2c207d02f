"""A loop that runs, as a process, while people save whatever they may: it goes on with the configuration before."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
import requests

from provisioner.settings.reload import REFUSED
from provisioner.tools.playground import Playground
from tests.support.hostfactory.wrong_texts import BYTES
from tests.support.waiting import until

WORST = (
    "nested beyond Python's stack, in brackets",
    "aliases that stand for a billion values",
    "merges that stand for a billion keys",
    "a whole number of ten thousand digits",
    "no date, by its form",
    "a kind that is a list",
    "the home of nobody",
    "no UTF-8",
)


@pytest.fixture
def grid() -> Iterator[Playground]:
    with Playground() as made:
        yield made


def refusals(grid: Playground) -> list[str]:
    """The reasons that the loop has logged."""
    lines = (grid.logs / "run.log").read_text().splitlines()
    return [json.loads(line)["error"] for line in lines if REFUSED in line]


@pytest.mark.slow
def test_whatever_is_saved_while_the_loop_runs_it_says_so_and_serves_on(grid: Playground) -> None:
    file = grid.config / "provisioner.yaml"
    right = file.read_bytes()
    for name in WORST:
        before = len(refusals(grid))
        file.with_suffix(".new").write_bytes(BYTES[name])
        os.replace(file.with_suffix(".new"), file)
        said = until(lambda before=before: refusals(grid)[before:], 30, what=f"a file that holds {name} is refused")
        assert str(file) in said[0], name
    before = len(refusals(grid))
    file.unlink()
    os.mkfifo(file)
    said = until(lambda: refusals(grid)[before:], 30, what="a FIFO is refused")
    assert "is no regular file" in said[0]
    assert "hf_provisioner_config_ok 0.0" in requests.get(f"{grid.url}/metrics", timeout=30).text
    id_ = grid.hf.request("GkePod", 2)
    assert until(lambda: (entry := grid.hf.status(id_))["status"] != "running" and entry, 60)["status"] == "complete"
    file.unlink()
    file.write_bytes(right)
    until(lambda: "hf_provisioner_config_ok 1.0" in requests.get(f"{grid.url}/metrics", timeout=30).text, 30)
    assert grid.loop_answers()
