"""The API server in memory, compared with a real one: the same calls get the same answers."""

from __future__ import annotations

import os
import random

import pytest

from provisioner.state.kube.connection import ApiServer
from provisioner.state.kube.objects import REQUESTS
from tests.kube.space import Space
from tests.kube.state_client import client_of
from tests.support.kube_state_cases import (
    RET,
    RUNS,
    SPEC,
    STEPS,
    Step,
    delete,
    pages,
    patch,
    path_of,
    play,
    post,
    random_steps,
    status,
    watched,
)
from tests.support.kube_state_server import MemoryApiServer, ObjectServer

pytestmark = pytest.mark.kube

SEED = int(os.environ.get("KUBE_SEED", "0"))


class Both:
    """A namespace of a real server, and the server in memory."""

    def __init__(self, space: Space) -> None:
        self.real = client_of(space)()
        self.memory = MemoryApiServer(ObjectServer(space.name))

    def play(self, step: Step) -> tuple[object, object]:
        """Make the calls of a step to both servers, and return both responses."""
        return play(self.real, step), play(self.memory, step)


@pytest.fixture
def both(space: Space, state_kinds: None) -> Both:
    return Both(space)


def test_each_call_gets_the_same_answer(both: Both) -> None:
    for number, step in enumerate(STEPS):
        real, memory = both.play(step)
        assert memory == real, f"step {number}: {step}"
        assert real.summary == step.expected, f"step {number}: {step}"  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", [SEED] if SEED else range(1, 9))
def test_calls_by_chance_get_the_same_answers(both: Both, seed: int) -> None:
    for number, step in enumerate(random_steps(seed, 150)):
        real, memory = both.play(step)
        assert memory == real, f"KUBE_SEED={seed}, step {number}: {step}"


def test_a_list_comes_in_the_same_pages(both: Both) -> None:
    for name in "abcde":
        both.play(post(f"{REQUESTS}/{10 * name}", SPEC, ""))
    assert list(pages(both.memory, REQUESTS)) == list(pages(both.real, REQUESTS))


@pytest.mark.parametrize(
    "chosen", ["", "&fieldSelector=status.phase%3DRunning", "&fieldSelector=metadata.name%3Dr000000002"]
)
def test_a_watch_gets_the_same_events(both: Both, chosen: str) -> None:
    begun = [version_of(both.real), version_of(both.memory)]
    chance = random.Random(chosen)
    for number in range(60):
        path = f"{REQUESTS}/r{chance.randrange(4):09d}"
        made = post(path, SPEC, "")
        steps = [
            made,
            made,
            delete(path),
            patch(path, {"metadata": {"labels": {"a": str(number % 3)}}}),
            patch(path, {}),
        ]
        both.play(chance.choice([*steps, status(path, RUNS), status(path, {**RUNS, "phase": "Waiting"})]))
    both.play(post(RET, SPEC, ""))
    for name in ("r000000009", "r000000002"):  # the last events of each watch
        both.play(delete(f"{REQUESTS}/r000000002"))
        both.play(post(f"{REQUESTS}/{name}", SPEC, ""))
        both.play(status(f"{REQUESTS}/{name}", RUNS))
    path = f"{REQUESTS}?watch=true&allowWatchBookmarks=true&timeoutSeconds=2"
    for after in (begun, ["0", "0"]):
        real, memory = (
            watched(server, f"{path}{chosen}&resourceVersion={version}", 1000)
            for server, version in zip((both.real, both.memory), after, strict=True)
        )
        assert memory == real
        assert real


def version_of(server: ApiServer) -> str:
    return str(server.call("GET", path_of(server.namespace, REQUESTS)).document["metadata"]["resourceVersion"])
