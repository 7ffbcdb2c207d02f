"""The words that every part shares: phases, verdicts, reasons, classes of errors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from provisioner.names import printable
from provisioner.utc import DAY as DAY
from provisioner.utc import HOUR as HOUR
from provisioner.utc import format_utc as format_utc


class Phase(StrEnum):
    """What a machine is seen doing. Observed, never enforced."""

    SUBMITTED = "submitted"
    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    GONE = "gone"
    """Dead. In a snapshot its remains are still there and have to be deleted."""


class Verdict(StrEnum):
    """What became of a slot."""

    OPEN = "open"
    SUCCEEDED = "succeeded"
    RETURNED = "returned"
    LOST = "lost"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"
    CANCELLED = "cancelled"


DESIRED = frozenset({Verdict.OPEN, Verdict.SUCCEEDED})
"""Verdicts of slots that should have a machine."""

NEVER = float("inf")
"""Loop time of what will not happen."""

LONG_AGO = float("-inf")
"""Loop time of what has not happened, where what matters is how long ago it did."""


class DeleteReason(StrEnum):
    """Why a machine is deleted. There is no other reason (law: nothing is deleted by count)."""

    RETURNED = "returned"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    WITHDRAWN = "withdrawn"
    LOST = "lost"
    CANCELLED = "cancelled"
    ORPHANED = "orphaned"


class PendingReason(StrEnum):
    """Why a machine that a request wants does not run."""

    WINDOW = "window"
    CAP = "cap"
    BACKOFF = "backoff"
    PAUSED = "paused"
    BUDGET = "budget"
    UNSEEN = "unseen"
    """The pool cannot be seen, or its snapshot is not believed: the pool gets no actions."""
    UNSENT = "unsent"
    """The pool was chosen, and the create is known not to have been sent."""
    UNANSWERED = "unanswered"
    """The create was sent, and the machine was not seen yet."""
    STARTING = "starting"
    """The machine is there, does not run yet, and its place gives no reason."""
    GATED = "gated"
    """The machine is held back on purpose, for example by a queue."""
    TROUBLED = "troubled"
    """The machine was asked for, and its place has said why the machine does not run."""
    SET_ASIDE = "set_aside"
    """No action is taken for the machine until an operator has looked."""
    GIVEN_UP = "given_up"
    """The machine failed, and no other machine takes its place."""
    UNKNOWN = "unknown"
    """No loop has published a reason."""


class ErrorClass(StrEnum):
    """Classes of failures, as one table of what follows from each.

    The word is the label of metrics, the word of logs, and the beginning of HF's message.
    """

    is_of_call: bool
    """An accepted create shows that the error is over; for any other class only a running machine does."""
    backs_off: bool
    """The next create would meet the error: the pool backs off at once. Otherwise the round decides."""
    stops_batch: bool
    """No further create of the pool and template is sent in the cycle: the next call would get the same."""
    has_no_room: bool
    """The place is full; that says nothing of the machine that is not made."""
    is_ambiguous: bool
    """The call may have been applied although no response came: the create is repeated under the same name."""
    needs_operator: bool
    """The call, sent again, fails again until an operator fixes the cause."""
    spends_try: bool
    """The machine's own doing: a slot that fails with it uses up a try."""
    lsf_code: str
    """LSF's resource connector reads ``Error Code: X`` in a message and pauses the template for these two. For other
    codes it may disable the template, so other errors have none (docs/hostfactory.md: error codes)."""

    def __new__(cls, word: str, *columns: bool | str) -> Self:
        """Make a member of the table's row."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.__dict__.update(zip(cls.__annotations__, columns, strict=True))
        return member

    # fmt: off
    #                             of call  back off stop   no room ambig. operator try    LSF code
    THROTTLED   = "throttled",    True,    True,    False, False,  False, False,   False, ""
    STOCKOUT    = "stockout",     True,    True,    True,  True,   False, False,   False, "InsufficientInstanceCapacity"
    QUOTA       = "quota",        True,    True,    True,  True,   False, False,   False, "InsufficientCapacity"
    DENIED      = "denied",       True,    True,    True,  False,  False, True,    True,  ""
    INVALID     = "invalid",      True,    True,    True,  False,  False, True,    True,  ""
    TIMEOUT     = "timeout",      True,    False,   False, False,  True,  False,   True,  ""
    UNAVAILABLE = "unavailable",  True,    True,    False, False,  True,  False,   False, ""
    NOT_FOUND   = "not_found",    True,    True,    False, False,  False, True,    True,  ""
    OTHER       = "other",        False,   False,   False, False,  False, False,   True,  ""
    # fmt: on

    @property
    def is_refusal(self) -> bool:
        """The place does not take the machine, or has no room for it."""
        return self.has_no_room or self.needs_operator

    @property
    def stays_unseen(self) -> bool:
        """An observation that fails with it fails again until an operator fixes the cause; INVALID may pass there."""
        return self in (ErrorClass.DENIED, ErrorClass.NOT_FOUND)


class LossCause(StrEnum):
    """Why a succeeded machine is lost."""

    PREEMPTED = "preempted"
    EVICTED = "evicted"
    DELETED = "deleted"
    NODE = "node"
    EXITED = "exited"
    EXPIRES = "expires"
    """Its place had told the end beforehand: a longest run, a reservation's end."""
    UNKNOWN = "unknown"


class RequestStatus(StrEnum):
    """HF's three words for a request. The last two are terminal and never revert (law: a terminal answer stays)."""

    RUNNING = "running"
    COMPLETE = "complete"
    COMPLETE_WITH_ERROR = "complete_with_error"


class DistrustReason(StrEnum):
    """Why a snapshot may not be acted upon."""

    MASS_LOSS = "mass_loss"
    """It lacks too many machines at once to be believed before a second list says the same."""
    WRONG_ENDPOINT = "wrong_endpoint"
    """Another endpoint answers for the pool's place."""
    POOL_MOVED = "pool_moved"
    """The configuration has moved the pool away from its machines."""


class BrakeReason(StrEnum):
    """Why nothing is deleted as an orphan until ``provisioner recover --release-brake`` is run (law: the brake)."""

    INTENT_OLDER = "intent_older"
    INTENT_LOST = "intent_lost"
    MEMORY_OLDER = "memory_older"
    MEMORY_LOST = "memory_lost"
    REQUEST_LOST = "request_lost"
    TOO_MANY_ORPHANS = "too_many_orphans"
    IDENTITY_CONFLICT = "identity_conflict"
    WRONG_ENDPOINT = "wrong_endpoint"


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong: the class for us, the text in the cloud's own words for people."""

    error: ErrorClass
    text: str

    def __post_init__(self) -> None:
        """Words of a cloud reach terminals, pages and HostFactory: they are printable from here on."""
        object.__setattr__(self, "text", printable(self.text))

    @property
    def facts(self) -> dict[str, str]:
        """Both, as logs and documents have them."""
        return {"error": str(self.error), "text": self.text}
