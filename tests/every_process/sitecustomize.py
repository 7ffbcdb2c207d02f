"""Python imports this at the start of every process that a test starts, but for isolated ones, which scripts are."""

from tests.support.checks.attendance import attend

attend()
