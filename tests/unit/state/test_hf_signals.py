"""What HF's calls leave: the marks of its polls, and the hosts that it lists."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from provisioner.state.errors import StateDenied, StateError, StateMissing, StateUnreadable, StateUnwritable
from provisioner.state.hf_activity import Inventory, Seen, Told
from tests.support.stores import failing


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
    seen.forget(["abc", "never", "../precious"])
    assert set(seen.marks()) == {"kept"}
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize("request_id", ["", "..", "../intent.json", "a.new", "ä", "a" * 65, "a\n", "a\0"])
def test_an_id_that_could_lead_elsewhere_is_refused(seen: Seen, tmp_path: Path, request_id: str) -> None:
    told = Told(seen.path)
    settles = (told.settled, told.presume, lambda id_: told.tell(id_, "{}"), lambda id_: told.claim(id_, "{}"))
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
    monkeypatch.setattr("provisioner.state.markers.os.utime", failing(os.utime, errno.EROFS))
    with pytest.raises(StateUnwritable, match="abc: cannot be written: Read-only"):
        seen.touch("abc")
    monkeypatch.setattr("provisioner.state.markers.os.listdir", failing(os.listdir, errno.EACCES))
    with pytest.raises(StateDenied, match="seen: cannot be read: Permission denied"):
        seen.marks()
    monkeypatch.setattr("provisioner.state.atomic.os.unlink", failing(os.unlink, errno.EACCES))
    with pytest.raises(StateUnwritable, match="abc"):
        seen.forget(["abc"])


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
