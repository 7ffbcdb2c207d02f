"""What HF was told of an end stays, byte for byte, where script and loop meet in the middle, or files are lost."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from provisioner.model import BrakeReason
from provisioner.planning.answers import RETURNED_EARLY
from provisioner.planning.cancellation import CANCELLED_MESSAGE
from provisioner.state.terminal_answers import Told
from tests.support.cycle_bench import LIMITS, Bench, hf_calls
from tests.support.hostfactory.in_process import Here, asking, entry


class Site:
    """A loop driven by hand, and HF's scripts on the same files; HF has asked for two machines, which run."""

    def __init__(self, hf: Here, bench: Bench | None = None) -> None:
        self.hf = hf
        self.bench = bench or Bench(hf.work)
        self.id = self.bench.request(2)
        self.bench.cycle(2)
        self.bench.place.place.boot()
        self.bench.cycle(2)
        self.machines = sorted(self.bench.place.machines)
        """The machines of all requests."""

    def poll(self) -> str:
        """The bytes that HF is told."""
        code, out = self.hf.ask("getRequestStatus", json.dumps(asking(self.id)))
        assert code == 0, out
        return out

    def told(self) -> dict[str, Any]:
        """What HF is told, parsed."""
        answer: dict[str, Any] = json.loads(self.poll())["requests"][0]
        return answer

    def results(self) -> list[str]:
        return [machine["result"] for machine in self.told()["machines"]]

    def lives(self) -> list[str]:
        """The machines that are still there after a while."""
        self.bench.cycle(5)
        return sorted(self.bench.place.machines)

    def nearly_forgotten(self) -> None:
        """HF calls for other things; soon the request will be cancelled."""
        hf_calls(self.bench, LIMITS.cancel_after - 120)

    @contextmanager
    def slow_disk(self, act: Callable[[], object], nth: int = 1) -> Iterator[None]:
        """The nth plan that has to be recorded waits for the disk; meanwhile something happens."""
        with _once(self.bench.state.memory, "write", act, nth):
            yield

    @contextmanager
    def before_the_claim(self, act: Callable[[], object]) -> Iterator[None]:
        """Something happens when the loop has planned to say something else, and not yet settled it."""
        with _once(self.bench.state.told, "claim", act):
            yield


