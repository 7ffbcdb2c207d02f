"""A dump as bytes. A dump is refused if it was cut, altered or extended, or if a newer version wrote it."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable

import pytest

from provisioner.state import dump_format
from provisioner.state.database import SCHEMA
from provisioner.state.dump_format import Manifest, Saved, pack, unpack
from provisioner.state.errors import StateTooNew, StateUnreadable

INTENT = {"meta": {"state": {"schema": 1, "kind": "intent", "generation": 4, "provisioner": "demo"}}, "requests": {}}


def packed(schema: int = 1, kind: str = "intent", format_: int = dump_format.FORMAT, **more: bytes) -> bytes:
    """Return a dump of an intent and of other files."""
    intent = json.dumps(
        {**INTENT, "meta": {"state": {**INTENT["meta"]["state"], "schema": schema, "kind": kind}}, "returns": {}}
    )
    files = {"intent.json": intent.encode(), **more}
    return pack(Manifest(format_, "9.9", "demo", "then"), {name: Saved(one, 5) for name, one in files.items()})


def altered(before: str, after: str) -> Callable[[bytes], bytes]:
    return lambda dump: gzip.compress(gzip.decompress(dump).replace(before.encode(), after.encode()))


def of_one(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE) -> Callable[[bytes], bytes]:
    """Return a function that makes a .tar.gz with one member, whatever dump it gets. If the member is a link, it points
    to itself."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, name, len(content)
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        tar.addfile(member, io.BytesIO(content))
    return lambda _: made.getvalue()


def test_what_was_packed_is_unpacked() -> None:
    dump = unpack("stdin", packed(**{"journal.jsonl.1": b"x", "seen/a.answer-0": b"reported\n{}"}))
    assert dump.manifest == Manifest(dump_format.FORMAT, "9.9", "demo", "then")
    assert dump.tables("intent")["meta"] == INTENT["meta"]
    assert (dump.tables("memory"), dump.reported()) == (None, {"seen/a.answer-0": Saved(b"reported\n{}", 5)})


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(lambda dump: dump[:-1], "is cut off", id="one byte short"),
        pytest.param(lambda dump: dump[: len(dump) // 2], "is cut off", id="half of it"),
        pytest.param(lambda dump: b"", "is cut off", id="empty"),
        pytest.param(lambda dump: b"not a dump", "not written by", id="another file"),
        pytest.param(altered('"kind": "intent"', '"kind": "intend"'), "content of intent.json", id="a letter"),
        pytest.param(altered('"instance": ', '"instants": '), "lacks 'instance'", id="manifest"),
        pytest.param(altered('"mtime_ns": 5', '"mtime_ns":-5'), "is no time", id="a time that no file can have"),
        pytest.param(of_one("manifest.json", b"[" * 100_000), "was not written by", id="no end of lists"),
        pytest.param(of_one("intent.json", kind=tarfile.SYMTYPE), "intent.json is no file", id="a link to itself"),
        pytest.param(of_one("intent.json", kind=tarfile.LNKTYPE), "intent.json is no file", id="a second name"),
        pytest.param(of_one("intent.json", kind=tarfile.CHRTYPE), "intent.json is no file", id="a device"),
        pytest.param(altered('"intent.json": {', '"intend.json": {'), "lacks 'intend.json'", id="a file less"),
    ],
)
def test_a_dump_that_is_cut_or_altered_is_refused(spoil: Callable[[bytes], bytes], words: str) -> None:
    with pytest.raises(StateUnreadable, match=words) as caught:
        unpack("stdin", spoil(packed()))
    assert str(caught.value).startswith("stdin: ")
    assert "No file was changed." in str(caught.value)


def test_a_dump_that_would_fill_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    dump = packed(**{"journal.jsonl": b"0" * 10_000_000})
    assert len(dump) < 50_000
    monkeypatch.setattr(dump_format, "UNPACKED_BYTES", 1_000_000)
    with pytest.raises(StateUnreadable, match="unpacks to more than 1000000 bytes"):
        unpack("stdin", dump)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_in_json_is_refused(number: str) -> None:
    dump = packed(**{"memory.json": b'{"meta": {"state": {"generation": %s}}}' % number.encode()})
    with pytest.raises(StateUnreadable, match=f"{number} is no number"):
        unpack("stdin", dump).tables("memory")


def test_a_file_that_the_manifest_does_not_name_is_refused() -> None:
    with pytest.raises(StateUnreadable, match=r"holds 'memory\.json', which its manifest\.json does not name"):
        unpack(
            "stdin", altered('"memory.json": {', '"holds.json" : {')(packed(**{"memory.json": b"", "holds.json": b""}))
        )


@pytest.mark.parametrize("name", ["../intent.json", "seen/../x.answer-0", "/etc/cron.d/x", "provisioner.yaml"])
def test_nothing_is_unpacked_that_is_no_state(name: str) -> None:
    with pytest.raises(StateUnreadable, match="no file of a state directory"):
        unpack("stdin", packed(**{name: b"x"}))


def test_what_a_newer_version_wrote_is_refused() -> None:
    with pytest.raises(
        StateTooNew, match=r"written by provisioner 9\.9; this one knows formats up to 1\. No file was changed\."
    ):
        unpack("stdin", packed(format_=dump_format.FORMAT + 1))
    with pytest.raises(StateUnreadable, match=r"intent\.json: holds 'memory', not 'intent'"):
        unpack("stdin", packed(kind="memory")).tables("intent")
    with pytest.raises(StateTooNew, match=rf"intent\.json: has schema version {SCHEMA + 1}"):
        unpack("stdin", packed(schema=SCHEMA + 1)).tables("intent")
