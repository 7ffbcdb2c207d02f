"""The configuration: read it, check it, and report all its mistakes at once."""
