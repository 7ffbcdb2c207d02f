"""Enumerations that all parts share: phases, verdicts, reasons, error classes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from provisioner.names import format_printable
from provisioner.utc import DAY as DAY
from provisioner.utc import HOUR as HOUR
from provisioner.utc import format_utc as format_utc


class Phase(StrEnum):
    """The state of a machine as its pool shows it. The program expects no order of the phases, because it only reports
    what a pool shows."""

    SUBMITTED = "submitted"
    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    GONE = "gone"
    """The machine is dead. Leftovers of the machine are still in the snapshot and have to be deleted."""


class Verdict(StrEnum):
    """The state of a slot. ``TRANSITIONS`` in ``planning/core/draft.py`` contains the allowed changes."""

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
"""Loop time of an event that will not happen."""

LONG_AGO = float("-inf")
"""Loop time that stands for an event that has not happened. Comparisons treat such an event as long past."""


class DeleteReason(StrEnum):
    """Reasons for a delete. A machine is never deleted for another reason (law: no machine is deleted by count)."""

    RETURNED = "returned"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    WITHDRAWN = "withdrawn"
    LOST = "lost"
    CANCELLED = "cancelled"
    ORPHANED = "orphaned"
    DOUBLED = "doubled"
    """Another object with the machine's name exists and stays."""


class PendingReason(StrEnum):
    """Reasons why a machine that a request wants does not run."""

    WINDOW = "window"
    CAP = "cap"
    BACKOFF = "backoff"
    PAUSED = "paused"
    STOPPED = "stopped"
    """An operator has stopped all."""
    BUDGET = "budget"
    UNSEEN = "unseen"
    """The pool cannot be observed, or its snapshot is distrusted. The pool gets no actions."""
    UNSENT = "unsent"
    """The pool was chosen, and the create was certainly not sent."""
    UNANSWERED = "unanswered"
    """The create was sent, but no snapshot has shown the machine yet."""
    STARTING = "starting"
    """The machine exists but does not run yet, and its place gives no reason."""
    QUEUED = "queued"
    """The place holds the machine in a queue on purpose."""
    TROUBLED = "troubled"
    """The machine was requested, and its place has given a reason why the machine does not run."""
    SET_ASIDE = "set_aside"
    """Actions for the machine are stopped until an operator has checked it."""
    GIVEN_UP = "given_up"
    """The machine failed and is not replaced."""
    UNKNOWN = "unknown"
    """The loop has not published a reason."""


class ErrorClass(StrEnum):
    """Classes of errors. One table lists the consequences of each class.

    The value of a class is its metric label, its word in logs, and the first word of the message to HF.
    """

    is_of_call: bool
    """True if an accepted create proves that the error is over. For any other class, only a running machine proves
    it."""
    backs_off: bool
    """True if the next create would fail too, so that the pool backs off at once. If False, the pool backs off only if
    most machines of a round fail."""
    stops_batch: bool
    """True if further creates of the pool and template are not sent in this cycle, because they would fail in the
    same way."""
    has_no_room: bool
    """True if the place is full. The machine itself is not the cause."""
    is_ambiguous: bool
    """True if the call may have had an effect although no response came. The create is repeated under the same name."""
    needs_operator: bool
    """True if the call fails again until an operator fixes the cause."""
    spends_try: bool
    """True if the machine itself is the cause. A slot that fails with this class uses up a try."""
    lsf_code: str
    """LSF's error code for the class; empty if there is none.

    LSF's resource connector reads ``Error Code: X`` in a message. If X is one of the two codes in the table, LSF pauses
    the template. For any other code LSF may disable the template, so the other classes have no code
    (docs/hostfactory.md: error codes).
    """

    def __new__(cls, word: str, *columns: bool | str) -> Self:
        """Make the member for one row of the table of error classes. ``columns``: the values of the fields above."""
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
        """Return whether the place rejects the machine or has no room for it."""
        return self.has_no_room or self.needs_operator

    @property
    def needs_operator_to_observe(self) -> bool:
        """Return whether observations that fail with this class keep failing until an operator fixes the cause.

        INVALID is excluded, although it needs an operator if a create fails with it. After an invalid response, the
        next observation may succeed without an operator.
        """
        return self in (ErrorClass.DENIED, ErrorClass.NOT_FOUND)


class LossCause(StrEnum):
    """Causes of the loss of a succeeded machine."""

    PREEMPTED = "preempted"
    EVICTED = "evicted"
    DELETED = "deleted"
    NODE = "node"
    EXITED = "exited"
    EXPIRES = "expires"
    """The end was known from the start: a maximum run duration, or the end of a reservation."""
    UNKNOWN = "unknown"


class RequestStatus(StrEnum):
    """HF's three states of a request. The last two are terminal and never revert (law: a terminal answer stays)."""

    RUNNING = "running"
    COMPLETE = "complete"
    COMPLETE_WITH_ERROR = "complete_with_error"


class DistrustReason(StrEnum):
    """Reasons why a snapshot may not be acted upon."""

    MASS_LOSS = "mass_loss"
    """The snapshot lacks too many machines at once. The loss is believed only when a second, later list confirms it."""
    WRONG_ENDPOINT = "wrong_endpoint"
    """A wrong endpoint answers for the pool's place."""
    POOL_MOVED = "pool_moved"
    """The configuration has moved the pool away from its machines."""


class BrakeReason(StrEnum):
    """Reasons for the brake (law: the brake). The brake stops the deletion of orphans.

    An operator ends the brake with ``provisioner recover --release-brake``.
    """

    INTENT_OLDER = "intent_older"
    INTENT_LOST = "intent_lost"
    MEMORY_OLDER = "memory_older"
    MEMORY_LOST = "memory_lost"
    REQUEST_LOST = "request_lost"
    TOO_MANY_ORPHANS = "too_many_orphans"
    IDENTITY_CONFLICT = "identity_conflict"
    WRONG_ENDPOINT = "wrong_endpoint"


CONFLICTS = frozenset({BrakeReason.TOO_MANY_ORPHANS, BrakeReason.IDENTITY_CONFLICT})
"""Reasons of the brake that may mean that the orphans are another provisioner's machines."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error class for the program, and the cloud's own text for operators."""

    error: ErrorClass
    text: str

    def __post_init__(self) -> None:
        """Make the text printable. The text comes from a cloud and goes to terminals, pages and HostFactory."""
        object.__setattr__(self, "text", format_printable(self.text))

    @property
    def log_fields(self) -> dict[str, str]:
        """Return the error class and the text for log lines and JSON documents. The keys are ``error`` and ``text``."""
        return {"error": str(self.error), "text": self.text}
