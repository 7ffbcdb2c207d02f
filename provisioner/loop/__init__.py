"""Cycle after cycle: look, plan, record, act, remember; and what wakes, observes and acts beside the cycle."""
