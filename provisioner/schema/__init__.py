"""The building blocks of settings: sections, types with a description, and pools. Settings and kinds of places share
these building blocks."""
