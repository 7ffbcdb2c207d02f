"""A module that Python imports at the start of each process that a test starts. An isolated process, such as a script,
does not import it."""

from tests.support.checks.attendance import attend

attend()
