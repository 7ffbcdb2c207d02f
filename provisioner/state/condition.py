"""What a state file and the lock file beside it say together, and what is done about it. Pure.

The lock file notes the last generation that was written durably, and stays when the data file is removed: a data file
that is older than the note was put there by somebody.

| data file            | lock file notes         | condition    | scripts and trim          | loop at its start       |
|----------------------|-------------------------|--------------|---------------------------|-------------------------|
| absent               | no generation           | NEW          | make intent               | makes memory            |
| absent               | a generation            | MISSING      | refuse                    | rebuilds memory, brakes |
| does not parse       | whatever                | UNREADABLE   | refuse                    | stops planning          |
| an older generation  | a newer generation      | OLDER        | refuse, once caches agree | rebuilds memory, brakes |
| any generation       | there is no lock file   | ALONE        | write                     | takes memory, brakes    |
| this generation      | this one, or an older   | FINE         | write                     | goes on                 |

* `provisioner recover` writes intent again where it is MISSING, UNREADABLE or OLDER, and makes room for an UNREADABLE
  memory.
* An absent intent beside a memory is MISSING whatever its lock file notes.
"""

from __future__ import annotations

from enum import StrEnum


class Condition(StrEnum):
    """What is the matter with a state file."""

    NEW = "new"
    MISSING = "missing"
    UNREADABLE = "unreadable"
    OLDER = "older"
    """An old copy was put back: a later one had been written."""
    ALONE = "alone"
    """Somebody put it there without its lock file, which every writer makes first: it may be an old copy."""
    FINE = "fine"


def condition(generation: int | None, noted: int | None) -> Condition:
    """Of a file that can be read, of that ``generation``, or of one that is absent (None).

    ``noted``: what the lock file notes, 0 where that is unknown; None where there is no lock file.
    """
    if generation is None:
        return Condition.MISSING if noted else Condition.NEW
    if noted is None:
        return Condition.ALONE
    return Condition.OLDER if generation < noted else Condition.FINE
