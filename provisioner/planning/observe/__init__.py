"""What snapshots and outcomes say of slots and pools, and whether a snapshot may be acted upon."""
