"""Python imports this module when a test starts a process. An isolated process, such as a script, does not import
it."""

from tests.support.checks.attendance import attend

attend()
