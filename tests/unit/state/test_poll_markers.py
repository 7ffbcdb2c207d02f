"""Traces of HF's calls: polls, terminal answers, hosts, maxNumbers."""

from __future__ import annotations

import errno
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from provisioner.hostfactory import Answer
from provisioner.model import BrakeReason
from provisioner.planning.core.slots import CANCELLED_MESSAGE
from provisioner.planning.report.answers import RETURNED_EARLY
from provisioner.state import atomic
from provisioner.state.errors import StateDenied, StateError, StateMissing, StateUnreadable, StateUnwritable
from provisioner.state.poll_markers import Inventory, ReportedAnswers, Seen
from provisioner.state.status_file import StatusStore
from tests.support.cycle_bench import LIMITS, Bench, hf_calls
from tests.support.hostfactory.in_process import Here, asking, entry
from tests.support.stores import failing
from tests.support.waiting import PATIENCE


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    return Seen(str(tmp_path / "seen"))


def test_a_poll_leaves_a_mark_and_the_next_one_a_later_one(seen: Seen) -> None:
    first = seen.touch("abc")
    os.utime(os.path.join(seen.path, "abc"), ns=(1, 1))
    Path(seen.path, ".nfs000123").touch()
    assert seen.marks() == {"abc": 1}, "what is no id is no mark"
    assert seen.touch("abc") >= first
    assert seen.marks()["abc"] >= first


