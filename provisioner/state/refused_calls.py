"""``refused/<script>``: a line for each call that a script has refused because of a local problem. Such a problem is,
for example, a lock that another process holds. The line has the time and the reason. A line without a reason says that
the script answered a later call.

The lines are only a hint for operators. These files need no lock, because a lock may be the cause of a refusal.
"""

from __future__ import annotations

import os
import re
import time
from itertools import takewhile
from typing import NamedTuple

from provisioner.state.atomic import Located, open_shared, read_if_present, stat_file
from provisioner.state.errors import writing
from provisioner.state.marker_files import make_shared_directory

SCRIPTS = ("getAvailableTemplates", "requestMachines", "getRequestStatus", "requestReturnMachines", "getReturnRequests")
SLURM_PROGRAMS = ("slurm_resume", "slurm_suspend", "slurm_resume_fail")

MOST_BYTES = 64 * 1024
"""Size in bytes above which a file is emptied. This size is enough for more than 150 calls, or for an hour of calls
that wait for a lock."""
LONGEST_REASON = 400
"""Maximum number of bytes of a reason that are kept."""
LINE = rb"(?m)^([0-9]{1,12}) (.*)$"
"""Pattern of a line. A line may be damaged, because two hosts may append at once on NFS."""
ANSWERED = b" \n"
"""End of a line without a reason."""
ADVICE = "Remove the file; the scripts make it again."


class Refusals(NamedTuple):
    """The refused calls of one script."""

    script: str
    total: int
    """Number of refused calls in the file. The number grows until the file is emptied."""
    recent: int
    """Number of refused calls since the script last answered a call."""
    since: float
    """Time of the first refused call since the script last answered a call, in epoch seconds of the script's host; 0 if
    there is none."""
    last: float
    """Time of the last line by the file system's clock, in epoch seconds."""
    text: str
    """Reason of the last refusal; empty if the script has answered a call since."""


class RefusedCalls(Located):
    """The files of refused calls in one state directory."""

    def note(self, script: str, reason: str) -> None:
        """Record the reason why a script refuses its call; an empty reason if the script does not refuse the call.
        Raises StateError."""
        path = os.path.join(self.path, script)
        if not reason and (read_if_present(path, ADVICE) or ANSWERED).endswith(ANSWERED):
            return
        make_shared_directory(self.path)
        with writing(path), open(open_shared(path, os.O_WRONLY | os.O_APPEND), "ab", buffering=0) as file:
            if file.tell() > MOST_BYTES:
                file.truncate(0)
            file.write(b"%d %s\n" % (time.time(), reason.encode("utf-8", "replace")[:LONGEST_REASON]))

    def read(self) -> list[Refusals]:
        """Return the refused calls of each script that has refused any. Raises StateError."""
        read = []
        for script in SCRIPTS + SLURM_PROGRAMS:
            path = os.path.join(self.path, script)
            if (facts := stat_file(path)) and (lines := re.findall(LINE, read_if_present(path, ADVICE) or b"")):
                recent = [*takewhile(lambda line: line[1], reversed(lines))]
                since, text = (int(recent[-1][0]), recent[0][1].decode("utf-8", "replace")) if recent else (0, "")
                total = sum(reason != b"" for _, reason in lines)
                read.append(Refusals(script, total, len(recent), since, facts.st_mtime, text))
        return read
