"""The laboratory: an embedded cloud, the loop in virtual time, the demonstration, and the replay of recorded calls."""
