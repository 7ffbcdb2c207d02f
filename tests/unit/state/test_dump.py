"""What is saved of a state directory, and when it is not."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from provisioner.state.archive import unpack
from provisioner.state.directory import StateDir
from provisioner.state.dump import take
from provisioner.state.errors import LockTimeout, StateMissing, StateUnreadable
from provisioner.state.locks import DataLock
from tests.support.stores import contents


def test_a_dump_holds_what_must_not_be_lost_and_nothing_that_would_lie_later(golden: StateDir) -> None:
    golden.announced.write({"T": 10})
    before = contents(golden.path)
    manifest, packed = take(golden)
    dump = unpack("dump", packed)
    told = [f"seen/{id_}.told-0" for id_ in ("gacmtgfnyp", "ihsc3p23q5", "ret-dsjn6l56km")]
    databases = ["intent.json", "memory.json", "levers.json", "status.json", "announced.json"]
    assert list(dump.files) == [*databases, *told, "journal.jsonl"]
    assert (manifest, manifest.instance) == (dump.manifest, "demo")
    assert {name: saved.content for name, saved in dump.files.items()}.items() <= before.items()
    after = contents(golden.path)
    assert {name for name in after if after[name] != before.get(name)} <= {name for name in after if ".lock" in name}


def test_while_a_script_or_the_loop_writes_a_dump_waits(golden: StateDir) -> None:
    for file in (golden.intent, golden.memory):
        with (
            DataLock(file.lock_path),
            patch("provisioner.state.dump.DataLock", lambda path: DataLock(path, 0.0)),
            pytest.raises(LockTimeout, match="held this lock"),
        ):
            take(golden)


@pytest.mark.parametrize("damage", ["cut", "lost", "old"])
@pytest.mark.parametrize("kind", ["intent", "memory"])
def test_files_that_are_not_the_newest_are_not_dumped(golden: StateDir, kind: str, damage: str) -> None:
    path = Path(golden.path, f"{kind}.json")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-5])
    elif damage == "lost":
        path.unlink()
    else:
        with DataLock(f"{path}.lock") as lock:
            lock.generation = 1000
    with pytest.raises((StateMissing, StateUnreadable), match=f"{kind}.json"):
        take(golden)


def test_levers_that_cannot_be_read_are_not_dumped_and_what_to_do_is_said(golden: StateDir) -> None:
    Path(golden.levers.path).write_text("{")
    with pytest.raises(StateUnreadable, match="`provisioner stop-all` or `start-all` begins anew"):
        take(golden)
    golden.levers.change(lambda held: held, anew=True)
    take(golden)
