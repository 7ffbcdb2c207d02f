"""The project's words as types: what is wanted, what is seen, what is remembered, what is decided.

Every value is frozen. Times are loop time in seconds (law: time is an argument) unless a name says
``wall``. No I/O, no clock, no logger.
"""

from provisioner.model.decided import Action, Close, Create, Delete, Doubt, Outcome, Plan
from provisioner.model.levers import NO_LEVERS, Lever, LeverKind, Levers
from provisioner.model.limits import Budget, Limits, PoolLimits, TemplateLimits
from provisioner.model.remembered import (
    Brake,
    Memory,
    RequestRecord,
    ReturnRecord,
    ReturnResult,
    Slot,
    Uptime,
    Window,
    evolve,
    evolving,
)
from provisioner.model.seen import NEWS_SECONDS, Contact, Fingerprint, Look, Machine, Notice, Snapshot, Unobserved
from provisioner.model.wanted import Intent, Request, ReturnRequest
from provisioner.model.words import (
    AMBIGUOUS_ERRORS,
    DESIRED,
    LONG_AGO,
    NEVER,
    STOPPING_ERRORS,
    BrakeReason,
    DeferReason,
    DeleteReason,
    ErrorClass,
    Failure,
    LossCause,
    Phase,
    RequestStatus,
    Verdict,
)

__all__ = [
    "AMBIGUOUS_ERRORS",
    "DESIRED",
    "LONG_AGO",
    "NEVER",
    "NEWS_SECONDS",
    "NO_LEVERS",
    "STOPPING_ERRORS",
    "Action",
    "Brake",
    "BrakeReason",
    "Budget",
    "Close",
    "Contact",
    "Create",
    "DeferReason",
    "Delete",
    "DeleteReason",
    "Doubt",
    "ErrorClass",
    "Failure",
    "Fingerprint",
    "Intent",
    "Lever",
    "LeverKind",
    "Levers",
    "Limits",
    "Look",
    "LossCause",
    "Machine",
    "Memory",
    "Notice",
    "Outcome",
    "Phase",
    "Plan",
    "PoolLimits",
    "Request",
    "RequestRecord",
    "RequestStatus",
    "ReturnRecord",
    "ReturnRequest",
    "ReturnResult",
    "Slot",
    "Snapshot",
    "TemplateLimits",
    "Unobserved",
    "Uptime",
    "Verdict",
    "Window",
    "evolve",
    "evolving",
]
