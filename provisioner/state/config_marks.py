"""``config/SIDE-CONFIG-TEMPLATES``: which content of HostFactory's two files scripts and loop have read, and when.

Where both run on one host they read the same files. Where they do not, nothing else tells that the files differ.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from provisioner.hostfactory.digest import Digests
from provisioner.state.atomic import facts_of, remove
from provisioner.state.errors import unwritable
from provisioner.state.marks import make_shared_directory, names_in, touch

Side = Literal["scripts", "loop"]
SIDES: tuple[Side, ...] = ("scripts", "loop")
KEPT = 3
"""Contents of a side whose marks stay: who has changed is known by what both had read before."""
MARK = r"(scripts|loop)-([0-9a-f]{8})-([0-9a-f]{8})"


class ReadContent(NamedTuple):
    """What one side has read, and when it last did, in ns by the file system's clock."""

    at: int
    digests: Digests


class Difference(NamedTuple):
    """A file of which the scripts have read another content than the loop."""

    file: str
    """``config`` or ``templates``."""
    newer: Side | None
    """Whose content the other side has not read yet; None: nobody can say."""


class ConfigMarks:
    """The marks of one state directory."""

    def __init__(self, path: str) -> None:
        self.path = path

    def note(self, side: Side, digests: Digests) -> None:
        """A side has read this: one mark is touched. Raises StateError."""
        mark = os.path.join(self.path, "-".join((side, *digests)))
        try:
            try:
                touch(mark)
            except FileNotFoundError:
                make_shared_directory(self.path)
                touch(mark)
        except OSError as error:
            raise unwritable(mark, error) from error

    def read(self) -> Mapping[Side, Sequence[ReadContent]]:
        """What each side has read, the newest first. Raises StateError."""
        contents_of: dict[Side, list[ReadContent]] = {side: [] for side in SIDES}
        for name in names_in(self.path):
            facts = facts_of(os.path.join(self.path, name))
            if facts is not None and (parts := re.fullmatch(MARK, name)):
                contents_of["loop" if parts[1] == "loop" else "scripts"].append(
                    ReadContent(facts.st_mtime_ns, Digests(parts[2], parts[3]))
                )
        return {side: sorted(contents, reverse=True) for side, contents in contents_of.items()}

    def forget_old(self) -> None:
        """Remove the marks of contents that were replaced long ago. Raises StateError."""
        for side, contents in self.read().items():
            for content in contents[KEPT:]:
                remove(os.path.join(self.path, "-".join((side, *content.digests))))

    def differences(self) -> list[Difference]:
        """Raises StateError."""
        return differences(self.read())


def differences(read: Mapping[Side, Sequence[ReadContent]]) -> list[Difference]:
    """The files of which the two sides have different contents. Pure.

    Only what the scripts have read since the loop read its own proves one: HF calls them seldom, and what they read
    before a change says nothing of what they would read now.
    """
    scripts, loop = read["scripts"], read["loop"]
    if not scripts or not loop or scripts[0].at <= loop[0].at:
        return []
    differences = []
    for index, file in enumerate(Digests._fields):
        theirs, ours = scripts[0].digests[index], loop[0].digests[index]
        if theirs == ours:
            continue
        scripts_knew = any(content.digests[index] == ours for content in scripts)
        loop_knew = any(content.digests[index] == theirs for content in loop)
        newer: Side | None = None if scripts_knew == loop_knew else "scripts" if scripts_knew else "loop"
        differences.append(Difference(file, newer))
    return differences
