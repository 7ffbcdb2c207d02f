"""An embedded cloud: a model with a clock, a seed and faults, and HTTP APIs that the official clients can call."""
