"""Recovery: memory rebuilt from what is left."""
