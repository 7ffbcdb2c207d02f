"""What Google promises of Spot machines: known to the kind that sees them end, and to the events that announce it."""

SPOT_GRACE_SECONDS = 30.0
"""A Spot instance gets so long between the notice and the end (Scheduling in the API's reference)."""
