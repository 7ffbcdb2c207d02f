"""The configuration: read, checked, and all that is wrong with it said at once."""
