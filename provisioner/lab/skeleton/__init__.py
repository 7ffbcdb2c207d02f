"""The example that ``provisioner new-kind`` copies: a kind whose place is in memory, with the place of its tests."""
