"""The lab: an embedded cloud, virtual time, the demonstration, and replay of recorded calls."""
