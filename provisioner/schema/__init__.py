"""The parts of settings: sections, their types in words, and pools. Settings and kinds share them."""
