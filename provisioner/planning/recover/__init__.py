"""Recovery: rebuild a lost memory from the inputs that are left."""
