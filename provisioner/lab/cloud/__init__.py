"""The embedded cloud: a model of a cloud with its own clock, random seed and faults, and HTTP APIs that the official
clients can call."""
