"""Clean-up: leftovers of closed slots, orphans, and records that leave the files."""
