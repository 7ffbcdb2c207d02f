"""The names of the laws in ARCHITECTURE.md. A failed simulation names the law that was broken."""

from __future__ import annotations

from enum import StrEnum


class Law(StrEnum):
    """The laws that a simulation can find broken."""

    INTENT = "law: intent first"
    NAMED_ONCE = "law: a name is used once"
    RECORDED = "law: recorded before acted"
    SEEN_WHOLE = "law: a failed observation is not an empty observation"
    REASONED = "law: no machine is deleted by count"
    SLOWLY = "law: orphans go slowly"
    ENDS = "law: a request always ends"
    STAYS = "law: a terminal answer stays"
    ANSWERED = "law: scripts answer from files"
    ONE_LOOP = "law: one writer per file, one loop"
    PROVEN = "law: what cannot happen twice is proven"
