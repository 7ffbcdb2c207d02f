"""The state of loop and operators in the Kubernetes API: the scripts' notes, the loop's heartbeat, and damaged
parts."""

from __future__ import annotations

from email.message import Message
from pathlib import Path
from unittest.mock import patch

import pytest

from provisioner.hostfactory.provider_config import Digests
from provisioner.model import Memory, RequestRecord
from provisioner.state.errors import Condition, StateUnreachable, StateUnreadable, advice_message, is_denied
from provisioner.state.kube.objects import NOTES, PARTS, pack
from provisioner.state.kube.script_state import KubeEntries, KubeScriptState
from provisioner.state.kube.state import KubeState
from provisioner.state.marker_files import Difference
from tests.support.kube_state_server import MemoryApiServer, ObjectServer
from tests.support.waiting import until
from tests.unit.state.kube.conftest import Site, answer


def test_a_poll_of_a_script_is_seen(site: Site) -> None:
    id_, loop = site.request(), site.loop()
    assert loop.polls() == {}
    site.script.poll([id_])
    first = loop.polls()[id_]
    site.now += 30
    site.script.poll([id_])
    assert loop.polls()[id_] > first
    loop.forget_polls([id_, "unknown"])
    assert loop.polls() == {}


def test_a_poll_counts_before_a_watch_shows_it_while_a_cancel_is_announced(site: Site) -> None:
    id_, loop = site.request(), site.loop()
    cache = loop._caches[NOTES]
    with patch.object(cache, "check", lambda: None):  # no event comes
        site.script.poll([id_])
        assert loop.polls() == {}
        record = RequestRecord(id_, "t", 2, 0.0, 9.0, is_cancelling=True)
        loop.memory.write(Memory("demo", 1, requests={id_: record}))
        assert loop.polls().keys() == {id_}


def test_forgetting_removes_the_entries_of_an_answer(site: Site) -> None:
    id_, loop = site.request(), site.loop()
    loop.terminal_answers.settle_revised(id_, "{}")
    loop.status.write({id_: answer(id_, "complete", "succeed")}, {}, {})
    site.script.poll([id_])
    assert loop.terminal_answers.ids() == {id_}
    assert loop.terminal_answers.answers().keys() == {id_}
    loop.forget_polls([id_])
    assert loop.terminal_answers.ids() == frozenset()
    assert loop.terminal_answers.answers() == {}


def test_a_script_that_settles_first_wins(site: Site) -> None:
    id_, loop = site.request(), site.loop()
    loop.status.write({id_: answer(id_, "complete", "succeed")}, {}, {})
    assert loop.terminal_answers.ids() == frozenset()
    with patch.object(loop._caches["machineanswers"], "check", lambda: None):
        site.script.poll([id_])
        assert not loop.terminal_answers.settle_revised(id_, "{}")


def test_the_hosts_that_hf_lists_are_read(site: Site) -> None:
    loop = site.loop()
    assert loop.listed_hosts() is None
    site.script.note_hosts({"m1": None, "m2": None})
    names, number = loop.listed_hosts() or ((), 0)
    assert names == ("m1", "m2")
    site.script.note_hosts({"m1": None, "m2": None})
    assert loop.listed_hosts() == (names, number + 10**9)
    site.patch(NOTES, "demo.hosts", {"spec": {"hosts": pack(7)}})
    with pytest.raises(StateUnreadable, match=r"demo\.hosts"):
        loop.listed_hosts()


def test_refused_calls_are_read(site: Site) -> None:
    loop = site.loop()
    assert loop.refused_calls() == []
    site.script.note_shown({"t": 1})
    refused = {"requestMachines": {"total": 3, "recent": 2, "since": 5.5, "last": 9.5, "text": "no"}}
    site.patch(NOTES, "demo", {"spec": {"refused": refused}})
    (refusals,) = loop.refused_calls()
    assert (refusals.script, refusals.total, refusals.since, refusals.text) == ("requestMachines", 3, 5.5, "no")


def test_differing_files_of_hf_are_named(site: Site) -> None:
    loop = site.loop()
    loop.note_in_force(Digests("a" * 8, "b" * 8))
    site.calls(loop)
    loop.note_in_force(Digests("a" * 8, "b" * 8))
    assert site.calls(loop) == []
    site.now += 5
    site.script.note_read(Digests("a" * 8, "c" * 8))
    site.script.note_shown({"t": 1})
    assert loop.config_differences() == [Difference("templates", None)]
    site.now += 5
    site.script.note_read(Digests("a" * 8, "b" * 8))
    site.request()
    assert loop.config_differences() == [], "the request's own note is newer"


