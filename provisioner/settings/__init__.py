"""The configuration: it is read and checked, and all its mistakes are reported at once."""
