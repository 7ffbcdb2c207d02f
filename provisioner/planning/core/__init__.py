"""What every room of the planning rests on: the draft of a plan, slots, windows, usage, and what holds it back."""
