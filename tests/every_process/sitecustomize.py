"""Python imports this at the start of every process that a test starts, but for isolated ones, which scripts are."""

from tests.attendance import attend

attend()
