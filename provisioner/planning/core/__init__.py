"""Basis of all planning: the draft of a plan, slots, windows, usage, and holds."""
