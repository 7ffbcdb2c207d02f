"""Holds in the ProvisionerState: by command or kubectl, and never released by a lost or old object."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.model import NO_HOLDS, Hold, HoldKind, Holds
from provisioner.state.errors import StateMissing, StateStale, StateUnreadable
from provisioner.state.holds import with_hold, without_holds
from provisioner.state.kube.objects import STATES, item
from tests.support.kube_state_server import Call, Refusal
from tests.unit.state.kube.conftest import Site

PAUSE = Hold(HoldKind.PAUSE, "alpha", "ann", 5.5, "a reason")
STOP = Hold(HoldKind.STOP_ALL)


def test_a_hold_is_set_and_released_before_any_loop_has_run(site: Site) -> None:
    operator, reader = site.open(), site.open()
    assert reader.holds.read() == NO_HOLDS
    assert reader.holds.signature() is None
    assert operator.holds.change(lambda holds: with_hold(holds, PAUSE)) == (NO_HOLDS, Holds((PAUSE,)))
    signature = reader.holds.signature()
    assert reader.holds.read() == Holds((PAUSE,))
    operator.holds.change(lambda holds: without_holds(holds, [HoldKind.PAUSE], Hold(HoldKind.PAUSE, "alpha", "bob")))
    assert reader.holds.read() == Holds((), (Hold(HoldKind.PAUSE, "alpha", "bob"),))
    assert reader.holds.signature() != signature


def test_kubectl_sets_a_hold(site: Site) -> None:
    loop = site.loop()
    before = loop.holds.signature()
    site.patch(STATES, "demo", {"spec": {"holds": [{"kind": "stop-all"}]}})
    assert loop.holds.read() == Holds((STOP,))
    assert loop.holds.signature() != before


def test_kubectl_does_not_give_the_holds_to_another_provisioner(site: Site) -> None:
    """The loop selects its object by this field. With another value, the holds would be unknown, and no command could
    make them known again."""
    loop = site.loop()
    site.patch(STATES, "demo", {"spec": {"holds": [{"kind": "stop-all"}]}})
    with pytest.raises(Refusal, match="never becomes another's"):
        site.patch(STATES, "demo", {"spec": {"provisioner": "demo2"}})
    assert loop.holds.read() == Holds((STOP,))


def test_the_status_of_the_loop_is_no_change_of_the_holds(site: Site) -> None:
    loop = site.loop()
    before = loop.holds.signature()
    loop.status.write({}, {}, {"t": 1})
    assert loop.holds.signature() == before


def test_an_unchanged_change_writes_nothing(site: Site) -> None:
    operator = site.open()
    operator.holds.change(lambda holds: with_hold(holds, PAUSE))
    site.calls(operator)
    operator.holds.change(lambda holds: with_hold(holds, PAUSE))
    assert site.calls(operator) == []


def test_two_operators_at_once_both_have_their_hold(site: Site) -> None:
    one, two = site.open(), site.open()
    one.holds.change(lambda holds: with_hold(holds, STOP))

    def meanwhile(call: Call) -> None:
        if call.method == "PATCH":
            two._api.before = lambda call: None  # type: ignore[attr-defined]
            one.holds.change(lambda holds: with_hold(holds, PAUSE))

    two._api.before = meanwhile  # type: ignore[attr-defined]
    other = Hold(HoldKind.DRAIN, "beta")
    two.holds.change(lambda holds: with_hold(holds, other))
    assert one.holds.read() == Holds((STOP, PAUSE, other))


def test_a_change_gives_up_in_a_storm_of_conflicts(site: Site) -> None:
    operator = site.open()
    operator.holds.change(lambda holds: with_hold(holds, STOP))
    operator._api.before = lambda call: 409 if call.method == "PATCH" else None  # type: ignore[attr-defined]
    with pytest.raises(StateStale, match="Try again"):
        operator.holds.change(lambda holds: with_hold(holds, PAUSE))


def test_holds_are_unknown_after_their_object_was_deleted(site: Site) -> None:
    loop, operator = site.loop(), site.open()
    site.server.answer("DELETE", item("hf", STATES, "demo"))
    with pytest.raises(StateMissing, match="stop-all"):
        loop.holds.read()
    with pytest.raises(StateMissing):
        operator.holds.change(lambda holds: with_hold(holds, PAUSE))
    loop.status.write({}, {}, {"t": 1})
    with pytest.raises(StateMissing):
        loop.holds.read()
    operator.holds.change(lambda holds: holds, replace_unusable=True)
    assert loop.holds.read() == NO_HOLDS


def test_a_running_loop_follows_the_holds_of_an_object_that_was_made_again(site: Site) -> None:
    loop = site.loop()
    for number in range(3):
        site.open().holds.change(lambda holds, name=str(number): with_hold(holds, Hold(HoldKind.PAUSE, name)))
    assert len(loop.holds.read().current) == 3
    site.server.answer("DELETE", item("hf", STATES, "demo"))
    site.now += 1
    site.open().holds.change(lambda _: Holds((STOP,)), replace_unusable=True)
    assert loop.holds.read() == Holds((STOP,))


def test_a_release_of_the_brake_is_not_lost_silently(site: Site) -> None:
    operator, _ = site.open(), site.loop()
    site.server.answer("DELETE", item("hf", STATES, "demo"))
    with pytest.raises(StateMissing, match="no release was recorded"):
        operator.ask_release()
    operator.holds.change(lambda holds: holds, replace_unusable=True)
    operator.ask_release()
    assert operator.release_asked()


def test_an_old_copy_releases_no_hold(site: Site) -> None:
    loop, operator = site.loop(), site.open()
    old = site.server.snapshot()
    for reason in ("one", "two", "three"):
        operator.holds.change(lambda _, reason=reason: Holds((replace(STOP, reason=reason),)))
    assert loop.holds.read() == Holds((replace(STOP, reason="three"),))
    site.server.restore(old)
    with pytest.raises(StateUnreadable, match="old copy"):
        loop.holds.read()
    site.open().ask_release()
    with pytest.raises(StateUnreadable, match="old copy"):
        loop.holds.read()
    operator.holds.change(lambda holds: with_hold(holds, PAUSE), replace_unusable=True)
    assert site.open().holds.read() == loop.holds.read() == Holds((PAUSE,))


def test_a_hold_that_kubectl_wrote_badly_is_named(site: Site) -> None:
    loop = site.loop()
    site.patch(STATES, "demo", {"spec": {"holds": [{"kind": "pause", "since": 2**60}]}})
    with pytest.raises(StateUnreadable, match="kubectl edit"):
        loop.holds.read()
