"""Frozen types for intent, limits, snapshots, memory and plans.

Times are loop time in seconds (law: time is an argument) unless a name contains ``wall``. The types use no I/O, clock
or logger.
"""

from provisioner.model.enums import *
from provisioner.model.intent import *
from provisioner.model.limits import *
from provisioner.model.memory import *
from provisioner.model.plan import *
from provisioner.model.snapshot import *
