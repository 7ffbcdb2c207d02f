"""The project's words as frozen types: what is wanted, what is seen, what is remembered, what is decided.

Times are loop time in seconds (law: time is an argument) unless a name says ``wall``. No I/O, no clock, no logger.
"""

from provisioner.model.intent import Intent, Request, ReturnRequest
from provisioner.model.levers import NO_LEVERS, Lever, LeverKind, Levers
from provisioner.model.limits import Budget, Limits, PoolLimits, TemplateLimits
from provisioner.model.memory import (
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
from provisioner.model.plan import Action, Create, Delete, Distrusted, Outcome, Plan, Transition, Unmet
from provisioner.model.snapshot import NEWS_SECONDS, Contact, Fingerprint, Look, Machine, Notice, Snapshot, Unobserved
from provisioner.model.words import (
    DAY,
    DESIRED,
    HOUR,
    LONG_AGO,
    NEVER,
    BrakeReason,
    DeleteReason,
    DistrustReason,
    ErrorClass,
    Failure,
    LossCause,
    PendingReason,
    Phase,
    RequestStatus,
    Verdict,
    format_utc,
)
