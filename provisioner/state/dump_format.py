"""The format of a dump: a .tar.gz file. Its first member, the manifest, gives the size, digest and modification time of
each other file.

A dump is refused if it was cut off, altered or extended. It is also refused if a newer version wrote it. The functions
are pure.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from provisioner.state.atomic import parse
from provisioner.state.database import SCHEMA, Tables, get_meta, shape_problem
from provisioner.state.errors import StateTooNew, StateUnreadable
from provisioner.state.poll_markers import ENTRY

FORMAT = 1
"""Version of the manifest and of the set of saved files. A dump with a higher version is refused."""

UNPACKED_BYTES = 512 * 1024 * 1024
"""Maximum size in bytes of all files of a dump together. A full journal of 60 MB and a state of 100 MB, for a hundred
thousand machines, fit into this size."""

MANIFEST = "manifest.json"
REPORTED = "seen/"
SAVED = rf"(intent|memory|status|holds|announced)\.json|journal\.jsonl(\.[0-9]+)?|{REPORTED}{ENTRY}"
"""Names of the files that a dump may contain.

A dump with any other name is refused, so that no path can lead out of the directory.
"""

MODE = 0o600
"""Mode of the dump and of the files in it. Only the owner may read them, because a dump names machines, addresses and
accounts."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A file as it was when the dump was taken."""

    content: bytes
    mtime_ns: int
    """Modification time in ns, by the file system's clock."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The properties of the whole dump, as its manifest states them."""

    format: int
    version: str
    """Version of the provisioner that wrote the dump."""
    instance: str
    time: str
    """Moment of the dump as UTC text, by the clock of the host that took it. The moment is shown to operators and never
    compared."""


@dataclass(frozen=True, slots=True)
class Dump:
    """A dump that is complete and unaltered."""

    manifest: Manifest
    files: Mapping[str, Saved]
    source: str
    """Name of the dump in messages: its path or ``stdin``."""

    def tables(self, kind: str) -> Tables | None:
        """Return the tables of a database; None if the dump lacks this database. Raises StateUnreadable or
        StateTooNew."""
        name = f"{kind}.json"
        if name not in self.files:
            return None
        where = f"{self.source}: {name}"
        tables: Tables = parse(where, self.files[name].content, ADVICE)
        if problem := shape_problem(tables, kind):
            raise _damaged(where, problem)
        if (schema := get_meta(tables)["schema"]) > SCHEMA:
            raise _too_new(f"{where}: has schema version {schema}", self.manifest.version, SCHEMA)
        return tables

    def reported(self) -> dict[str, Saved]:
        """Return the entries of the terminal answers that were reported to HF."""
        return {name: saved for name, saved in self.files.items() if name.startswith(REPORTED)}


ADVICE = "No file was changed. Take an earlier or a later dump."


def pack(manifest: Manifest, files: Mapping[str, Saved]) -> bytes:
    """Return the files and their manifest as .tar.gz."""
    if (size := sum(len(saved.content) for saved in files.values())) > UNPACKED_BYTES:
        raise StateUnreadable(
            f"the state has {size} bytes, but a dump holds at most {UNPACKED_BYTES}. Move old journals away."
        )
    document = asdict(manifest) | {"files": {name: _describe(saved) for name, saved in files.items()}}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=6) as tar:
        _add(tar, MANIFEST, Saved(json.dumps(document, indent=1).encode(), 0))
        for name, saved in files.items():
            _add(tar, name, saved)
    return packed.getvalue()


def _describe(saved: Saved) -> dict[str, Any]:
    digest = hashlib.sha256(saved.content).hexdigest()
    return {"size": len(saved.content), "sha256": digest, "mtime_ns": saved.mtime_ns}


def _add(tar: tarfile.TarFile, name: str, saved: Saved) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = len(saved.content), saved.mtime_ns // 10**9, MODE
    tar.addfile(member, io.BytesIO(saved.content))


def unpack(source: str, packed: bytes) -> Dump:
    """Return the dump in ``packed``. Raises StateUnreadable if the dump is damaged, StateTooNew if its format is newer
    than ours."""
    try:
        members = dict(_members(packed))
        document = json.loads(members.pop(MANIFEST))
        manifest = Manifest(**{field.name: document[field.name] for field in fields(Manifest)})
        described: dict[str, dict[str, Any]] = dict(document["files"])
        if manifest.format > FORMAT:
            raise _too_new(f"{source}: is a dump of format {manifest.format}", manifest.version, FORMAT)
        files = {name: Saved(members[name], _check_time(entry["mtime_ns"])) for name, entry in described.items()}
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise _damaged(source, f"is cut off, or was not written by `provisioner dump` ({error})") from error
    except KeyError as error:
        raise _damaged(source, f"lacks {error}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise _damaged(source, f"its {MANIFEST} was not written by `provisioner dump` ({error})") from error
    if added := members.keys() - described.keys():
        raise _damaged(source, f"holds {sorted(added)[0]!r}, which its {MANIFEST} does not name")
    for name, saved in files.items():
        if re.fullmatch(SAVED, name) is None:
            raise _damaged(source, f"holds {name!r}, which is no file of a state directory")
        if _describe(saved) != described[name]:
            raise _damaged(source, f"the content of {name} has changed since it was saved")
    return Dump(manifest, files, source)


def _members(packed: bytes) -> Iterator[tuple[str, bytes]]:
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        whole = file.read(UNPACKED_BYTES + 1)  # read to the end: a dump without its last byte is refused
    if len(whole) > UNPACKED_BYTES:
        raise tarfile.ReadError(f"unpacks to more than {UNPACKED_BYTES} bytes")
    with tarfile.open(fileobj=io.BytesIO(whole), mode="r:") as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            if content is None:
                raise tarfile.ReadError(f"{member.name} is no file")
            yield member.name, content.read()


def _check_time(nanoseconds: object) -> int:
    """Return the modification time in ns. Raises ValueError if no file can have this time."""
    if not isinstance(nanoseconds, int) or not 0 <= nanoseconds < 1 << 63:
        raise ValueError(f"{nanoseconds!r} is no time")
    return nanoseconds


def _damaged(what: str, problem: str) -> StateUnreadable:
    return StateUnreadable(f"{what}: {problem}. {ADVICE}")


def _too_new(what: str, version: str, newest: int) -> StateTooNew:
    return StateTooNew(
        f"{what}, written by provisioner {version}; this one knows formats up to {newest}. No file was changed. "
        "Restore it with that version, or a later one."
    )
