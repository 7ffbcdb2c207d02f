"""Effects of snapshots and outcomes on slots and pools, and trust in snapshots."""
