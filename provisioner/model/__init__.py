"""The project's words as frozen types: what is wanted, what is seen, what is remembered, what is decided.

Times are loop time in seconds (law: time is an argument) unless a name says ``wall``. No I/O, no clock, no logger.
"""

from provisioner.model.intent import NO_LEVERS as NO_LEVERS
from provisioner.model.intent import Intent as Intent
from provisioner.model.intent import Lever as Lever
from provisioner.model.intent import LeverKind as LeverKind
from provisioner.model.intent import Levers as Levers
from provisioner.model.intent import Request as Request
from provisioner.model.intent import ReturnRequest as ReturnRequest
from provisioner.model.limits import Budget as Budget
from provisioner.model.limits import Limits as Limits
from provisioner.model.limits import PoolLimits as PoolLimits
from provisioner.model.limits import TemplateLimits as TemplateLimits
from provisioner.model.memory import Brake as Brake
from provisioner.model.memory import Memory as Memory
from provisioner.model.memory import RequestRecord as RequestRecord
from provisioner.model.memory import ReturnRecord as ReturnRecord
from provisioner.model.memory import ReturnResult as ReturnResult
from provisioner.model.memory import Slot as Slot
from provisioner.model.memory import Uptime as Uptime
from provisioner.model.memory import Window as Window
from provisioner.model.memory import evolve as evolve
from provisioner.model.plan import Action as Action
from provisioner.model.plan import Create as Create
from provisioner.model.plan import Delete as Delete
from provisioner.model.plan import Distrusted as Distrusted
from provisioner.model.plan import Outcome as Outcome
from provisioner.model.plan import Plan as Plan
from provisioner.model.plan import Transition as Transition
from provisioner.model.plan import Unmet as Unmet
from provisioner.model.snapshot import NEWS_SECONDS as NEWS_SECONDS
from provisioner.model.snapshot import Contact as Contact
from provisioner.model.snapshot import Fingerprint as Fingerprint
from provisioner.model.snapshot import Look as Look
from provisioner.model.snapshot import Machine as Machine
from provisioner.model.snapshot import Notice as Notice
from provisioner.model.snapshot import Snapshot as Snapshot
from provisioner.model.snapshot import Unobserved as Unobserved
from provisioner.model.words import DAY as DAY
from provisioner.model.words import DESIRED as DESIRED
from provisioner.model.words import HOUR as HOUR
from provisioner.model.words import LONG_AGO as LONG_AGO
from provisioner.model.words import NEVER as NEVER
from provisioner.model.words import BrakeReason as BrakeReason
from provisioner.model.words import DeleteReason as DeleteReason
from provisioner.model.words import DistrustReason as DistrustReason
from provisioner.model.words import ErrorClass as ErrorClass
from provisioner.model.words import Failure as Failure
from provisioner.model.words import LossCause as LossCause
from provisioner.model.words import PendingReason as PendingReason
from provisioner.model.words import Phase as Phase
from provisioner.model.words import RequestStatus as RequestStatus
from provisioner.model.words import Verdict as Verdict
from provisioner.model.words import format_utc as format_utc