def test_signs_of_life(site: Site) -> None:
    loop = site.loop()
    assert loop.loop_lock.acquire(0)
    loop.loop_lock.raise_epoch()
    site.request()
    assert loop.seconds_since_intent() == 0
    site.now += 40
    loop.beat()
    loop.loop_lock.renew()
    assert loop.life_signs().last_beat_at == site.now
    assert loop.seconds_since_intent() == 40


def test_the_pool_status_is_written_only_when_it_changes(site: Site) -> None:
    loop = site.loop()
    assert loop.read_pool_status() == {}
    loop.write_pool_status({"pools": {"a": 1}})
    site.calls(loop)
    loop.write_pool_status({"pools": {"a": 1}})
    assert site.calls(loop) == []
    assert site.open().read_pool_status() == {"pools": {"a": 1}}


def test_states_that_share_a_directory_keep_their_own_generations(site: Site, tmp_path: Path) -> None:
    """Loops of several shards may run on one host. An operator may also move a state to another namespace."""
    moved = ObjectServer("elsewhere")
    for server, name, writes in ((site.server, "demo-s0", 1), (site.server, "demo-s1", 5), (moved, "demo-s0", 3)):
        state = KubeState(MemoryApiServer(server), name, str(tmp_path))
        assert state.memory.condition() is Condition.NEW
        for _ in range(writes):
            state.memory.write(Memory(name, 1))
    assert KubeState(MemoryApiServer(site.server), "demo-s0", str(tmp_path)).memory.condition() is Condition.FINE


def test_the_history_is_a_local_file(site: Site, tmp_path: Path) -> None:
    site.open().add_history([{"time": "x"}])
    assert site.open().find_history("x").lines == ()
    loop = site.open(str(tmp_path))
    loop.add_history([{"time": "2026-01-01T00:00:00+00:00", "id": "r1"}])
    assert len(loop.find_history("r1").lines) == 1
    assert loop.sizes()["journal.jsonl"] > 0
    loop.memory.write(Memory("demo"))
    assert loop.sizes()["memory.log"] > 0


def test_an_unreachable_server_is_a_write_error(site: Site) -> None:
    loop = site.loop()
    assert loop.find_write_error() is None
    loop._api.set_unreachable()  # type: ignore[attr-defined]
    error = loop.find_write_error()
    assert error is not None
    assert "no answer" in str(error)
    assert "API server" in advice_message(error)
    assert "disk" not in advice_message(error)
    with pytest.raises(StateUnreachable):
        loop.polls()


def test_a_denied_call_is_a_write_error_of_the_loop_and_the_next_step_is_its_role(site: Site) -> None:
    loop = site.loop()
    loop._api.before = lambda call: 403  # type: ignore[attr-defined]
    error = loop.find_write_error()
    assert error is not None
    assert not is_denied(error), "which would mean that only this user is denied"
    assert "Role" in f"{error.strerror}. {advice_message(error)}".partition("Bind this account to its ")[2]
    assert not str(error.strerror).endswith(".")


def test_a_loop_follows_the_objects_by_watches_and_writes_in_parallel(site: Site) -> None:
    api = MemoryApiServer(site.server)
    state = KubeState(api, "demo", follows=True)
    try:
        state.wait_synced()
        state.memory.write(Memory("demo", 1))
        ids = [site.request() for _ in range(20)]
        until(lambda: len(state.intent.read().requests) == 20, 10)
        state.status.write({id_: answer(id_) for id_ in ids}, {}, {})
        site.script.poll(ids)
        until(lambda: len(state.polls()) == 20, 10)
        assert state.status.exists()
    finally:
        state.close()


def test_damaged_parts_are_named(site: Site) -> None:
    loop = site.loop()
    loop.write_pool_status({"pools": {}})
    site.patch(PARTS, "demo.pools", {"spec": {"data": pack({"pieces": 2, "generation": 5})}})
    with pytest.raises(StateUnreadable, match=r"demo\.pools"):
        loop.read_pool_status()


def test_a_proxy_that_answers_in_place_of_the_server_is_no_server(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A success that only the proxy reports must not settle an answer, record a request or renew the Lease."""
    id_, loop = site.request(), site.loop()
    assert loop.loop_lock.acquire(0)
    header = Message()
    header["Date"] = "Fri, 27 Nov 2026 15:43:14 GMT"
    monkeypatch.setattr(MemoryApiServer, "_exchange", lambda *_: (200, header, b'{"status":"ok"}'))
    for call in (
        site.request,
        lambda: site.script.poll([id_]),
        lambda: KubeScriptState(MemoryApiServer(site.server), "demo").available(),
        lambda: KubeEntries(MemoryApiServer(site.server), "demo").settle_reported(id_, "text"),
        loop.loop_lock.renew,
        loop.loop_lock.keep,
        loop.memory.exists,
        loop.read_pool_status,
    ):
        with pytest.raises(StateUnreachable, match="no server of Kubernetes sent"):
            call()
