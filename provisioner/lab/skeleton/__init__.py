"""The example that ``provisioner new-kind`` copies: a kind whose place is in memory, and the ``testing.place.Place``
for its tests."""
