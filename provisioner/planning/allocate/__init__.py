"""Which machines are asked of which pool now, in which order, and what stops more."""