@contextmanager
def _once(target: object, method: str, act: Callable[[], object], nth: int = 1) -> Iterator[None]:
    """Before the nth call of a method something happens, once."""
    whole, calls = getattr(target, method), itertools.count(1)

    def late(*arguments: object) -> object:
        if next(calls) == nth:
            act()
        return whole(*arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(target, method, late)
        yield
    assert next(calls) > nth, f"there were not {nth} calls of {method}"


@pytest.fixture
def hf(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Here:
    return Here(tmp_path, capfd)


@pytest.fixture
def site(hf: Here) -> Site:
    return Site(hf)


# --- a cancel ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nth", "status"),
    [(1, "complete"), (2, "complete_with_error")],
    ids=["which is announced", "which is carried out"],
)
def test_a_poll_beside_a_slow_disk_and_a_cancel(site: Site, nth: int, status: str) -> None:
    told: list[str] = []
    site.nearly_forgotten()
    with site.slow_disk(lambda: told.append(site.poll()), nth):
        hf_calls(site.bench, 300)
    assert json.loads(told[0])["requests"][0]["status"] == status
    assert site.lives() == (site.machines if status == "complete" else [])
    assert site.poll() == told[0]
    assert json.loads(site.bench.answer(site.id))["status"] == status, "nor is it published for ever that it cancels"


def test_a_poll_between_the_halves_of_a_cancel_is_told_its_end_later(site: Site) -> None:
    told: list[str] = []
    site.nearly_forgotten()
    with site.before_the_claim(lambda: told.append(site.poll())):
        hf_calls(site.bench, 300)
    assert json.loads(told[0])["requests"][0]["status"] == "running"
    assert site.told()["message"] == CANCELLED_MESSAGE
    assert site.lives() == []


def test_of_a_cancelled_request_no_machine_is_told_to_succeed_not_even_a_lost_one(site: Site) -> None:
    site.bench.place.lose(site.machines[0])
    site.bench.cycle(3)
    hf_calls(site.bench, LIMITS.cancel_after + 300)
    assert (site.told()["status"], site.told()["message"]) == ("complete_with_error", CANCELLED_MESSAGE)
    assert site.results() == ["fail", "fail"]
    assert site.lives() == []


# --- a return before the terminal answer was heard --------------------------------------------------------------------


def test_a_machine_given_back_before_the_end_was_heard_is_told_as_failed(site: Site) -> None:
    site.bench.give_back(site.machines[0])
    assert site.lives() == site.machines[1:]
    assert (site.told()["status"], site.results()) == ("complete_with_error", ["fail", "succeed"])
    assert site.told()["machines"][0]["message"] == RETURNED_EARLY


@pytest.mark.parametrize("place", ["slow_disk", "before_the_claim"])
def test_a_poll_while_a_return_is_taken_in_is_told_what_every_later_one_is(site: Site, place: str) -> None:
    told: list[str] = []
    site.bench.give_back(site.machines[0])
    with getattr(site, place)(lambda: told.append(site.poll())):
        site.bench.cycle()
    assert site.lives() == site.machines[1:], "what HF gave back goes, whatever it was told"
    assert site.poll() == told[0]
    expected = ["succeed", "succeed"] if place == "before_the_claim" else ["fail", "succeed"]
    assert site.results() == expected, "who settled first has decided"
    site.bench.restarted()
    site.bench.cycle(3)
    assert site.poll() == told[0]


def test_a_script_that_is_slow_says_what_the_loop_has_settled_meanwhile(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = Told.tell

    def slow(told: Told, id_: str, text: str) -> str:
        assert "succeed" in text, "that is what it has read"
        site.bench.give_back(*site.machines)
        site.bench.cycle(2)
        return tell(told, id_, text)

    with monkeypatch.context() as patched:
        patched.setattr(Told, "tell", slow)
        assert site.results() == ["fail", "fail"]
    assert site.results() == ["fail", "fail"]
    assert site.lives() == []


class Death(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("cancelled", [False, True], ids=["a return", "a cancel"])
def test_what_was_settled_when_the_loop_died_is_what_the_next_loop_knows(site: Site, cancelled: bool) -> None:
    def dies() -> None:
        raise Death

    if cancelled:
        site.nearly_forgotten()
    else:
        site.bench.give_back(site.machines[0])
    seconds, nth = (300, 2) if cancelled else (60, 1)
    with site.slow_disk(dies, nth), pytest.raises(Death):
        hf_calls(site.bench, seconds)
    told = site.poll()
    site.bench.restarted()
    assert site.lives() == ([] if cancelled else site.machines[1:])
    assert site.poll() == told
    assert json.loads(site.bench.answer(site.id)) == site.told()


# --- files that are lost ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["deleted", "cut", "old copy", "intent too"])
def test_an_end_that_was_told_is_told_again_while_no_loop_runs(site: Site, damage: str) -> None:
    status, intent = Path(site.bench.state.status.path), Path(site.bench.state.intent.path)
    other = site.bench.request(1)
    told = site.poll()
    if damage == "cut":
        status.write_bytes(status.read_bytes()[:40])
    elif damage == "old copy":
        site.bench.state.status.write({}, {})
    else:
        status.unlink()
        if damage == "intent too":
            intent.unlink()
    assert site.poll() == told
    if damage == "deleted":
        [running] = site.hf.answer("getRequestStatus", asking(other))["requests"]
        assert running["status"] == "running"


@pytest.mark.parametrize("file", ["memory", "status"])
@pytest.mark.parametrize("damage", ["deleted", "cut", "old copy"])
def test_a_file_that_is_damaged_under_the_loop_is_written_again_at_once(site: Site, file: str, damage: str) -> None:
    store = getattr(site.bench.state, file)
    path = Path(store.path)
    old = path.read_bytes()
    site.bench.request(1)
    site.bench.cycle(3)
    generation = store.known_generation() if file == "memory" else 0
    if damage == "deleted":
        path.unlink()
    else:
        path.write_bytes(old[:50] if damage == "cut" else old)
    site.bench.cycle()
    assert store.signature() is not None
    if file == "memory":
        assert store.known_generation() > generation
        assert len(store.read().requests) == 2
    else:
        assert len(store.read_all()) == 2


@pytest.mark.parametrize("cut", [False, True], ids=["status.json is lost as well", "status.json is cut"])
def test_a_memory_made_again_goes_by_what_hf_was_told(site: Site, cut: bool) -> None:
    told, status = site.poll(), Path(site.bench.state.status.path)
    site.bench.place.lose(site.machines[0])
    Path(site.bench.state.memory.path).unlink()
    status.write_bytes(status.read_bytes()[:50]) if cut else status.unlink()
    site.bench.restarted()
    assert site.lives() == site.machines[1:]
    assert site.poll() == told
    assert json.loads(site.bench.answer(site.id)) == site.told(), "also the address of a machine that is gone"
    assert list(site.bench.state.status.read_lost()) == site.machines[:1]
    assert len(site.bench.place.created) == 2


def test_a_memory_without_lock_file_that_does_not_know_an_end_is_made_again(hf: Here) -> None:
    bench = Bench(hf.work)
    bench.request(1)
    bench.cycle()
    old = Path(bench.state.memory.path).read_bytes()
    site = Site(hf, bench)
    told = site.poll()
    Path(bench.state.memory.path).write_bytes(old)
    Path(bench.state.memory.lock_path).unlink()
    bench.restarted()
    created = len(bench.place.created)
    assert site.lives() == site.machines
    assert site.poll() == told
    assert len(bench.place.created) == created, "it does not make again what HF has"
    brake = bench.state.memory.read().brake
    assert brake is not None
    assert brake.reason is BrakeReason.MEMORY_OLDER


def test_an_end_that_hf_was_told_from_an_old_copy_is_one_for_the_running_loop_too(site: Site) -> None:
    late = site.bench.request(2)
    site.bench.cycle(2)
    first, second = sorted(site.bench.place.machines.keys() - set(site.machines))
    machine = {"machineId": first, "name": first, "result": "succeed", "status": "running", "message": ""}
    machine |= {"privateIpAddress": "10.0.0.9", "publicIpAddress": "", "launchtime": 7}
    text = entry(late, "complete_with_error", machines=[machine])
    site.bench.state.told.tell(late, text)
    site.bench.place.place.boot()
    assert {first, second} <= set(site.lives()), "what nobody asked for any more waits for a person"
    record = site.bench.state.memory.read().requests[late]
    assert (str(record.ended), [slot.name for slot in record.slots.values()]) == ("complete_with_error", [first])
    assert json.loads(site.bench.answer(late)) == json.loads(text)


def test_an_id_that_an_old_intent_lacks_is_not_called_unknown(site: Site) -> None:
    path = Path(site.bench.state.intent.path)
    old = path.read_bytes()
    late = site.bench.request(1)
    path.write_bytes(old)
    assert "is older than" in site.hf.refusal("getRequestStatus", asking(late))


# --- a first call that is a return ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["someone-elses-host", "hf-zzzzzzzzzz-000007"])
def test_a_return_as_the_first_call_of_all_is_no_sign_of_a_lost_memory(tmp_path: Path, name: str) -> None:
    bench = Bench(tmp_path)
    bench.cycle(2)
    bench.state.intent.create("demo")
    back = bench.give_back(name)
    bench.cycle(4)
    assert bench.state.memory.read().brake is None
    assert json.loads(bench.answer(back))["status"] == "complete"


def test_a_return_of_what_only_a_lost_memory_can_have_made_is_one(site: Site) -> None:
    site.bench.give_back(site.machines[0])
    for path in (site.bench.state.memory.path, site.bench.state.memory.lock_path, site.bench.state.status.path):
        Path(path).unlink()
    site.bench.restarted()
    site.bench.cycle(3)
    assert site.bench.state.memory.read().brake is not None