def test_forgetting_removes_marks_and_skips_what_is_gone(seen: Seen, tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    seen.touch("abc")
    seen.touch("kept")
    ReportedAnswers(seen.path).forget(["abc", "never", "../precious"])
    assert set(seen.marks()) == {"kept"}
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize("request_id", ["", "..", "../intent.json", "a.new", "ä", "a" * 65, "a\n", "a\0"])
def test_an_id_that_could_lead_elsewhere_is_refused(seen: Seen, tmp_path: Path, request_id: str) -> None:
    reported = ReportedAnswers(seen.path)
    settles = (
        reported.settled,
        reported.assume_reported,
        lambda id_: reported.settle_reported(id_, "{}"),
        lambda id_: reported.settle_revised(id_, "{}"),
    )
    for note in (seen.touch, *settles):
        with pytest.raises(StateError, match="is no request id"):
            note(request_id)
    assert list(tmp_path.iterdir()) == []


def test_marks_are_made_only_in_a_state_directory(tmp_path: Path) -> None:
    with pytest.raises(StateMissing, match="does not exist"):
        Seen(str(tmp_path / "wrok" / "seen")).touch("abc")
    assert list(tmp_path.iterdir()) == []


def test_refused_marks_are_reported(seen: Seen, monkeypatch) -> None:
    seen.touch("abc")
    listed = os.listdir
    monkeypatch.setattr("provisioner.state.marker_files.os.utime", failing(os.utime, errno.EROFS))
    with pytest.raises(StateUnwritable, match="abc: cannot be written: Read-only"):
        seen.touch("abc")
    monkeypatch.setattr("provisioner.state.marker_files.os.listdir", failing(os.listdir, errno.EACCES))
    with pytest.raises(StateDenied, match="seen: cannot be read: Permission denied"):
        seen.marks()
    monkeypatch.setattr("provisioner.state.marker_files.os.listdir", listed)
    monkeypatch.setattr("provisioner.state.atomic.os.unlink", failing(os.unlink, errno.EACCES))
    with pytest.raises(StateUnwritable, match="abc"):
        ReportedAnswers(seen.path).forget(["abc"])


def test_the_last_inventory_wins_and_the_same_list_again_is_noted_as_a_new_one(tmp_path: Path) -> None:
    inventory = Inventory(str(tmp_path / "hf-inventory.json"))
    inventory.write(["c"])
    inventory.write(iter(["a", "b"]))
    assert inventory.read() == (("a", "b"), os.stat(inventory.path).st_mtime_ns)
    os.utime(inventory.path, ns=(1, 1))
    inventory.note({"a": None, "b": None})
    names, mark = inventory.read() or ((), 0)
    assert (names, mark > 1) == (("a", "b"), True)


@pytest.mark.parametrize("content", ["", "[]", '{"names": "a"}', '{"names": [1]}'])
def test_a_damaged_inventory_is_not_an_empty_one(tmp_path: Path, content: str) -> None:
    (tmp_path / "i.json").write_text(content)
    with pytest.raises(StateUnreadable, match=r"i\.json: .*HF's next getReturnRequests writes it again"):
        Inventory(str(tmp_path / "i.json")).read()


ONE, OTHER = '{"requestId":"a","status":"complete"}', '{"requestId":"a","status":"complete_with_error"}'


class Death(BaseException):
    """The end of the process."""


@pytest.fixture
def reported(tmp_path: Path) -> ReportedAnswers:
    return ReportedAnswers(str(tmp_path / "seen"))


def files(reported: ReportedAnswers) -> list[str]:
    return sorted(os.listdir(reported.path))


def settled(reported: ReportedAnswers) -> str | None:
    """Return the settled text of request a."""
    answer = reported.settled("a")
    assert answer is None or answer.ended
    return answer and answer.text


def test_the_answer_that_was_reported_first_is_reported_by_every_later_call(reported: ReportedAnswers) -> None:
    assert (settled(reported), reported.ids(), reported.answers()) == (None, frozenset(), {})
    assert reported.settle_reported("a", ONE) == ONE
    assert reported.settle_reported("a", OTHER) == ONE
    assert [reported.settle_revised("a", text) for text in (OTHER, ONE)] == [False, False]
    assert (settled(reported), reported.ids(), reported.answers()) == (ONE, {"a"}, {"a": reported.settled("a")})
    assert files(reported) == ["a.answer-0"]


@pytest.mark.parametrize("text", ["", "reported\nx", "ä\udcff", "x" * 100_000])
def test_an_answer_is_kept_byte_for_byte(reported: ReportedAnswers, text: str) -> None:
    reported.settle_reported("a", text)
    assert reported.settle_reported("a", OTHER) == text


def test_an_answer_that_the_loop_claimed_is_superseded_until_a_script_reports_it(reported: ReportedAnswers) -> None:
    assert reported.settle_revised("a", ONE)
    assert reported.settle_revised("a", ONE)
    assert files(reported) == ["a.answer-0"], "the same claim again is no other"
    assert reported.settle_revised("a", OTHER)
    assert (settled(reported), reported.ids()) == (OTHER, frozenset()), "HF has no answer yet"
    assert reported.settle_reported("a", ONE) == OTHER
    assert reported.ids() == {"a"}
    assert reported.settle_revised("a", ONE) is False


def test_an_id_that_is_assumed_to_be_answered_gets_the_answer_published_then(reported: ReportedAnswers) -> None:
    reported.assume_reported("a")
    reported.assume_reported("a")
    assert (reported.ids(), settled(reported), reported.answers()) == ({"a"}, None, {})
    assert reported.settle_revised("a", OTHER) is False
    assert reported.settle_reported("a", ONE) == ONE
    assert reported.settle_reported("a", OTHER) == ONE


def test_forgetting_removes_all_of_an_id_with_the_mark_of_its_polls(reported: ReportedAnswers) -> None:
    reported.settle_revised("a", ONE)
    reported.settle_reported("a", ONE)
    reported.settle_reported("ab", ONE)
    assert reported.ids() == {"a", "ab"}
    for name in ("a.answer-2.17-abcd.new", "a"):
        Path(reported.path, name).touch()
    reported.forget(["a", "never", "../seen"])
    assert (files(reported), reported.ids()) == (["ab.answer-0"], {"ab"})


def test_an_interrupted_forgetting_leaves_what_once_stood_there(
    reported: ReportedAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported.settle_revised("a", ONE)
    reported.settle_revised("a", OTHER)
    real, doomed = os.unlink, itertools.count()
    monkeypatch.setattr(os, "unlink", lambda path: (failing(real, errno.EIO) if next(doomed) else real)(path))
    with pytest.raises(StateUnwritable):
        reported.forget(["a"])
    assert settled(reported) == ONE


@pytest.mark.parametrize("step", ["os.fsync", "os.link", "os.fchmod"])
def test_a_writer_that_dies_has_settled_nothing(
    reported: ReportedAnswers, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def ends(*_: object, **__: object) -> None:
        raise Death

    with monkeypatch.context() as patched:
        patched.setattr(step, ends)
        patched.setattr(atomic, "discard", lambda path: True)
        with pytest.raises(Death):
            reported.settle_reported("a", ONE)
    assert (settled(reported), reported.ids()) == (None, frozenset())
    assert reported.settle_reported("a", OTHER) == OTHER


def test_a_full_disk_settles_nothing_and_leaves_nothing(
    reported: ReportedAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "write_all", failing(atomic.write_all, errno.ENOSPC))
    with pytest.raises(StateUnwritable, match="No space left"):
        reported.settle_reported("a", ONE)
    assert files(reported) == []


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("call", ["lstat", "open"])
def test_an_entry_that_is_stale_once_is_read_again(reported: ReportedAnswers, monkeypatch, call: str) -> None:
    reported.settle_reported("a", ONE)
    monkeypatch.setattr(os, call, failing(getattr(os, call), errno.ESTALE))
    assert settled(reported) == ONE
    assert reported.settle_reported("a", OTHER) == ONE


@pytest.mark.parametrize("content", [b"", b"{}\n"])
def test_an_entry_that_is_none_is_named_and_nothing_is_said(reported: ReportedAnswers, content: bytes) -> None:
    reported.settle_reported("a", ONE)
    Path(reported.path, "a.answer-0").write_bytes(content)
    for ask in (
        lambda: reported.settled("a"),
        lambda: reported.settle_reported("a", OTHER),
        lambda: reported.settle_revised("a", OTHER),
    ):
        with pytest.raises(StateUnreadable, match=r"a\.answer-0: begins with"):
            ask()


def test_of_many_at_once_one_decides_for_all(reported: ReportedAnswers) -> None:
    """Let four scripts report one answer while a loop replaces it by another. All five must get the same answer."""
    start = threading.Barrier(5)

    def act(id_: str, number: int) -> str:
        start.wait(60 * PATIENCE)
        if number:
            return reported.settle_reported(id_, ONE)
        return OTHER if reported.settle_revised(id_, OTHER) else ONE

    with ThreadPoolExecutor(5) as pool:
        for turn in range(10):
            assert len(set(pool.map(act, [f"r{turn}"] * 5, range(5)))) == 1
    assert all(".new" not in name for name in files(reported))


# --- scripts and a loop on the same files -----------------------------------------------------------------------------


class Site:
    """A loop driven by hand, and HF's scripts on the same files. HF has asked for two machines, which run."""

    def __init__(self, hf: Here, bench: Bench | None = None) -> None:
        self.hf = hf
        self.bench = bench or Bench(hf.work)
        self.id = self.bench.request(2)
        self.bench.cycle(2)
        self.bench.place.place.boot()
        self.bench.cycle(2)
        self.machines = sorted(self.bench.place.machines)
        """Machines of all requests."""

    def poll(self) -> str:
        """Return the bytes that HF gets."""
        code, out = self.hf.ask("getRequestStatus", json.dumps(asking(self.id)))
        assert code == 0, out
        return out

    def reported(self) -> dict[str, Any]:
        """Return the answer that HF gets, parsed."""
        answer: dict[str, Any] = json.loads(self.poll())["requests"][0]
        return answer

    def results(self) -> list[str]:
        return [machine["result"] for machine in self.reported()["machines"]]

    def lives(self) -> list[str]:
        """Return the machines that are still there after five cycles."""
        self.bench.cycle(5)
        return sorted(self.bench.place.machines)

    def nearly_forgotten(self) -> None:
        """Let HF list other hosts, and poll no request, until this request is about to be cancelled."""
        hf_calls(self.bench, LIMITS.cancel_after_seconds - 120)

    @contextmanager
    def slow_disk(self, act: Callable[[], object], nth: int = 1) -> Iterator[None]:
        """Call ``act`` just before the nth write of memory, as if the disk were slow."""
        with _once(self.bench.state.memory, "write", act, nth):
            yield

    @contextmanager
    def before_the_claim(self, act: Callable[[], object]) -> Iterator[None]:
        """Call ``act`` after the loop has planned another answer, and before the loop settles this answer."""
        with _once(self.bench.state.terminal_answers, "settle_revised", act):
            yield


@contextmanager
def _once(target: object, method: str, act: Callable[[], object], nth: int = 1) -> Iterator[None]:
    """Call ``act`` once, before the nth call of a method."""
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
    reported: list[str] = []
    site.nearly_forgotten()
    with site.slow_disk(lambda: reported.append(site.poll()), nth):
        hf_calls(site.bench, 300)
    assert json.loads(reported[0])["requests"][0]["status"] == status
    assert site.lives() == (site.machines if status == "complete" else [])
    assert site.poll() == reported[0]
    assert json.loads(site.bench.answer(site.id))["status"] == status, "the announced cancel does not stay published"


def test_a_poll_between_the_halves_of_a_cancel_gets_its_end_later(site: Site) -> None:
    reported: list[str] = []
    site.nearly_forgotten()
    with site.before_the_claim(lambda: reported.append(site.poll())):
        hf_calls(site.bench, 300)
    assert json.loads(reported[0])["requests"][0]["status"] == "running"
    assert site.reported()["message"] == CANCELLED_MESSAGE
    assert site.lives() == []


def half(site: Site) -> None:
    """Run one half of a cancel: cycles until the published answer changes. The first half announces the cancel, the
    second carries it out."""
    before = site.bench.answer(site.id)
    for _ in range(5):
        hf_calls(site.bench, 60)
        if site.bench.answer(site.id) != before:
            return


@pytest.mark.parametrize(
    ("polled_before", "nth", "before", "during"),
    [
        pytest.param(False, 1, 0, 1, id="first poll, before its mark, when the cancel is announced"),
        pytest.param(False, 1, 1, 1, id="first poll, before its mark, when the cancel is carried out"),
        pytest.param(False, 1, 0, 2, id="first poll, before its mark, beside both"),
        pytest.param(False, 2, 0, 2, id="first poll, after its mark"),
        pytest.param(True, 1, 0, 2, id="later poll, after its mark"),
    ],
)
def test_machines_that_a_cancel_under_way_deletes_are_never_reported_to_hf(
    site: Site, monkeypatch: pytest.MonkeyPatch, polled_before: bool, nth: int, before: int, during: int
) -> None:
    """Run a cancel beside a poll, which stops after its ``nth`` read of the published answers.

    A cancel has two halves (see ``half``). ``before``: the number of halves that run before the poll. ``during``: the
    number of halves that run while the poll is stopped.
    """
    if polled_before:
        site.bench.state.seen.touch(site.id)
        site.bench.cycle()
    site.nearly_forgotten()
    for _ in range(before):
        half(site)
    read, observations = StatusStore.read_answers, itertools.count(1)

    def slow(store: StatusStore, ids: Iterable[str]) -> dict[str, Answer]:
        answers = read(store, ids)
        for _ in range(during if next(observations) == nth else 0):
            half(site)
        return answers

    with monkeypatch.context() as patched:
        patched.setattr(StatusStore, "read_answers", slow)
        reported = site.reported()
    hf_calls(site.bench, 300)
    is_marked = polled_before or nth == 2
    lives = site.lives() == site.machines
    assert lives is (is_marked or before + during < 2), "a poll is unnoticed only before its mark"
    succeeded = [machine for machine in reported["machines"] if machine["result"] == "succeed"]
    assert (reported["status"] == "complete_with_error" and not succeeded) is not lives, reported


def test_no_machine_of_a_cancelled_request_is_reported_to_succeed_not_even_a_lost_one(site: Site) -> None:
    site.bench.place.lose(site.machines[0])
    site.bench.cycle(3)
    hf_calls(site.bench, LIMITS.cancel_after_seconds + 300)
    assert (site.reported()["status"], site.reported()["message"]) == ("complete_with_error", CANCELLED_MESSAGE)
    assert site.results() == ["fail", "fail"]
    assert site.lives() == []


# --- a return before the terminal answer was polled -------------------------------------------------------------------


def test_a_machine_returned_before_the_end_was_polled_is_reported_as_failed(site: Site) -> None:
    site.bench.return_machines(site.machines[0])
    assert site.lives() == site.machines[1:]
    assert (site.reported()["status"], site.results()) == ("complete_with_error", ["fail", "succeed"])
    assert site.reported()["machines"][0]["message"] == RETURNED_EARLY


@pytest.mark.parametrize("place", ["slow_disk", "before_the_claim"])
def test_a_poll_while_a_return_is_ingested_gets_the_answer_of_every_later_poll(site: Site, place: str) -> None:
    reported: list[str] = []
    site.bench.return_machines(site.machines[0])
    with getattr(site, place)(lambda: reported.append(site.poll())):
        site.bench.cycle()
    assert site.lives() == site.machines[1:], "a machine that HF returned is deleted, whatever HF was answered"
    assert site.poll() == reported[0]
    expected = ["succeed", "succeed"] if place == "before_the_claim" else ["fail", "succeed"]
    assert site.results() == expected, "the first to settle decides"
    site.bench.restarted()
    site.bench.cycle(3)
    assert site.poll() == reported[0]


def test_a_script_that_is_slow_says_what_the_loop_has_settled_meanwhile(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = ReportedAnswers.settle_reported

    def slow(reported: ReportedAnswers, id_: str, text: str) -> str:
        assert "succeed" in text, "that is what it has read"
        site.bench.return_machines(*site.machines)
        site.bench.cycle(2)
        return tell(reported, id_, text)

    with monkeypatch.context() as patched:
        patched.setattr(ReportedAnswers, "settle_reported", slow)
        assert site.results() == ["fail", "fail"]
    assert site.results() == ["fail", "fail"]
    assert site.lives() == []


@pytest.mark.parametrize("cancelled", [False, True], ids=["a return", "a cancel"])
def test_what_was_settled_when_the_loop_died_is_what_the_next_loop_knows(site: Site, cancelled: bool) -> None:
    def dies() -> None:
        raise Death

    if cancelled:
        site.nearly_forgotten()
    else:
        site.bench.return_machines(site.machines[0])
    seconds, nth = (300, 2) if cancelled else (60, 1)
    with site.slow_disk(dies, nth), pytest.raises(Death):
        hf_calls(site.bench, seconds)
    reported = site.poll()
    site.bench.restarted()
    assert site.lives() == ([] if cancelled else site.machines[1:])
    assert site.poll() == reported
    assert json.loads(site.bench.answer(site.id)) == site.reported()


# --- files that are lost ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["deleted", "cut", "old copy", "intent too"])
def test_an_end_that_was_reported_is_reported_again_while_no_loop_runs(site: Site, damage: str) -> None:
    status, intent = Path(site.bench.state.status.path), Path(site.bench.state.intent.path)
    other = site.bench.request(1)
    reported = site.poll()
    if damage == "cut":
        status.write_bytes(status.read_bytes()[:40])
    elif damage == "old copy":
        site.bench.state.status.write({}, {})
    else:
        status.unlink()
        if damage == "intent too":
            intent.unlink()
    assert site.poll() == reported
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
def test_a_memory_made_again_follows_the_answers_that_hf_was_given(site: Site, cut: bool) -> None:
    reported, status = site.poll(), Path(site.bench.state.status.path)
    site.bench.place.lose(site.machines[0])
    Path(site.bench.state.memory.path).unlink()
    status.write_bytes(status.read_bytes()[:50]) if cut else status.unlink()
    site.bench.restarted()
    assert site.lives() == site.machines[1:]
    assert site.poll() == reported
    assert json.loads(site.bench.answer(site.id)) == site.reported(), "also the address of a machine that is gone"
    assert list(site.bench.state.status.read_lost()) == site.machines[:1]
    assert len(site.bench.place.created) == 2


def test_a_memory_without_lock_file_that_does_not_know_an_end_is_made_again(hf: Here) -> None:
    bench = Bench(hf.work)
    bench.request(1)
    bench.cycle()
    old = Path(bench.state.memory.path).read_bytes()
    site = Site(hf, bench)
    reported = site.poll()
    Path(bench.state.memory.path).write_bytes(old)
    Path(bench.state.memory.lock_path).unlink()
    bench.restarted()
    created = len(bench.place.created)
    assert site.lives() == site.machines
    assert site.poll() == reported
    assert len(bench.place.created) == created, "it does not make again what HF has"
    brake = bench.state.memory.read().brake
    assert brake is not None
    assert brake.reason is BrakeReason.MEMORY_OLDER


def test_an_end_that_hf_was_given_from_an_old_copy_is_an_end_for_the_running_loop_too(site: Site) -> None:
    late = site.bench.request(2)
    site.bench.cycle(2)
    first, second = sorted(site.bench.place.machines.keys() - set(site.machines))
    machine = {"machineId": first, "name": first, "result": "succeed", "status": "running", "message": ""}
    machine |= {"privateIpAddress": "10.0.0.9", "publicIpAddress": "", "launchtime": 7}
    text = entry(late, "complete_with_error", machines=[machine])
    site.bench.state.terminal_answers.settle_reported(late, text)
    site.bench.place.place.boot()
    assert {first, second} <= set(site.lives()), "a machine that no request wants waits for an operator"
    record = site.bench.state.memory.read().requests[late]
    assert (str(record.ended), [slot.name for slot in record.slots.values()]) == ("complete_with_error", [first])
    assert json.loads(site.bench.answer(late)) == json.loads(text)


def test_an_id_that_an_old_intent_lacks_is_not_called_unknown(site: Site) -> None:
    path = Path(site.bench.state.intent.path)
    old = path.read_bytes()
    late = site.bench.request(1)
    path.write_bytes(old)
    assert "is older than" in site.hf.refusal("getRequestStatus", asking(late))


@pytest.mark.parametrize("name", ["someone-elses-host", "hf-zzzzzzzzzz-000007"])
def test_a_return_as_the_first_call_of_all_is_no_sign_of_a_lost_memory(tmp_path: Path, name: str) -> None:
    bench = Bench(tmp_path)
    bench.cycle(2)
    bench.state.intent.create("demo")
    return_id = bench.return_machines(name)
    bench.cycle(4)
    assert bench.state.memory.read().brake is None
    assert json.loads(bench.answer(return_id))["status"] == "complete"


def test_a_return_of_what_only_a_lost_memory_can_have_made_is_one(site: Site) -> None:
    site.bench.return_machines(site.machines[0])
    for path in (site.bench.state.memory.path, site.bench.state.memory.lock_path, site.bench.state.status.path):
        Path(path).unlink()
    site.bench.restarted()
    site.bench.cycle(3)
    assert site.bench.state.memory.read().brake is not None
