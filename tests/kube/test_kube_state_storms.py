"""The API server of the state refuses calls and cuts watches while HostFactory works: all requests are served.

``STATE_SEED=N STATE_SECONDS=90 make test-kube TESTS=tests/kube/test_kube_state_storms.py`` plays other disturbances,
and more of them.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.kube.proxy import Proxy, Storm
from tests.kube.space import Space
from tests.kube.state_run import StateRun

SEED = int(os.environ.get("STATE_SEED", "1"))
ENOUGH = 10
"""Refusals of each sort."""
CHAOS_SECONDS = float(os.environ.get("STATE_SECONDS", "40"))

pytestmark = [pytest.mark.kube, pytest.mark.usefixtures("state_kinds"), pytest.mark.timeout(CHAOS_SECONDS + 600)]


def test_requests_are_served_while_a_fifth_of_all_calls_is_refused(space: Space, proxy: Proxy) -> None:
    with StateRun(SEED, space, proxy) as run:
        run.until_works()
        proxy.storm = Storm(SEED, 0.2)
        before = len(proxy.calls)

        def is_refused() -> bool:
            refused = Counter(call.status for call in proxy.calls[before:])
            return all(refused[status] > ENOUGH for status in (409, 429, 503))

        run.until_works(2)
        run.until(is_refused, 90, "each refusal was seen")
        proxy.storm = None
        run.finish()


def test_requests_are_served_while_each_watch_is_cut_every_second(space: Space, proxy: Proxy) -> None:
    with StateRun(SEED, space, proxy) as run:
        run.keep(proxy.cut_watches, 1.0)
        run.until_works(3)
        run.finish()
        watches = [call for call in proxy.calls if call.watches]
        seconds = watches[-1].at - watches[0].at
        assert seconds < len(watches) < 20 * seconds, "ten watches, each begun once or twice a second"


def test_the_laws_hold_whatever_happens_to_loops_and_their_server(space: Space, proxy: Proxy) -> None:
    with StateRun(SEED, space, proxy, settings={}) as run:
        run.disturb(CHAOS_SECONDS)
        run.finish()
