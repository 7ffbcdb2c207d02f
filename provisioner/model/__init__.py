"""The project's words as frozen types: what is wanted, what is seen, what is remembered, what is decided.

Times are loop time in seconds (law: time is an argument) unless a name says ``wall``. No I/O, no clock, no logger.
"""

from provisioner.model.enums import *
from provisioner.model.intent import *
from provisioner.model.limits import *
from provisioner.model.memory import *
from provisioner.model.plan import *
from provisioner.model.snapshot import *
