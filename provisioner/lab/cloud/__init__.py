"""An embedded cloud: one model with a clock, a seed and faults, and HTTP APIs for the official clients."""
