"""What settings are made of: sections, their types in words, and pools. Settings and kinds share it."""
