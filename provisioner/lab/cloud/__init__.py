"""An embedded cloud: one model with a clock, a seed and faults; HTTP faces that the official clients talk to."""
