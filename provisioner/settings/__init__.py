"""The configuration, read and checked; all mistakes in it are reported at once."""
