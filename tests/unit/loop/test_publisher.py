"""Tests of the publisher: when it writes status.json, and which news it reports once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.hostfactory import Loss
from provisioner.loop.publisher import Publisher, Reported
from provisioner.model import (
    NO_HOLDS,
    HfActivity,
    Hold,
    HoldKind,
    Holds,
    LossCause,
    Memory,
    Notice,
    RequestRecord,
    RequestStatus,
    Verdict,
)
from provisioner.planning.core.holds import DRAINED
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateError
from provisioner.state.status_file import StatusStore
from tests.unit.core import NOW, giving_back, limits, memory, name, record, running, slot

LIMITS = limits()
ACTIVITY = HfActivity()
ENDED = record(running(0, Verdict.SUCCEEDED), ended=RequestStatus.COMPLETE)
LOST = record(running(0, Verdict.LOST, cause=LossCause.NODE), ended=RequestStatus.COMPLETE)


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path)


@pytest.fixture
def publisher(state: StateDir) -> Publisher:
    return Publisher(state, lambda: None)


def published(publisher: Publisher, current: Memory, now: float = NOW) -> list[Reported]:
    publisher.publish(current, LIMITS, NO_HOLDS, ACTIVITY, now)
    return publisher.pop_news()


def test_only_answers_of_changed_records_are_reported(publisher: Publisher) -> None:
    first, back = record(slot(0)), giving_back(name(0))
    assert published(publisher, memory()) == [Reported((), {})]
    assert published(publisher, memory(first, back)) == [Reported(((None, first), (None, back)), {})]
    assert published(publisher, memory(first, back)) == [], "the same answers"
    changed = record(running(0))
    assert published(publisher, memory(changed, back)) == [Reported(((first, changed),), {})]


def test_a_loss_is_reported_once(publisher: Publisher) -> None:
    lost = memory(LOST)
    published(publisher, memory(ENDED))
    (reported,) = published(publisher, lost)
    assert reported.lost == {name(0): Loss(0, LossCause.NODE)}
    assert published(publisher, lost) == []


@pytest.mark.parametrize(
    ("news", "lost"), [(ENDED, {}), (LOST, {name(0): Loss(0, LossCause.NODE)})], ids=["answer", "loss"]
)
def test_news_are_reported_once_although_the_published_file_cannot_be_checked(
    publisher: Publisher, state: StateDir, monkeypatch: pytest.MonkeyPatch, news: RequestRecord, lost: dict[str, Loss]
) -> None:
    before = record(running(0))
    published(publisher, memory(before))
    readable = iter([True, False, True, False, True, True, True])  # before and after each of three writes, and then

    def signature() -> object:
        if not next(readable):
            raise StateError("stale file handle")
        return StatusStore.signature(state.status)

    monkeypatch.setattr(state.status, "signature", signature)
    for _ in range(2):
        with pytest.raises(StateError):
            publisher.publish(memory(news), LIMITS, NO_HOLDS, ACTIVITY, NOW)
        assert publisher.unpublished
    first, *others = published(publisher, memory(news))
    assert first == Reported(((before, news),), lost)
    assert others == [Reported((), {})] * 2
    assert published(publisher, memory(news)) == []


def test_the_memory_of_the_start_is_no_news_and_is_published(publisher: Publisher, state: StateDir) -> None:
    lost = memory(record(running(0, Verdict.LOST), ended=RequestStatus.COMPLETE))
    publisher.begin(lost, LIMITS, ACTIVITY, NOW)
    publisher.begin(memory(), LIMITS, ACTIVITY, NOW)
    assert published(publisher, lost) == [Reported((), {})]
    assert list(state.status.read_lost()) == [name(0)]


def test_a_loss_that_was_recorded_but_not_published_at_the_start_is_reported(
    publisher: Publisher, state: StateDir
) -> None:
    state.status.write({}, {}, {})
    publisher.begin(memory(LOST), LIMITS, ACTIVITY, NOW)
    assert published(publisher, memory(LOST)) == [Reported((), {name(0): Loss(0, LossCause.NODE)})]


def test_a_hold_is_news_at_a_start_without_a_readable_status(publisher: Publisher) -> None:
    drained = Holds((Hold(HoldKind.DRAIN, "a"),))
    publisher.publish(memory(ENDED), LIMITS, drained, ACTIVITY, NOW)
    assert publisher.pop_news() == [Reported((), {name(0): DRAINED})]


def test_a_status_that_others_replaced_is_written_again(publisher: Publisher, state: StateDir) -> None:
    current = memory(ENDED)
    published(publisher, current)
    Path(state.status.path).unlink()
    published(publisher, current)
    assert list(state.status.read_all()) == [ENDED.id]


def test_a_grace_period_goes_on_although_nothing_else_changes(publisher: Publisher, state: StateDir) -> None:
    going = running(0, Verdict.SUCCEEDED, notice=Notice(LossCause.PREEMPTED, NOW + 30.0))
    current = memory(replace(ENDED, slots={0: going}))
    graces = []
    for seconds in (0.0, 10.0):
        published(publisher, current, NOW + seconds)
        graces.append(state.status.read_lost()[name(0)].grace)
    assert graces == [30, 20]
