"""A server that is too busy: it is left alone as long as it says, and everything is done in the end, once."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.kube.grid import Grid
from tests.kube.proxy import Proxy
from tests.kube.space import Space

pytestmark = pytest.mark.kube

MACHINES = 150


def bursts(proxy: Proxy, method: str) -> list[list[float]]:
    """When calls were answered with 429: those that came close together, together."""
    refused = [call.at for call in proxy.calls if call.method == method and call.status == 429]
    groups = [refused[:1]]
    for before, at in pairwise(refused):
        if at - before < 0.5:
            groups[-1].append(at)
        else:
            groups.append([at])
    return groups


def test_a_server_that_takes_40_calls_a_second_gets_every_machine_made_and_deleted_once(
    space: Space, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.most_per_second = 40
    with Grid(tmp_path / "grid", space, server=proxy.address).start() as grid:
        names = grid.complete(MACHINES)
        assert space.names() == set(names)
        made = Counter(call.status for call in proxy.creates())
        assert made[201] == MACHINES
        assert grid.ended(grid.hf.give_back(names))["status"] == "complete"
        assert space.names() == set()
    for method in ("POST", "DELETE"):
        times = bursts(proxy, method)
        assert times[0], f"no {method} was refused: nothing is proven"
        assert max(len(burst) for burst in times) <= 32
        quiet = [after[0] - before[-1] for before, after in pairwise(times)]
        assert all(seconds >= 0.95 for seconds in quiet), f"{method}: the server asked for a second, got {quiet}"
