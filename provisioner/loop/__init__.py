"""The loop: cycles that observe, plan, record and act, and the threads beside them that observe, act and wake it."""
