"""What is left: the machines of closed slots, orphans, and records that leave the files."""
